"""Batches of small rows have no limit in bytes, batches of large rows have one; both are computed."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kit.inputs.committed_epochs import committed
from millpond import Pond
from millpond.log.records import EpochRecord
from millpond.spark.session.batch_limits import LIMIT, BatchLimits

ROWS, LONG = 4_500, 150_000
"""A batch of this many rows does not fit into the memory of these tests; in the file it is one text."""


def write(folder: Path, name: str, text: str, rows: int) -> None:
    folder.mkdir(exist_ok=True)
    column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
    times = pa.array(range(rows), pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"ts": times, "v": column}), folder / f"{name}.parquet")


def test_rows_of_hundreds_of_kilobytes_are_answered_and_so_are_small_ones_after_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[str | None] = []
    limit = BatchLimits.limit

    def noted(self: BatchLimits, session: SparkSession) -> None:
        limit(self, session)
        set_to.append(session.conf.get(LIMIT))

    monkeypatch.setattr(BatchLimits, "limit", noted)
    write(tmp_path / "in", "a", "x" * LONG, ROWS)
    for at, name in enumerate("bcd"):
        write(tmp_path / "in", name, "y", 20_000)
        os.utime(tmp_path / "in" / f"{name}.parquet", (at + 2e9, at + 2e9))
    options = f"path '{tmp_path / 'in'}', maxFilesPerTrigger '1'"
    stream = f"CREATE TABLE tx (ts TIMESTAMP, v STRING) USING parquet OPTIONS ({options});"
    query = """
        CREATE STREAMING TABLE answer USING parquet TBLPROPERTIES ('path' = '{}') AS SELECT v, count(*) AS n
        FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 1 HOUR GROUP BY v, window(ts, '1 hour')
    """
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(stream + query.format(tmp_path / "out"))
        pond.run(drain=True)
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted((len(row["v"]), row["n"]) for row in rows) == [(1, 60_000), (LONG, ROWS)]
    bounded = spark.newSession().conf.get(LIMIT)
    assert set_to[:4] == [bounded, bounded, str(2**31 - 1), str(2**31 - 1)]


def test_a_limit_is_set_where_rows_are_small_and_parse_and_a_users_limit_stays(spark: SparkSession) -> None:
    def epoch(events: int, size: int, dead: int = 0) -> EpochRecord:
        counts = {"*": {"events": events, "bytes_read": size}, "q": {"dead": dead}}
        return EpochRecord(n=1, writer="w", prev="", at=0, spark_query="", batch=0, start={}, end={}, counts=counts)

    session = spark.newSession()
    bounded, batches = session.conf.get(LIMIT), BatchLimits(session)
    for record, lifted in (
        (None, False), (epoch(10, 1_000), True), (epoch(0, 0), True), (epoch(10, 100_000), False),
        (epoch(10, 1_000), True), (epoch(10, 1_000, 1), False),
    ):  # fmt: skip
        if record is not None:
            batches.committed(committed(record))
        batches.limit(session)
        assert (session.conf.get(LIMIT) != bounded) == lifted
    yours = spark.newSession()
    yours.conf.set(LIMIT, 1 << 20)
    batches = BatchLimits(yours)
    batches.committed(committed(epoch(10, 1_000)))
    batches.limit(yours)
    assert yours.conf.get(LIMIT) == str(1 << 20)
