"""A function that receives the rows of a query: given before the pond is opened, and again after a restart."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.errors import ChangeRefused, QueryTypeError
from millpond.model.endpoints import Sink

STREAM = "CREATE TABLE tx (ts TIMESTAMP, k STRING) USING json OPTIONS (path '{}', maxFilesPerTrigger '1')"
SELECT = """
    SELECT k, count(*) AS n FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY k, window(ts, '1 minute')
"""


def write(folder: Path, minute: int, keys: str) -> None:
    lines = [json.dumps({"ts": f"2026-01-01T00:{minute:02}:00Z", "k": key}) for key in keys]
    part = folder / f"{minute}.json"
    part.write_text("\n".join(lines))
    os.utime(part, (part.stat().st_mtime + minute - 9,) * 2)  # Spark reads by this time


def test_a_function_takes_rows_by_epoch_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    calls: list[tuple[int, list[str]]] = []

    def take(rows: pa.RecordBatch, epoch: int) -> None:
        calls.append((epoch, rows["k"].to_pylist()))

    (tmp_path / "in").mkdir()
    write(tmp_path / "in", 0, "aab")
    write(tmp_path / "in", 1, "c")
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(STREAM.format(tmp_path / "in"))
        pond.add("q", SELECT)
        pond.add("written", SELECT, sink=Sink("json", str(tmp_path / "out")))
        with pytest.raises(QueryTypeError, match="The rows of written go to json"):
            pond.foreach("written", take)
        pond.foreach("q", take)
        pond.run()
        with pytest.raises(ChangeRefused, match="go somewhere already"):
            pond.foreach("q", take)
    assert [sorted(keys) for _, keys in calls] == [["a", "b"]]
    write(tmp_path / "in", 2, "d")
    with Pond(spark, tmp_path / "pond") as pond, pytest.raises(QueryTypeError, match=r"pond\.foreach\('q', function\)"):
        pond.run()
    with Pond(spark, tmp_path / "pond") as pond:
        pond.foreach("q", take)
        pond.run()
    assert [sorted(keys) for _, keys in calls] == [["a", "b"], ["c"]]
    assert calls[0][0] < calls[1][0]
