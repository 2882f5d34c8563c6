"""The engines under comparison: a pond, the floor under any pond, and N plain Structured Streaming queries."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
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
from millpond.spark.driver.epochs import Epoch
from millpond.spark.session.batch_limits import LIMIT

INSTANCES = 2

OUTPUT = "q int, customer long, we long, n long, s double, m double"


class Run(NamedTuple):
    """One pass: seconds of each epoch (or of the whole, where there is but one figure), rows of each epoch.

    `steps`: seconds of each epoch by step, of a pond.
    """

    seconds: list[float]
    rows: list[int]
    steps: Sequence[Mapping[str, float]] = ()

    @property
    def total(self) -> float:
        """Seconds in all."""
        return sum(self.seconds)


MakeQuery = Callable[[DataFrame], DataFrame]
"""A query, given the stream."""


def stream_of(spark: SparkSession, folder: Path, files: int = 1) -> DataFrame:
    """The transactions as a stream, so many files per epoch."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files)
    return reader.parquet(str(folder)).withWatermark("ts", "0 seconds")


def aggregation(stream: DataFrame, size: int, slide: int, keys: Sequence[str] = ("customer",)) -> DataFrame:
    """Count, sum and maximum per key and window (seconds)."""
    return stream.groupBy(F.window("ts", f"{size} seconds", f"{slide} seconds"), *keys).agg(
        F.count("*").alias("n"), F.sum("amount").alias("s"), F.max("amount").alias("m")
    )


def aggregations(windows: Sequence[tuple[int, int]], having: str | None = None) -> list[MakeQuery]:
    """One aggregation per window; `having` may hold back its rows."""

    def query_of(size: int, slide: int) -> MakeQuery:
        whole = partial(aggregation, size=size, slide=slide)
        return whole if having is None else lambda stream: whole(stream).where(having)

    return [query_of(size, slide) for size, slide in windows]


NO_ROW = "n < 0"
"""A HAVING that no row passes: all is computed, nothing emitted."""


def pond(spark: SparkSession, source: Path, folder: Path, queries: Sequence[MakeQuery]) -> Run:
    """All queries in one pond, rows to noop, every epoch committed durably; whole passes, begin to commit."""
    shutil.rmtree(folder, ignore_errors=True)
    marks, rows, steps = [], [], []

    def committed(epoch: Epoch) -> None:
        marks.append(perf_counter())
        counts = epoch.record.counts
        rows.append(sum(found.get("rows", 0) for found in counts.values()))
        python = {name: counts["*"][f"{name}_us"] / 1e6 / INSTANCES for name in ("gather", "fold")}
        rest = {"job": epoch.job_seconds, "commit": epoch.seconds - epoch.job_seconds}
        steps.append({**rest, **python})

    with Pond(spark, folder, on_epoch=committed) as running:
        stream = stream_of(spark, source)
        for number, make in enumerate(queries):
            running.add(f"q{number:04}", make(stream), sink=Sink("noop"))
        running.open()
        began = perf_counter()
        running.run()
    return Run(np.diff([began, *marks]).tolist(), rows, steps)


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


def floor(spark: SparkSession, source: Path, folder: Path, rows: Sequence[int], columns: Sequence[str] = PRUNED) -> Run:
    """The same reading of the same pruned columns, events passed to Python and dropped, as many rows returned; batches
    have no limit of bytes, as those of a pond from its second epoch on.
    """
    shutil.rmtree(folder, ignore_errors=True)
    marks: list[float] = []
    expected = list(rows)

    def epoch(frame: DataFrame, number: int) -> None:
        packets = frame.mapInArrow(_Drop(INSTANCES), "p int, packet binary").repartitionById(INSTANCES, "p")
        per_instance = (expected[number] if number < len(expected) else 0) // INSTANCES
        packets.mapInArrow(_Return(per_instance), OUTPUT).write.format("noop").mode("overwrite").save()
        marks.append(perf_counter())

    spark.conf.set(LIMIT, 2**31 - 1)
    pruned = stream_of(spark, source).select(*columns)
    writer = pruned.writeStream.foreachBatch(epoch).option("checkpointLocation", str(folder))
    began = perf_counter()
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.conf.unset(LIMIT)
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
