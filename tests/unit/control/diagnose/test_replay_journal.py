"""Lists mark the dead letters that replays have sent, also after a crash and for a pond that lost records."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.clock import now_us
from millpond.control.diagnose import replay_journal
from millpond.control.diagnose.dead_letters import kinds, lines, sent_text
from millpond.control.diagnose.letter_folder import LetterFolder
from millpond.control.diagnose.letter_message import Sending
from millpond.control.diagnose.replay_journal import Journal, record
from millpond.errors import PlaceError
from millpond.followers.sinks.folder import MARKER_NAME, Marker
from millpond.runtime.packets.row_batches import dead_letters_of

A, B = "amount is not a DOUBLE", "the record has no value"


def write(folder: Path, n: int, *reasons: str, offset: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    (folder / MARKER_NAME).write_bytes(msgspec.json.encode(Marker("p", dead_letters_of("tx"), "parquet")))
    rows = [
        {"topic": "t", "partition": 0, "offset": offset + at, "timestamp": datetime(2024, 1, n, tzinfo=timezone.utc),
         "key": b"k", "value": b"{", "reason": reason} for at, reason in enumerate(reasons)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), folder / f"part-{n:020d}.parquet")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Letters of three records; each replay is recorded a second after the previous one."""
    times = iter(range(1, 100))
    monkeypatch.setattr(replay_journal, "now_us", lambda: next(times) * 1_000_000)
    found = tmp_path / "dead"
    for n, reasons in ((2, (A, B)), (3, (A, A)), (7, (B,))):
        write(found, n, *reasons)
    return found


def listed(folder: Path) -> list[tuple[str, int, str]]:
    return [(kind.reason, kind.letters, sent_text(kind.sent)) for kind in kinds(folder)]


def test_letters_are_marked_with_the_replay_that_sent_them(folder: Path) -> None:
    assert listed(folder) == [(A, 3, ""), (B, 2, "")]
    letters = LetterFolder.of(folder)
    record(letters, "ann", None, "h:1", {A: (-1, 2), B: (-1, 2)})
    first = "sent 1970-01-01 00:00:01Z by ann"
    assert listed(folder) == [(A, 2, ""), (A, 1, first), (B, 1, ""), (B, 1, first)]
    (file,) = folder.glob("_replay-*")
    assert re.fullmatch(r"_replay-00000000000001000000-[0-9a-f]{24}", file.name)
    span = {"after": -1, "last": 2, "mark": letters.mark(2)}
    stored = {"at_us": 1_000_000, "who": "ann", "topic": None, "servers": "h:1", "spans": {A: span, B: span}}
    assert json.loads(file.read_bytes()) == stored, "as docs/formats.md describes it"
    record(letters, "bob", None, "h:1", {A: (2, 3)})
    second = "sent 1970-01-01 00:00:02Z by bob"
    assert listed(folder) == [(A, 2, second), (A, 1, first), (B, 1, ""), (B, 1, first)]
    record(letters, "bob", "fixed", "h:1", {A: (2, 3)})
    both = f"{second}; sent to fixed 1970-01-01 00:00:03Z by bob"
    assert listed(folder)[0] == (A, 2, both)
    of_seven = ["t-0 at 0, 2024-01-07 00:00:00Z: the record has no value", "  {"]
    assert [*lines(folder, 9, pending=True)] == of_seven
    assert next(lines(folder, 1, "DOUBLE")).endswith(f"at 1, 2024-01-03 00:00:00Z: {A} ({both})")
    record(letters, "eve", None, "h:1", {})
    assert len([*folder.glob("_replay-*")]) == 3, "a replay that sent nothing leaves no file"


def test_a_later_record_of_the_same_letters_does_not_replace_the_first(folder: Path) -> None:
    """As the next replay writes it for what a killed one has sent."""
    letters = LetterFolder.of(folder)
    record(letters, "ann", None, "h:1", {A: (-1, 2)})
    record(letters, "", None, "h:1", {A: (-1, 3)}, recorded=False)
    assert [one for one in listed(folder) if one[0] == A] == [
        (A, 2, "sent before 1970-01-01 00:00:02Z"), (A, 1, "sent 1970-01-01 00:00:01Z by ann"),
    ]  # fmt: skip
    journal = Journal(letters)
    assert journal.covers(3, A, None, "h:1") and not journal.covers(3, A, None, "h:2")
    assert not journal.covers(7, A, None, "h:1") and not journal.covers(3, B, None, "h:1")
    assert not journal.covers(3, A, "fixed", "h:1")


def test_letters_of_a_record_that_the_pond_lost_are_pending(folder: Path) -> None:
    record(LetterFolder.of(folder), "ann", None, "h:1", {A: (-1, 3)})
    write(folder, 3, A, offset=9)
    assert listed(folder) == [(A, 2, ""), (B, 2, "")]


@pytest.mark.parametrize("removed", [2, 3])
def test_the_other_letters_stay_marked_if_a_file_was_removed(folder: Path, removed: int) -> None:
    record(LetterFolder.of(folder), "ann", None, "h:1", {A: (-1, 3)})
    (folder / f"part-{removed:020d}.parquet").unlink()
    left, pending = {2: (2, [(B, 1, "")]), 3: (1, [(B, 2, "")])}[removed]
    assert sorted(listed(folder)) == [(A, left, "sent 1970-01-01 00:00:01Z by ann"), *pending]


def test_a_damaged_record_of_a_replay_is_reported(folder: Path) -> None:
    (folder / "_replay-1").write_bytes(b"{")
    with pytest.raises(PlaceError, match="_replay-1 cannot be read") as found:
        kinds(folder)
    assert "remove it" in found.value.cure
    (folder / "_replay-1").unlink()
    assert listed(folder) == [(A, 3, ""), (B, 2, "")]


def test_times_are_those_of_the_clock(tmp_path: Path) -> None:
    write(tmp_path / "dead", 1, A)
    before_us = now_us()
    record(LetterFolder.of(tmp_path / "dead"), "ann", None, "h:1", {A: (-1, 1)})
    (kind,) = kinds(tmp_path / "dead")
    (sent,) = kind.sent
    assert before_us <= sent.at_us <= now_us() and sent == Sending(sent.at_us, "ann")
    assert (kind.first_us, kind.last_us) == (1_704_067_200_000_000, 1_704_067_200_000_000)
