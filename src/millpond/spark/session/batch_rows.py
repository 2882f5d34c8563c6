"""Calls Python with each batch of a streaming query, without computing an RDD of its rows before they are needed.

`foreachBatch` makes an RDD and a frame for each batch. Epochs whose files gather tasks read do not use them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeAlias
from uuid import uuid4

from py4j.java_gateway import JavaObject
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millpond.spark.driver_classes.loading import is_loaded
from millpond.spark.session import arrow_rows
from millpond.spark.session.arrow_rows import ArrowRows

SINK = "millpond.EpochSink"


class BatchRows:
    """The rows of a batch; `session` is the clone of the user's session that reads them.

    `batch`: the batch as Spark passes it to our sink, which no other plan may contain.
    """

    def __init__(self, session: SparkSession, make: Callable[[], DataFrame], batch: DataFrame | None = None) -> None:
        self.session, self._make, self._batch = session, make, batch

    @cached_property
    def frame(self) -> DataFrame:
        """The rows as a frame; its RDD is computed at the first use."""
        return self._make()

    @property
    def arrow_rows(self) -> ArrowRows:
        """The rows for functions on Arrow batches, without a frame, which Spark would analyse and plan once more."""
        if self._batch is None or not is_loaded(self.session, arrow_rows.CLASS):
            return ArrowRows.of(self.frame)
        return ArrowRows.of(self._batch)


Call: TypeAlias = Callable[[BatchRows, int], None]
"""The function that Spark calls for each batch, with the batch's number."""


def calling(frame: DataFrame, call: Call) -> DataStreamWriter:
    """The writer of a streaming query over `frame` that calls a function with each batch."""
    spark = frame.sparkSession
    if not is_loaded(spark, SINK):  # the driver's class loader accepts no further jars
        return frame.writeStream.foreachBatch(lambda made, n: call(BatchRows(made.sparkSession, lambda: made), n))
    key, jvm = uuid4().hex, spark._jvm
    assert jvm is not None
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    jvm.millpond.EpochSink.keep(key, _Function(spark, call))
    return frame.writeStream.format(SINK).option("function", key)


class _Function:
    """Implements Spark's Java interface for functions in Python that take a batch."""

    def __init__(self, spark: SparkSession, call: Call) -> None:
        self._spark, self._call = spark, call
        self._session: SparkSession | None = None

    def call(self, batch: JavaObject, number: int) -> None:
        """Spark calls this for each batch; all batches of a query have one session."""
        jvm: Any = self._spark._jvm
        session = self._session
        if session is None:
            session = self._session = SparkSession(self._spark.sparkContext, batch.sparkSession())
        rows = BatchRows(
            session, lambda: ClassicFrame(jvm.millpond.EpochSink.rows(batch), session), ClassicFrame(batch, session)
        )
        self._call(rows, number)

    class Java:
        """The interface's name, for py4j."""

        implements = ("org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchFunction",)
