"""The backlog of a pond's sources, from Spark's offsets, and files that disappear before they are read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from millpond.log.manifest import SourceState
from millpond.log.records import Offsets
from millpond.spark.reading.intake import Behind, Intake, PartitionBehind
from millpond.spark.reading.source_progress import batch_of
from millpond.spark.reading.source_updates import source_updates


def progress(*latest: str, at_hand: str | None = None) -> Any:
    """A query whose last batch had these newest offsets; `at_hand`: what a source reports of the batch at hand."""
    last = [SimpleNamespace(latestOffset=lambda offset=offset: offset) for offset in latest]
    offset = None if at_hand is None else SimpleNamespace(json=lambda: at_hand)
    source = SimpleNamespace(reportLatestOffset=lambda: offset)
    sources = SimpleNamespace(size=lambda: 1, apply=lambda _i: source, _gateway_client=SimpleNamespace())
    return SimpleNamespace(_jsq=SimpleNamespace(
        lastProgress=lambda: SimpleNamespace(sources=lambda: last) if latest else None,
        streamingQuery=lambda: SimpleNamespace(sources=lambda: sources),
    ))  # fmt: skip


def listed(folder: Path, batch: int, *paths: Path, merged: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": f"file://{path}", "timestamp": 1, "batchId": batch}) for path in paths]
    older = [json.dumps({"path": "file:///gone/long/ago", "timestamp": 1, "batchId": 0})] if merged else []
    name = f"{batch}.compact" if merged else str(batch)
    (folder / name).write_text("\n".join(["v1", *older, *lines]))


def planned(intake: Intake, checkpoint: Path, start: Offsets, end: Offsets) -> None:
    """Plan a batch after one that ended at `start`, as the driver does."""
    known = {stream: SourceState(batch_of(offset)) for stream, offset in start.items()}
    intake.note_batch(checkpoint, start, end, source_updates(checkpoint, end, known))


def test_records_of_kafka_that_are_not_committed(tmp_path: Path) -> None:
    intake = Intake()
    assert intake.behind(["tx"], {}, None) == [Behind("tx", "records", None)]
    first = tmp_path / "sources" / "tx"
    first.mkdir(parents=True)
    (first / "0").write_bytes(b'\0v1\n{"t":{"0":100,"1":0}}')
    planned(intake, tmp_path, {}, {"tx": '{"t":{"0":150,"1":7}}'})
    # retention has deleted the records before offset 100, so they are not behind
    partitions = PartitionBehind("t", "0", 100, 150), PartitionBehind("t", "1", 0, 7)
    assert intake.behind(["tx"], {}, None) == [Behind("tx", "records", 57, partitions)]
    committed = {"tx": '{"t":{"0":150,"1":7}}'}
    assert [one.waiting for one in intake.behind(["tx"], committed, None)] == [0]
    limited = progress('{"t":{"0":100150,"1":7}}', "5", "null")
    partitions = PartitionBehind("t", "0", 150, 100_150), PartitionBehind("t", "1", 7, 7)
    assert intake.behind(["tx"], committed, limited) == [Behind("tx", "records", 100_000, partitions)]
    # the first batch of a process, of which a limit lets in a part only
    first_batch = progress(at_hand='{"t":{"0":60000,"1":7}}')
    assert [one.waiting for one in intake.behind(["tx"], {}, first_batch)] == [59_907]


def test_files_of_the_batch_at_hand(tmp_path: Path) -> None:
    there = [tmp_path / "in" / name for name in ("a b.json", "b.json")]
    (tmp_path / "in").mkdir()
    for path in there:
        path.write_text("{}")
    intake = Intake()
    listed(tmp_path / "sources" / "tx", 0, *there)
    planned(intake, tmp_path, {}, {"tx": '{"logOffset":0}'})
    assert intake.take_missing() == {}
    assert intake.behind(["tx"], {}, None) == [Behind("tx", "files", 2)]
    assert intake.behind(["tx"], {"tx": '{"logOffset":0}'}, None) == [Behind("tx", "files", 0)]
    planned(intake, tmp_path, {"tx": '{"logOffset":0}'}, {"tx": '{"logOffset":0}'})
    assert intake.behind(["tx"], {"tx": '{"logOffset":0}'}, None) == [Behind("tx", "files", 0)]


def test_files_that_disappear_between_listing_and_reading(tmp_path: Path) -> None:
    kept, gone = tmp_path / "kept.json", tmp_path / "gone.json"
    kept.write_text("{}")
    intake = Intake()
    listed(tmp_path / "sources" / "tx", 9, kept, gone, merged=True)
    planned(intake, tmp_path, {"tx": '{"logOffset":8}'}, {"tx": '{"logOffset":9}'})
    assert intake.take_missing() == {"tx": (str(gone),)}
    assert intake.take_missing() == {}  # reported once


def test_files_that_are_dated_so_far_ahead_that_later_ones_are_skipped(tmp_path: Path) -> None:
    now, week = 1_700_000_000, 7 * 86_400
    files = {tmp_path / "now": now, tmp_path / "ahead": now + week, tmp_path / "far": now + week + 60}
    for path, date in files.items():
        path.write_text("{}")
        os.utime(path, (date, date))
    intake = Intake(lambda: now * 1_000_000)
    listed(tmp_path / "sources" / "tx", 0, *files)
    planned(intake, tmp_path, {}, {"tx": '{"logOffset":0}'})
    assert (intake.take_missing(), intake.take_dated_ahead()) == ({}, {"tx": (str(tmp_path / "far"),)})
    assert intake.take_dated_ahead() == {}  # reported once
