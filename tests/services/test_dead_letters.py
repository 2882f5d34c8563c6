"""Dead letters are listed, and replayed once."""

from __future__ import annotations

import datetime
import getpass
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from kit.servers.kafka_server import KafkaServer
from millpond.cli import app
from millpond.connections import VARIABLE
from millpond.control.diagnose import dead_letters
from millpond.control.diagnose.dead_letters import kinds, replay
from millpond.errors import ForeignPondError, RequestError, StoreError
from millpond.followers.sinks import kafka_publisher
from millpond.followers.sinks.folder import MARKER_NAME, Marker
from millpond.followers.sinks.kafka_publisher import Publisher
from millpond.formats.malformed_reasons import misfit_reason
from millpond.runtime.packets.row_batches import dead_letters_of, timeless_reason

HALF = b'{"v": "\\ud83d"}'
REASONS = {
    None: "the record has no value", b"0": timeless_reason("ts", "timestamp_millis(ms)"),
    HALF: misfit_reason("v", "bigint"),
}  # fmt: skip
TIME = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)


NOTES = ["A record that still does not parse comes back as a new dead letter.",
         "An event whose window has closed meanwhile is late, as any other."]  # fmt: skip
"""What a replay to the letters' own topic prints first."""

def write(folder: Path, n: int, topic: str, values: list[bytes | None]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / MARKER_NAME).write_bytes(msgspec.json.encode(Marker("p", dead_letters_of("tx"), "parquet")))
    rows = [
        {"topic": topic, "partition": 1, "offset": n * 10 + at, "timestamp": TIME, "key": b"k", "value": value,
         "reason": REASONS.get(value, "the value does not parse")}
        for at, value in enumerate(values)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), folder / f"part-{n:020d}.parquet")


def test_they_are_counted_and_shown_newest_first(tmp_path: Path) -> None:
    folder = tmp_path / "dead"
    write(folder, 3, "tx", [b"{", None])
    write(folder, 12, "tx", [b"\xff" + b"x" * 300])
    runner = CliRunner()
    write(folder, 2, "tx", ['{"v": "\x1b[2J\u202e"}'.encode(), HALF])
    last = runner.invoke(app, ["dlq", "show", str(folder)]).output.split("\n")[-5:-1]
    assert [line.split("0Z: ")[-1] for line in last] == [
        r'v is not a BIGINT: "\ud83d"', r'  {"v": "\ud83d"}',
        "the value does not parse", r'  {"v": "\x1b[2J\u202e"}',
    ], "a terminal can print halves of surrogate pairs, and obeys no value"
    (folder / f"part-{2:020d}.parquet").unlink()
    listed = runner.invoke(app, ["dlq", "list", str(folder)]).output.split("\n")
    assert listed[0].split()[:2] == ["2", "tx"]
    assert listed[0].endswith("does not parse  2024-01-01 00:00:00Z .. 2024-01-01 00:00:00Z")
    assert listed[1].split()[:2] == ["1", "tx"] and "has no value" in listed[1]
    shown = runner.invoke(app, ["dlq", "show", str(folder), "--limit", "2"]).output.split("\n")
    assert shown[0].startswith("tx-1 at 120, 2024-01-01 00:00:00Z: the") and shown[1] == "  \\xff" + "x" * 199 + "…"
    assert shown[2].startswith("tx-1 at 31") and shown[3] == "  (no value)"
    assert shown[4:] == [""]
    command = [sys.executable, "-m", "millpond", "dlq", "show", str(folder), "--limit", "1"]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    latin = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert latin.stdout.endswith(b"x\\u2026\n"), "the end of a shortened value"
    with pytest.raises(ForeignPondError, match="holds no dead letters"):
        replay(tmp_path, None, None)


def test_they_are_sent_again_once(kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder, topic = tmp_path / "c.json", tmp_path / "dead", f"r-{uuid.uuid4().hex[:8]}"
    path.write_text(json.dumps({"test": {"servers": kafka_server.servers}}))
    monkeypatch.setenv(VARIABLE, str(path))
    kafka_server.create(topic, 2)
    kafka_server.create(f"{topic}-other")
    write(folder, 3, topic, [b"{", None])
    output = CliRunner().invoke(app, ["dlq", "replay", str(folder)]).output
    assert output.splitlines() == [*NOTES, "2 sent."]
    assert replay(folder, "test", None).sent == 0
    listed = CliRunner().invoke(app, ["dlq", "list", str(folder)]).output.splitlines()
    assert len(listed) == 2 and all(re.search(rf"  sent 20\S+ \S+Z by {getpass.getuser()}$", line) for line in listed)
    assert CliRunner().invoke(app, ["dlq", "list", str(folder), "--pending"]).output == "There are none.\n"
    for name in folder.glob("_replay-*"):  # as if the replay had been killed before it could record itself
        name.unlink()
    assert {kind.sent for kind in kinds(folder)} == {()}
    assert replay(folder, "test", None, who="eve").sent == 0
    assert [[(one.who, one.recorded) for one in kind.sent] for kind in kinds(folder)] == [[("", False)]] * 2
    write(folder, 12, topic, [b"\xff"])
    assert replay(folder, None, None).sent == 1
    found = kafka_server.read(topic)
    assert [(m.partition, m.key, m.value) for m in found] == [(1, b"k", b"{"), (1, b"k", None), (1, b"k", b"\xff")]
    assert found[0].headers == {"millpond-replay": f"{topic}-1@30".encode()}
    assert replay(folder, None, f"{topic}-other").sent == 3
    assert len(kafka_server.read(f"{topic}-other")) == 3
    assert {tuple(one.topic for one in kind.sent) for kind in kinds(folder)} == {(None, f"{topic}-other")}
    assert {one.who for kind in kinds(folder) for one in kind.sent if one.topic} == {""}
    monkeypatch.setattr(kafka_publisher, "SECONDS", 4.0)
    monkeypatch.setattr(kafka_publisher, "_UNKNOWN_TOPIC_MS", 1_000)
    with pytest.raises(StoreError, match="Unknown topic") as error:
        replay(folder, None, f"{topic}-absent")
    assert error.value.cure == "Mend this, and replay again: what was sent is not sent twice."


def test_letters_of_one_reason_are_sent_once_and_a_dry_run_sends_nothing(
    kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder, topic = tmp_path / "c.json", tmp_path / "dead", f"r-{uuid.uuid4().hex[:8]}"
    path.write_text(json.dumps({"test": {"servers": kafka_server.servers}}))
    monkeypatch.setenv(VARIABLE, str(path))
    kafka_server.create(topic, 2)
    kafka_server.create(f"{topic}-other")
    write(folder, 3, topic, [b"{", None])
    write(folder, 12, topic, [b"["])

    def printed(*options: str) -> list[str]:
        lines = CliRunner().invoke(app, ["dlq", "replay", str(folder), *options]).output.splitlines()
        return [line for line in lines if line not in NOTES]

    parse, value = f"       2  to {topic}  the value does not parse", f"       1  to {topic}  the record has no value"
    assert printed("--dry-run") == [parse, value, "3 would be sent."]
    assert printed("--dry-run", "--reason", "NO value") == [value, "1 would be sent."]
    assert printed("--reason", "no value") == ["1 sent."]
    assert [kind.reason for kind in kinds(folder) if not kind.sent] == ["the value does not parse"]
    pending = CliRunner().invoke(app, ["dlq", "show", str(folder), "--pending"]).output.splitlines()
    assert pending[1::2] == ["  [", "  {"] and not any("no value" in line for line in pending)
    assert printed("--dry-run") == [parse, "2 would be sent."]
    assert printed("--reason", "no value") == ["0 sent."]
    with pytest.raises(RequestError, match="No dead letter has a reason with 'typo'"):
        replay(folder, None, None, "typo")
    assert printed() == ["2 sent."]
    write(folder, 14, topic, [None, b"]"])
    assert printed("--reason", "parse") == ["1 sent."]
    assert printed() == ["1 sent."]
    assert printed("--reason", "parse") == printed() == ["0 sent."]
    assert sorted(m.value or b"" for m in kafka_server.read(topic)) == [b"", b"", b"[", b"]", b"{"]

    # a replay of all that runs while one by reasons connects sends its letters
    write(folder, 15, topic, [None, b"~"])
    connect, names = dead_letters._Replays.connect, []

    def interrupted(self: dead_letters._Replays, publisher: Publisher) -> int:
        names.append(publisher.name)
        if len(names) == 3:
            monkeypatch.undo()
            monkeypatch.setenv(VARIABLE, str(path))
            assert replay(folder, None, None).sent == 2
        return connect(self, publisher)

    monkeypatch.setattr(dead_letters._Replays, "connect", interrupted)
    assert printed("--reason", "the") == ["0 sent."]
    assert len(names) == 3
    assert sorted(m.value or b"" for m in kafka_server.read(topic)[5:]) == [b"", b"~"]

    # events without a time are sent only by --timeless, or to another topic
    write(folder, 16, topic, [b"0", b"}"])
    left_out = dead_letters.left_out_line(1)
    for given in ([], ["--to", topic]):
        assert printed("--dry-run", *given)[-2:] == ["1 would be sent.", left_out]
    assert printed("--reason", "ts") == ["0 sent.", left_out]
    assert printed() == ["1 sent.", left_out] and printed() == ["0 sent.", left_out]
    assert replay(folder, None, f"{topic}-other") == (9, 0)
    assert printed("--reason", "ts", "--timeless") == ["1 sent."] and printed() == ["0 sent."]
    assert [m.value for m in kafka_server.read(topic)[7:]] == [b"}", b"0"]
