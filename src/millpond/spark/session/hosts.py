"""Checks whether every executor can access a pond's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from millpond.spark.masters import is_local_master
from millpond.spark.session.worker import VersionChecked
from millpond.tokens import writer_token


def is_local(spark: SparkSession) -> bool:
    """Whether all tasks run in the driver's process."""
    return is_local_master(str(spark.sparkContext.master))


def is_on_every_host(spark: SparkSession, folder: Path) -> bool:
    """Whether every executor registered until now sees the pond's folder; tasks check executors that register later."""
    if is_local(spark):
        return True
    probe = folder / f".probe-{writer_token()}"
    probe.touch()
    try:
        tasks = max(spark.sparkContext.defaultParallelism, 2) * 2
        seen = spark.range(tasks, numPartitions=tasks).mapInArrow(_Sees(str(probe)), "sees boolean").toArrow()
    finally:
        probe.unlink()
    return all(seen.column(0).to_pylist())


class _Sees(VersionChecked):
    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            there = [os.path.exists(self._path)] * batch.num_rows
            yield pa.RecordBatch.from_arrays([pa.array(there)], names=["sees"])
