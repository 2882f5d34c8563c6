"""Latency of small epochs: files of 20,000 events arrive once a second; from arrival to committed result."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from engines import aggregation, stream_of
from pyspark.sql import SparkSession
from workload import Size, transactions

from millpond import Pond
from millpond.model.endpoints import Sink

EVENTS = 20_000
WARM_UP = 10


def latencies(
    spark: SparkSession, work: Path, queries: Sequence[tuple[int, int]], files: int = 70, place: Path | None = None
) -> list[float]:  # fmt: skip
    """Seconds from the arrival of a file to the commit of the epoch that read it, without warm-up.

    `place`: the new address of the pond; None: a folder below `work`.
    """
    parts = sorted(transactions(Size(EVENTS * files, files, 100_000)).glob("*.parquet"))
    source, folder = work / "arriving", work / "small" if place is None else place
    for path in (source, folder):
        shutil.rmtree(path, ignore_errors=True)
    source.mkdir()
    arrived: list[float] = []
    committed: list[float] = []

    def commit(epoch: object) -> None:
        taken = epoch.record.counts["*"].get("events", 0) // EVENTS  # type: ignore[attr-defined]
        committed.extend([time.perf_counter()] * taken)
        if len(committed) == files:
            running.stop()

    def arrive() -> None:
        for number, part in enumerate(parts):
            shutil.copy(part, source / f".{number}")
            (source / f".{number}").rename(source / f"{number:05}.parquet")
            arrived.append(time.perf_counter())
            time.sleep(1.0)

    schema = pq.read_schema(parts[0])
    pq.write_table(pa.Table.from_pylist([], schema), source / "00000.empty.parquet")
    with Pond(spark, folder, on_epoch=commit) as running:
        for number, (size, slide) in enumerate(queries):
            running.add(f"q{number}", aggregation(stream_of(spark, source), size, slide), sink=Sink("noop"))
        running.open()
        writer = threading.Thread(target=arrive, daemon=True)
        writer.start()
        running.run(once=False)
        writer.join()
    return [done - came for came, done in zip(arrived, committed, strict=True)][WARM_UP:]


def summary(seconds: Sequence[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    return float(np.percentile(seconds, 50)), float(np.percentile(seconds, 99))
