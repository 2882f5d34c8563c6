"""Passes generated rows through the JVM, a shuffle and the Python workers, while a run waits for its first events.

In a new JVM the first epoch takes about seven times as long as the next one: Spark loads and compiles classes, and its
Python workers start and import. The rows have the columns that epochs read, so the same code copies them to Arrow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millpond.spark.session.arrow_rows import ArrowRows
from millpond.spark.session.worker import VersionChecked, worker_task

ROWS = 60_000
"""The number of generated rows: enough for Java's optimising compiler to compile the loops over rows."""

_TASKS = 2
_LOOK_SECONDS = 0.1
_JOBS = "millpond-warm-up"
_FAILURES = (PySparkException, Py4JError, ConnectionError)
_COUNTS = StructType([StructField("task", IntegerType()), StructField("rows", BinaryType())])
_TOTALS = StructType([StructField("rows", BinaryType())])

_warm: set[str] = set()
"""The ids of the Spark applications that are warm, or are being warmed up."""


class WarmUp:
    """Warms up a Spark application once, in a thread of its own that epochs do not wait for."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._spark: SparkSession | None = None

    def begin(self, frame: DataFrame) -> None:
        """Begin with the columns of a frame, unless this application has been warmed up before."""
        application = _application(frame.sparkSession)
        if application not in _warm:
            _warm.add(application)
            self._spark, work = frame.sparkSession, (frame.sparkSession, frame.schema)
            self._thread = threading.Thread(target=_warm_up, args=work, name=_JOBS, daemon=True)
            self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, if it has begun; False if `timeout` seconds were not enough."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def stop(self, timeout: float) -> None:
        """Cancel its job, and wait until it has ended, at most `timeout` seconds; the next run begins it again."""
        deadline = time.monotonic() + timeout
        with suppress(*_FAILURES):
            while self._spark is not None and not self.wait(0.0) and time.monotonic() < deadline:
                _warm.discard(_application(self._spark))
                self._spark.sparkContext.cancelJobGroup(_JOBS)  # again, as a job may start after it
                self.wait(_LOOK_SECONDS)


def _application(spark: SparkSession) -> str:
    return str(spark.sparkContext.applicationId)


def _warm_up(spark: SparkSession, columns: StructType) -> None:
    with suppress(*_FAILURES):  # it is only for speed; an epoch reports the failure
        spark.sparkContext.setJobGroup(_JOBS, "Warm-up of Spark")  # of this thread only
        pass_generated_rows(spark, columns)


def pass_generated_rows(spark: SparkSession, columns: StructType) -> int:
    """Pass rows with these columns through two stages of Python workers; return how many rows arrived."""
    made = spark.range(0, ROWS, 1, _TASKS).select(*(_generated(field.dataType).alias(field.name) for field in columns))
    counts = ArrowRows.of(made).map(_Counts(), _COUNTS).shuffled(_TASKS)
    return sum(int(rows) for (rows,) in counts.map(_Totals(), _TOTALS).collect())


def _generated(kind: DataType) -> Column:
    """A column of a type, with values where one can be made of a small number."""
    small = F.col("id") % 100
    if isinstance(kind, StructType) and kind.fields:
        return F.struct(*(_generated(field.dataType).alias(field.name) for field in kind.fields))
    if isinstance(kind, ArrayType):
        return F.array(_generated(kind.elementType))
    if isinstance(kind, MapType):
        key = _generated(kind.keyType)
        return F.when(key.isNotNull(), F.create_map(key, _generated(kind.valueType)))  # Spark refuses NULL as a key
    if isinstance(kind, BinaryType):
        return F.repeat(F.lit("x"), 200).cast(kind)
    if isinstance(kind, BooleanType):
        return small == 0
    if isinstance(kind, TimestampType):
        return F.timestamp_micros(small)
    return small.try_cast(kind) if isinstance(kind, NumericType | StringType) else F.lit(None).cast(kind)


class _Counts(VersionChecked):
    """Counts the rows of a partition, for the task of the next stage with its number."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with worker_task():
            for number, batch in enumerate(batches):
                count = [str(batch.num_rows).encode()]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number % _TASKS], pa.int32()), pa.array(count, pa.binary())], names=_COUNTS.names
                )


class _Totals(VersionChecked):
    """Adds the counts of a partition."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with worker_task():
            total = sum(int(rows) for batch in batches for rows in batch.column(1).to_pylist())
            yield pa.RecordBatch.from_arrays([pa.array([str(total).encode()], pa.binary())], names=_TOTALS.names)
