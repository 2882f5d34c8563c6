"""A steady load of purchases, and whoever takes it: files that come at a fixed pace, one window of state for each hour.

State is filled by one large file per hour of event time, each with every customer once, so that a query of hourly
windows with a long delay keeps a row for each of them; then small files come at a fixed pace.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

SPARE = 8
"""Columns that nobody reads, until a query comes that does."""

SCHEMA = "ts timestamp, customer bigint, country string, amount double, " + ", ".join(
    f"spare{i} double" for i in range(SPARE)
)
HOUR = 3600
KEPT = 750
"""The number of files that stay, five minutes of them: each batch lists the folder, which takes time per file."""

BEGIN = 1_700_000_400 // HOUR * HOUR
PATIENCE = "10 days"
"""The delay of the query that keeps all state."""

COUNTRIES = np.array(["gr", "de", "fr", "es"])


class Load(NamedTuple):
    """How much: customers, events of a small file and seconds between two of these."""

    customers: int
    events: int
    every_s: float


class Size(NamedTuple):
    """How much: the load, MB of state, seconds before each change and after it, how often each is made; for plain Spark
    the large files of state and how often it is restarted; seconds of the windows of queries that are not changed; so
    many epochs write little in a row when what filling the state has left to merge is merged; the least number of
    complete epochs before and after a change, and of plain Spark's batches before a restart (two or more).
    """

    load: Load
    state_mb: float
    before_s: float
    after_s: float
    times: int
    plain_files: int
    restarts: int
    others: tuple[int, ...]
    settled: int
    epochs: int = 2
    batches: int = 4


class Arrived(NamedTuple):
    """A file that came: when, and how many events all files have had by then."""

    at: float
    events: int


class Arrivals:
    """Writes the files; `begin` lets small ones come until `end`, at a fixed pace by the clock `now`."""

    def __init__(self, folder: Path, load: Load, now: Callable[[], float] = perf_counter) -> None:
        self.folder, self.arrived = folder, list[Arrived]()
        self._load, self._now, self._dice = load, now, np.random.default_rng(1)
        self._files = self._events = 0
        self._time = float(BEGIN)
        self._stopped, self._going = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._come, daemon=True)
        folder.mkdir(parents=True)
        pq.write_table(self._table(np.zeros(0), np.zeros(0, np.int64)), folder / "none.parquet")

    def hour(self) -> int:
        """Add a file with every customer once, in a separate hour; returns the number of events until now."""
        who = self._dice.permutation(self._load.customers)
        return self._add(self._table(self._time + np.sort(self._dice.random(len(who))) * HOUR, who), HOUR)

    def begin(self) -> None:
        """Let small files come, for the first time or again."""
        self._going.set()
        if not self._thread.is_alive():
            self._thread.start()

    def hold(self) -> None:
        """Let none come until `begin`."""
        self._going.clear()

    def end(self) -> None:
        """No more files."""
        self._stopped.set()
        self._going.set()
        if self._thread.is_alive():
            self._thread.join()

    def _come(self) -> None:
        due = self._now()
        while not self._stopped.is_set():
            if not self._going.is_set():
                self._going.wait()
                due = self._now()
                continue
            count, pace = self._load.events, self._load.every_s
            who = self._dice.integers(0, self._load.customers, count)
            self._add(self._table(self._time + np.sort(self._dice.random(count)) * pace, who), pace)
            (self.folder / f"{self._files - KEPT:06}.parquet").unlink(missing_ok=True)
            due = max(due + pace, self._now() - 10 * pace)
            while (left := due - self._now()) > 0:
                sleep(left)

    def _add(self, table: pa.Table, seconds: float) -> int:
        hidden = self.folder / f".{self._files}"
        pq.write_table(table, hidden, row_group_size=max(1, len(table) // 4))
        hidden.rename(self.folder / f"{self._files:06}.parquet")
        self._files, self._events, self._time = self._files + 1, self._events + len(table), self._time + seconds
        self.arrived.append(Arrived(perf_counter(), self._events))
        return self._events

    def _table(self, times: np.ndarray, who: np.ndarray) -> pa.Table:
        count = len(times)
        columns = {
            "ts": pa.array((times * 1e6).astype(np.int64), pa.timestamp("us", "UTC")),
            "customer": pa.array(who.astype(np.int64)),
            "country": pa.array(COUNTRIES[who % len(COUNTRIES)]),
            "amount": pa.array(np.round(self._dice.lognormal(3, 1, count), 2)),
        }
        zeros = pa.array(np.zeros(count))
        return pa.table(columns | {f"spare{i}": zeros for i in range(SPARE)})


class Plain:
    """The same questions as queries of plain Structured Streaming, one each, with state in RocksDB.

    `on_batch` is called with a query's name when a batch of it has ended.
    """

    def __init__(
        self, spark: SparkSession, source: Path, folder: Path, on_batch: Callable[[str], None] = lambda _name: None
    ) -> None:
        self._spark, self._source, self._folder, self._on_batch = spark, source, folder, on_batch
        self.ended: dict[str, list[float]] = {}
        self.running: dict[str, StreamingQuery] = {}
        spark.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )

    def start(self, name: str, made: Callable[[DataFrame], DataFrame]) -> None:
        """Start a query, from its checkpoint if there is one."""
        ended = self.ended.setdefault(name, [])

        def batch(frame: DataFrame, _number: int) -> None:
            frame.write.format("noop").mode("overwrite").save()
            ended.append(perf_counter())
            self._on_batch(name)

        rows = made(self._spark.readStream.schema(SCHEMA).parquet(str(self._source)))
        writer = rows.writeStream.foreachBatch(batch).outputMode("append").trigger(processingTime="0 seconds")
        self.running[name] = writer.option("checkpointLocation", str(self._folder / name)).start()

    def stop(self, name: str) -> None:
        """Stop it."""
        self.running.pop(name).stop()

    def repartition(self, name: str, partitions: int) -> None:
        """Change the number of partitions of its state, while it is stopped, all its input taken."""
        self._spark._streamingCheckpointManager.repartition(str(self._folder / name), partitions, False)

    def wait(self, name: str, batches: int) -> None:
        """Wait until it has ended a number of further batches."""
        wanted = len(self.ended[name]) + batches
        while len(self.ended[name]) < wanted:
            if not self.running[name].isActive:
                raise RuntimeError(f"{name} has ended: {self.running[name].exception()}")
            sleep(0.02)


def hourly(least: float = 0.0) -> Callable[[DataFrame], DataFrame]:
    """Count, sum and maximum per customer and hour, none of which ever leaves."""

    def made(stream: DataFrame) -> DataFrame:
        grouped = stream.withWatermark("ts", PATIENCE).where(F.col("amount") > least)
        return grouped.groupBy(F.window("ts", "1 hour"), "customer").agg(
            F.count("*").alias("n"), F.sum("amount").alias("total"), F.max("amount").alias("most")
        )

    return made


def by_country(size: int) -> Callable[[DataFrame], DataFrame]:
    """Count and sum per country and window of `size` seconds."""

    def made(stream: DataFrame) -> DataFrame:
        grouped = stream.withWatermark("ts", "1 second").groupBy(F.window("ts", f"{size} seconds"), "country")
        return grouped.agg(F.count("*").alias("n"), F.sum("amount").alias("total"))

    return made
