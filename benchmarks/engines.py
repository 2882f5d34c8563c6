"""The engines under comparison: a pond, the floor under any pond, and N plain Structured Streaming queries."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from workload import PRUNED, SCHEMA

from millpond import Pond
from millpond.model.endpoints import Sink

OUTPUT = "q int, customer long, we long, n long, s double, m double"


class Run(NamedTuple):
    """One pass: seconds of each epoch (or of the whole, where there is but one figure), rows of each epoch."""

    seconds: list[float]
    rows: list[int]

    @property
    def total(self) -> float:
        """Seconds in all."""
        return sum(self.seconds)


Shape = Callable[[DataFrame, int, int], DataFrame]


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    """The transactions as a stream, one file per epoch."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder)).withWatermark("ts", "0 seconds")


def aggregation(stream: DataFrame, size: int, slide: int) -> DataFrame:
    """Count, sum and maximum per customer and window (seconds)."""
    return stream.groupBy(F.window("ts", f"{size} seconds", f"{slide} seconds"), "customer").agg(
        F.count("*").alias("n"), F.sum("amount").alias("s"), F.max("amount").alias("m")
    )


def silent(stream: DataFrame, size: int, slide: int) -> DataFrame:
    """The same, computed in full, but no row passes HAVING: what a query costs, emission aside."""
    return aggregation(stream, size, slide).where("n < 0")


def pond(
    spark: SparkSession, source: Path, folder: Path, queries: Sequence[tuple[int, int]], shape: Shape = aggregation
) -> Run:
    """All queries in one pond, rows to noop, every epoch committed durably; whole passes, begin to commit."""
    shutil.rmtree(folder, ignore_errors=True)
    marks, rows = [], []

    def committed(epoch: object) -> None:
        marks.append(perf_counter())
        rows.append(sum(counts.get("rows", 0) for counts in epoch.record.counts.values()))  # type: ignore[attr-defined]

    with Pond(spark, folder, on_epoch=committed) as running:
        stream = stream_of(spark, source)
        for number, (size, slide) in enumerate(queries):
            running.add(f"q{number}", shape(stream, size, slide), sink=Sink("noop"))
        running.open()
        began = perf_counter()
        running.run()
    return Run(np.diff([began, *marks]).tolist(), rows)


class _Drop:
    """Takes events and drops them; one row per instance goes on."""

    def __init__(self, instances: int) -> None:
        self._instances = instances

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        places = pa.array(range(self._instances), pa.int32())
        yield pa.RecordBatch.from_arrays([places, pa.array([b"x"] * self._instances)], names=["p", "packet"])


class _Return:
    """Returns as many rows as the pond emitted."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        for first in range(0, self._rows, 100_000):
            count = min(100_000, self._rows - first)
            whole, real = pa.array(np.arange(count)), pa.array(np.zeros(count))
            columns = [pa.array(np.zeros(count, np.int32)), whole, whole, whole, real, real]
            yield pa.RecordBatch.from_arrays(columns, names=["q", "customer", "we", "n", "s", "m"])


def floor(spark: SparkSession, source: Path, folder: Path, rows: Sequence[int], instances: int) -> Run:
    """The same reading of the same pruned columns, events passed to Python and dropped, as many rows returned."""
    shutil.rmtree(folder, ignore_errors=True)
    marks: list[float] = []
    expected = list(rows)

    def epoch(frame: DataFrame, number: int) -> None:
        packets = frame.mapInArrow(_Drop(instances), "p int, packet binary").repartitionById(instances, "p")
        per_instance = (expected[number] if number < len(expected) else 0) // instances
        packets.mapInArrow(_Return(per_instance), OUTPUT).write.format("noop").mode("overwrite").save()
        marks.append(perf_counter())

    pruned = stream_of(spark, source).select(*PRUNED)
    writer = pruned.writeStream.foreachBatch(epoch).option("checkpointLocation", str(folder))
    began = perf_counter()
    writer.trigger(availableNow=True).start().awaitTermination()
    return Run(np.diff([began, *marks]).tolist(), expected)


STATE = {
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


def plain_spark(
    spark: SparkSession, source: Path, folder: Path, queries: Sequence[tuple[int, int]], state: str
) -> float:
    """Seconds of N streaming queries of plain Spark, side by side, on the same files."""
    shutil.rmtree(folder, ignore_errors=True)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE[state])
    running = []
    began = perf_counter()
    for number, (size, slide) in enumerate(queries):
        rows = aggregation(stream_of(spark, source), size, slide).writeStream.format("noop").outputMode("append")
        rows = rows.option("checkpointLocation", str(folder / str(number)))
        running.append(rows.trigger(availableNow=True).start())
    for query in running:
        query.awaitTermination()
    return perf_counter() - began
