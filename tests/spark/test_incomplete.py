"""Whatever makes results incomplete is reported when it happens and at the end, and ends a run with its own status."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

import pytest
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.cli import main
from millpond.control.commands.run import INCOMPLETE
from millpond.model.endpoints import Sink
from millpond.spark.driver.epochs import Epoch

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MOST = 2**63 - 1


def write(folder: Path, name: str, rows: Sequence[Mapping[str, object]], written_at: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (1_700_000_000 + written_at,) * 2)
    return path


def event(second: int, k: str, v: int) -> dict[str, object]:
    return {"ts": f"2024-01-01T00:00:{second:02}Z", "k": k, "v": v}


def millpond(*words: object) -> tuple[int, list[str]]:
    """The command in this process: its exit status and what it wrote to standard error."""
    err, status = io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["millpond", *map(str, words)]),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
    return status, err.getvalue().splitlines()


def test_a_run_whose_results_are_incomplete(spark: SparkSession, tmp_path: Path) -> None:
    # one key of two leaves BIGINT; most events of `second` are late; nothing is there to read for `third`
    write(tmp_path / "a", "1.json", [event(1, "a", MOST), event(2, "a", MOST), event(2, "b", 1)])
    write(tmp_path / "b", "1.json", [event(59, "a", 1)])
    write(tmp_path / "b", "2.json", [event(second, "a", 1) for second in range(1, 4)], written_at=1)
    (tmp_path / "c").mkdir()
    window = "window(ts, '10 seconds')"
    queries = "\n".join(
        f"CREATE STREAMING TABLE {name} USING json TBLPROPERTIES ('path' = '{tmp_path}/{name}') AS SELECT k, "
        f"{window} AS w, sum(v) AS v FROM STREAM {stream} WATERMARK ts DELAY OF INTERVAL 1 SECOND GROUP BY k, {window};"
        for name, stream in (("first", "a"), ("second", "b"), ("third", "c"))
    )
    tables = "\n".join(
        f"CREATE TABLE {name} (ts TIMESTAMP, k STRING, v BIGINT) USING json OPTIONS (path '{tmp_path}/{name}', "
        "maxFilesPerTrigger 1);"
        for name in "abc"
    )
    file = tmp_path / "pond.sql"
    file.write_text(f"{tables}\n{queries}\n")
    status, lines = millpond("run", file, "--once", "--drain")
    assert status == INCOMPLETE, lines
    quarantined = next(line for line in lines if line.startswith("[MP-OVERFLOW] Query first is quarantined"))
    late = "[MP-INCOMPLETE] Query second did not count 3 of the 4 events it read (late)."
    silent = "[MP-EMPTY] Not one event of stream c has been read, so nothing can come out of third."
    end = lines.index("The results are incomplete:")
    for problem in (quarantined, late):
        found = [n for n, line in enumerate(lines) if line.startswith(problem)]
        assert len(found) == 2 and found[0] < end < found[1], lines
    assert [n > end for n, line in enumerate(lines) if line.startswith(silent)] == [True]
    assert "All rows are out" not in "\n".join(lines)
    assert "rows: first 0 (quarantined)  second 1  third 0  " in lines[end - 1], "rows that no sink got were counted"
    assert not list((tmp_path / "first").glob("*.json"))

    # a later run finds the quarantine, and that `c` was never read; the late events were those of the run before
    status, lines = millpond("run", file, "--once")
    assert (status, lines[-3:]) == (INCOMPLETE, ["The results are incomplete:", quarantined, lines[-1]])
    assert lines[-1].startswith(silent)


def test_files_that_disappear_after_they_were_listed(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [write(tmp_path / "in", f"{n}.json", [event(n, "a", 1)], written_at=n) for n in range(3)]
    (tmp_path / "in" / ".hidden").write_text("")
    epochs: list[Epoch] = []

    def on_epoch(epoch: Epoch) -> None:
        epochs.append(epoch)
        files[1].unlink(missing_ok=True)

    stream = spark.readStream.schema("ts timestamp, k string, v bigint").option("maxFilesPerTrigger", 1)
    rows = stream.json(str(tmp_path / "in")).where("v > 0")
    with caplog.at_level(logging.WARNING, "millpond.pond"), Pond(spark, tmp_path / "pond", on_epoch=on_epoch) as pond:
        pond.add("q", rows, sink=Sink("memory"))
        assert pond.run()
        assert sum(epoch.record.counts["*"].get("events", 0) for epoch in epochs if "*" in epoch.record.counts) == 2
        (problem,) = pond.problems(at_end=True)
        assert (problem.code, problem.failure) == ("MP-INCOMPLETE", True)
        assert f"1 file of stream {pond.streams[0].name} disappeared" in problem.text and str(files[1]) in problem.text
        assert caplog.messages == [str(problem)]
        assert [(one.unit, one.waiting) for one in pond.behind()] == [("files", 0)]


def test_a_file_dated_ahead_makes_spark_skip_later_files_and_is_reported(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = int(time.time()) - 1_700_000_000  # as `write` counts
    table = f"CREATE TABLE tx (ts TIMESTAMP, k STRING, v BIGINT) USING json OPTIONS (path '{tmp_path}/in'"
    for name, options, values in (("default", "", [1]), ("more", ", maxFileAge '365d'", [1, 2])):
        write(tmp_path / "in", "1.json", [event(1, "a", 1)], written_at=now + 30 * 86_400)
        with caplog.at_level(logging.WARNING, "millpond.pond"), Pond(spark, tmp_path / name) as pond:
            pond.load(f"{table}{options});")
            pond.add("q", "SELECT v FROM STREAM tx")
            pond.run()
            later = write(tmp_path / "in", "2.json", [event(2, "a", 2)], written_at=now)
            pond.run()
            assert sorted(row["v"] for row in pond.table("q").to_pylist()) == values
            (problem,) = pond.problems(at_end=True)
            assert (problem.code, problem.about, problem.failure) == ("MP-INCOMPLETE", "dates of tx", False)
            assert caplog.messages == [str(problem)]
        caplog.clear()
        later.unlink()
