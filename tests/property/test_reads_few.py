"""An epoch reads the stored events of keys with new events or closing sessions, not all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.property import test_counted, test_deduplication, test_ranges, test_sessions

from kit.inputs.cases import SECOND
from kit.judges.answers import Run
from kit.naive.queries import windows
from kit.naive.queries.deduplicate import without_repeats
from millpond.model.query import Query
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.windows import sessions
from millpond.state.layout.cells import Piece
from millpond.state.layout.event_log import Events
from millpond.state.layout.session_atoms import Atoms
from millpond.testing.compare import assert_same_rows

QUERIES = {
    "range": test_ranges.amounts("q", 600 * SECOND),
    "counted": test_counted.last("q", 50, 1),
    "once": replace(test_deduplication.queries("events", 0)[1], name="q"),
}
KEYS = 100


def batch(now: int, keys: Sequence[int]) -> list[dict[str, Any]]:
    same = {"amount": 1.0, "f": 1.0, "p": None, "d": None, "flag": True}
    return [same | {"k": f"k{i}", "g": i, "v": now, "ts": now * SECOND + i} for i in keys]


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_of_keys_without_new_events_none_is_read(query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    concat_stored, read = EventLog.concat_stored, list[int]()

    def counting(log: EventLog, parts: Sequence[Events]) -> Events:
        found = concat_stored(log, parts)
        read.append(found.rows)
        return found

    monkeypatch.setattr(EventLog, "concat_stored", counting)
    epochs = [batch(now, range(KEYS)) for now in range(6)]  # no merge
    epochs += [batch(20, [7, 8]), batch(30, [7])]
    run = Run(tmp_path, [query])
    for rows in epochs:
        read.clear()
        run.epoch([rows])
    assert read and max(read) <= 20, "of 603"
    run.pond.drain()
    twin, marked = without_repeats(query, epochs) if query.deduplicated else (query, epochs)
    assert_same_rows(windows.answer(twin, marked, drained=True), run.answers().rows["q"], about=query.name)


def test_of_sessions_that_continue_none_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merge, read = sessions.merge_atoms, list[int]()

    def counting(pieces: Sequence[Piece], gap_us: int) -> Atoms:
        read.append(sum(len(piece.slots) for piece in pieces))
        return merge(pieces, gap_us)

    monkeypatch.setattr(sessions, "merge_atoms", counting)
    query = test_sessions.sessions("q", 50 * SECOND)
    epochs = [batch(5 * now, range(KEYS)) for now in range(6)]  # no merge
    epochs += [batch(28, [7, 8]), batch(30, [7]), batch(60, [9])]
    run = Run(tmp_path, [query])
    for rows in epochs:
        read.clear()
        run.epoch([rows])
        if len(rows) < 3 and rows[0]["v"] < 60:
            assert read and max(read) <= 20, "of 603"
    assert max(read) > KEYS, "when sessions close, these are read"
    run.pond.drain()
    assert_same_rows(windows.answer(query, epochs, drained=True), run.answers().rows["q"], about=query.name)
