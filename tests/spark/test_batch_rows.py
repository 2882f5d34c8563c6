"""What an epoch asks of the JVM, and that Spark computes the rows of a batch only where they are needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kit.costs.jvm_calls import jvm_calls
from millpond import Pond
from millpond.runtime.scheduling import small_epochs
from millpond.spark.driver.tasks import DELTAS, PACKETS
from millpond.spark.session import arrow_rows, batch_rows
from millpond.spark.session.arrow_rows import ArrowRows
from millpond.spark.session.batch_rows import BatchRows, calling
from millpond.spark.session.session import reading_session
from millpond.spark.session.warm_up import ROWS, pass_generated_rows

QUERY = """
CREATE TABLE tx (c STRING, ts TIMESTAMP, v BIGINT) USING parquet OPTIONS (path '{folder}/in', maxFilesPerTrigger 1);
CREATE STREAMING TABLE sums AS SELECT c, window(ts, '1 minute') AS w, sum(v) AS s
  FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 1 SECOND GROUP BY ALL;
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(4):
        times = pa.array([1_700_000_000_000_000 + 30_000_000 * number + i for i in range(4)], pa.timestamp("us", "UTC"))
        table = pa.table({"c": ["a", "b", None, "b"], "ts": times, "v": [number] * 4})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
        os.utime(tmp_path / "in" / f"{number}.parquet", (1_700_000_000 + number,) * 2)  # Spark reads the oldest first
    return tmp_path


def test_an_epoch_of_files_makes_few_calls_and_no_rdd_of_sparks_rows(spark: SparkSession, folder: Path) -> None:
    sizes: list[int] = []
    with jvm_calls() as sent, Pond(spark, folder / "pond", on_epoch=lambda _: sizes.append(len(sent))) as pond:
        pond.load(QUERY.format(folder=folder))
        pond.run(once=True)
    assert len(sizes) == 4
    assert any("EpochSink" in command for command in sent)
    assert not [command for command in sent if command.startswith("c\nz:millpond.EpochSink\nframe")]
    assert not [command for command in sent if "\ncomplete\n" in command], "Spark has planned no files"
    calls = [after - before for before, after in pairwise(sizes)]
    assert min(calls) < 9, calls


def test_small_epochs_have_one_task_once_a_few_are_measured(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_epochs, "MEASURED", 2)
    monkeypatch.setattr(small_epochs, "MOST_WORK_US", 10**9)
    monkeypatch.setattr(small_epochs, "MOST_PEAK_US", 10**9)
    counts: list[dict[str, int]] = []
    with Pond(spark, folder / "pond", on_epoch=lambda epoch: counts.append(epoch.record.counts["*"])) as pond:
        stream, _, query = QUERY.format(folder=folder).partition(";")
        pond.load(stream + ";")
        pond.add("sums", query.partition(" AS ")[2].strip().rstrip(";"))
        pond.run(once=True, drain=True)
        steps = {(event.args["record"], event.name) for event in pond.trace().trace_events if event.ph == "X"}
        rows = pond.table("sums").to_pylist()
    assert [bool(of["bytes_moved"]) for of in counts[:4]] == [True, True, False, False]
    first = min(record for record, _ in steps)
    assert [(record, "stage fold") in steps for record in range(first, first + 4)] == [True, True, False, False]
    assert (first + 3, "stage gather") in steps
    assert sorted((row["c"] or "", row["s"]) for row in rows) == [
        ("", 1), ("", 5), ("a", 1), ("a", 5), ("b", 2), ("b", 10)]  # fmt: skip


def operators(rows: ArrowRows) -> str:
    """Spark's physical operators that compute the rows."""
    field = rows._rows.getClass().getDeclaredField("plan")
    field.setAccessible(True)
    return str(field.get(rows._rows).treeString())


@pytest.mark.parametrize(
    ("sink", "postponed"), [(batch_rows.SINK, ()), (batch_rows.SINK, ("tx",)), ("millpond.Other", ())]
)
def test_a_batch_has_its_rows_whether_our_sink_can_be_loaded_or_not(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch, sink: str, postponed: tuple[str, ...]
) -> None:
    ours = sink == batch_rows.SINK
    monkeypatch.setattr(batch_rows, "SINK", sink)
    reader = reading_session(spark).readStream.schema("c STRING, v LONG").format("parquet").name("tx")
    found: list[tuple[int, int]] = []

    def threes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = [b"%d" % value for value in batch.column(1).to_pylist() if value == 3]
            yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())] * 2, names=DELTAS.names)

    def call(rows: BatchRows, number: int) -> None:
        planned = rows._frame._jdf.queryExecution().logical().toString()
        assert not ours or ("parquet" in planned) != bool(postponed), "Spark plans no files that are postponed"
        with jvm_calls() as sent:
            batch = rows.arrow_rows
            mapped = batch.map(threes, DELTAS).collect()
        assert not ours or not any("EpochSink" in command for command in sent), "no frame was made"
        assert not ours or "Scan rows" not in operators(batch), "each row would be copied once more"
        assert batch.single().map(threes, DELTAS).collect() == mapped
        assert rows.session is not spark and rows.frame is rows.frame
        found.append((number, rows.frame.where("v = 3").count()))
        assert mapped == [(b"3", b"3")] * found[-1][1]

    writer = calling(reader.option("maxFilesPerTrigger", 2).load(str(folder / "in")), call, postponed)
    query = writer.option("checkpointLocation", str(folder / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert [number for number, _ in found] == [0, 1] and sum(count for _, count in found) == 4


@pytest.mark.parametrize("name", [arrow_rows.CLASS, "millpond.Other"])
def test_rows_are_mapped_moved_and_collected_whether_our_class_can_be_loaded_or_not(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(arrow_rows, "CLASS", name)
    large, every = b"x" * (2 << 20), bytes(range(256))
    files = set(os.listdir(spark.sparkContext._temp_dir))

    def packets(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            columns = [pa.array([n % 2 for n in numbers], pa.int32()), pa.array([b"%d" % n for n in numbers])]
            yield pa.RecordBatch.from_arrays(columns, names=PACKETS.names)

    def deltas(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = b",".join(sorted(packet for batch in batches for packet in batch.column(1).to_pylist()))
        yield pa.RecordBatch.from_arrays([pa.array([every]), pa.array([found + b" %d" % len(large)])], DELTAS.names)

    numbers = ArrowRows.numbers(spark, 6, 3).union(ArrowRows.of(spark.range(6, 8)))
    moved = numbers.map(packets, PACKETS).shuffled(2)
    assert moved.map(deltas, DELTAS).collect() == [(every, b"0,2,4,6 2097152"), (every, b"1,3,5,7 2097152")]
    if name != "millpond.Other":
        assert set(os.listdir(spark.sparkContext._temp_dir)) == files, "no function is left on the driver's disk"
    single = numbers.single().map(packets, PACKETS).map(deltas, DELTAS).collect()
    assert single == [(every, b"0,1,2,3,4,5,6,7 2097152")]
    assert {tuple(row) for row in moved.frame().collect()} == {(n % 2, b"%d" % n) for n in range(8)}
    assert ArrowRows.numbers(spark, 0, 1).map(packets, PACKETS).shuffled(2).map(deltas, DELTAS).collect() == (
        [(every, b" 2097152")] * 2
    )
    assert ArrowRows.numbers(spark, 0, 1).map(packets, DELTAS).collect() == []


def test_generated_rows_of_any_columns_pass_two_stages_of_workers(spark: SparkSession) -> None:
    types = (
        "a BIGINT, b TINYINT, c DECIMAL(2, 2), d STRING, e BINARY, f BOOLEAN, g TIMESTAMP, h DATE, i ARRAY<DOUBLE>,"
        " j MAP<STRING, INT>, k STRUCT<x: STRUCT<y: STRING>, z: TIMESTAMP_NTZ>, l INTERVAL DAY TO SECOND, m VARIANT,"
        " n MAP<DATE, INT>, o MAP<DECIMAL(2, 2), DATE>, p ARRAY<MAP<TIMESTAMP_NTZ, INT>>, q MAP<STRUCT<x: DATE>, DATE>"
    )
    columns = StructType.fromDDL(types)
    assert isinstance(columns, StructType)
    assert pass_generated_rows(reading_session(spark), columns) == ROWS
