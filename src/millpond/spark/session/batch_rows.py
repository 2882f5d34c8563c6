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

from millpond.spark.driver_classes.loading import load_class
from millpond.spark.session import arrow_rows
from millpond.spark.session.arrow_rows import ArrowRows

SINK = "millpond.EpochSink"


class BatchRows:
    """The rows of a batch; `session` is the clone of the user's session that reads them."""

    def __init__(self, frame: DataFrame) -> None:
        self.session, self._frame = frame.sparkSession, frame

    @property
    def frame(self) -> DataFrame:
        """The rows as a frame."""
        return self._frame

    @property
    def arrow_rows(self) -> ArrowRows:
        """The rows for functions on Arrow batches."""
        return ArrowRows.of(self._frame)


class _SinkRows(BatchRows):
    """The rows of a batch as Spark passes it to our sink, which no other plan may contain.

    `tables`: the broadcasts of joined tables, which all batches of a query share.
    """

    def __init__(self, batch: DataFrame, tables: JavaObject) -> None:
        super().__init__(batch)
        self._tables = tables

    @cached_property
    def frame(self) -> DataFrame:
        """The rows as a frame; its RDD is computed at the first use."""
        assert self.session._jvm is not None
        return ClassicFrame(self.session._jvm.millpond.EpochSink.frame(self._frame._jdf, self._plan), self.session)

    @property
    def arrow_rows(self) -> ArrowRows:
        """The rows for functions on Arrow batches, without a frame, which Spark would analyse and plan once more."""
        if not load_class(self.session, arrow_rows.CLASS):
            return ArrowRows.of(self.frame)
        return ArrowRows.of(self._frame, self._plan)

    @cached_property
    def _plan(self) -> JavaObject:
        return self._tables.plan(self._frame._jdf)


Call: TypeAlias = Callable[[BatchRows, int], None]
"""The function that Spark calls for each batch, with the batch's number."""


def calling(frame: DataFrame, call: Call) -> DataStreamWriter:
    """The writer of a streaming query over `frame` that calls a function with each batch."""
    spark = frame.sparkSession
    if not load_class(spark, SINK):  # the driver's class loader accepts no further jars
        return frame.writeStream.foreachBatch(lambda made, n: call(BatchRows(made), n))
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
        self._tables: JavaObject | None = None

    def call(self, batch: JavaObject, number: int) -> None:
        """Spark calls this for each batch; all batches of a query have one session."""
        if self._session is None or self._tables is None:
            jvm: Any = self._spark._jvm
            self._session = SparkSession(self._spark.sparkContext, batch.sparkSession())
            self._tables = jvm.millpond.TableBroadcasts()
        self._call(_SinkRows(ClassicFrame(batch, self._session), self._tables), number)

    class Java:
        """The interface's name, for py4j."""

        implements = ("org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchFunction",)
