"""Calls Python with each batch of a streaming query, without computing an RDD of its rows before they are needed.

`foreachBatch` makes an RDD and a frame for each batch. Epochs whose files gather tasks read do not use them. Sources of
such files are postponed: Spark neither lists nor plans their files, as long as no task needs Spark's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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

    def without(self, sources: Collection[str], left_out: Collection[str]) -> DataFrame | None:
        """The rows as a frame, if those of `left_out`, and of no others among `sources`, are postponed in the batch."""
        return None

    def postpone(self, sources: Collection[str]) -> None:
        """Postpone these sources of files, and no others, from the next batch on."""


class _PostponedFiles:
    """The sources of files of one streaming query whose rows are left out of its batches; `names`: which ones."""

    def __init__(self, spark: SparkSession, names: Collection[str]) -> None:
        jvm: Any = spark._jvm
        self._java, self.names = jvm.millpond.PostponedFiles(), frozenset[str]()
        self.postpone(names)

    def of(self, frame: DataFrame) -> DataFrame:
        """The streaming frame with sources that can be postponed."""
        return ClassicFrame(self._java.of(frame._jdf), frame.sparkSession)

    def postpone(self, names: Collection[str]) -> None:
        """Postpone these sources from the next batch on, and no others."""
        if self.names != frozenset(names):
            self._java.postpone("\n".join(names))
            self.names = frozenset(names)

    def complete(self, batch: JavaObject) -> JavaObject:
        """The batch with all of its rows."""
        return self._java.complete(batch)


class _SinkRows(BatchRows):
    """The rows of a batch as Spark passes it to our sink, which no other plan may contain.

    `tables`: the broadcasts of joined tables, which all batches of a query share. `files`: what the batch leaves out.
    """

    def __init__(self, batch: DataFrame, tables: JavaObject, files: _PostponedFiles) -> None:
        super().__init__(batch)
        self._tables, self._files, self._postponed = tables, files, files.names

    @cached_property
    def frame(self) -> DataFrame:
        """The rows as a frame; its RDD is computed at the first use."""
        return self._frame_of(self._complete, self._plan)

    @property
    def arrow_rows(self) -> ArrowRows:
        """The rows for functions on Arrow batches, without a frame, which Spark would analyse and plan once more."""
        if not load_class(self.session, arrow_rows.CLASS):
            return ArrowRows.of(self.frame)
        return ArrowRows.of(self._frame, self._plan)

    def without(self, sources: Collection[str], left_out: Collection[str]) -> DataFrame | None:
        if self._postponed.intersection(sources) != {*left_out}:
            return None
        return self._frame_of(self._frame._jdf, self._tables.plan(self._frame._jdf))

    def postpone(self, sources: Collection[str]) -> None:
        self._files.postpone(sources)

    @cached_property
    def _complete(self) -> JavaObject:
        return self._files.complete(self._frame._jdf) if self._postponed else self._frame._jdf

    @cached_property
    def _plan(self) -> JavaObject:
        return self._tables.plan(self._complete)

    def _frame_of(self, batch: JavaObject, plan: JavaObject) -> DataFrame:
        jvm: Any = self.session._jvm
        return ClassicFrame(jvm.millpond.EpochSink.frame(batch, plan), self.session)


Call: TypeAlias = Callable[[BatchRows, int], None]
"""The function that Spark calls for each batch, with the batch's number."""


def calling(frame: DataFrame, call: Call, postponed: Collection[str] = ()) -> DataStreamWriter:
    """The writer of a streaming query over `frame` that calls a function with each batch.

    `postponed`: the sources of files whose rows are left out at first, until they are needed.
    """
    spark = frame.sparkSession
    if not load_class(spark, SINK):  # the driver's class loader accepts no further jars
        return frame.writeStream.foreachBatch(lambda made, n: call(BatchRows(made), n))
    key, jvm = uuid4().hex, spark._jvm
    assert jvm is not None
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    files = _PostponedFiles(spark, postponed)
    jvm.millpond.EpochSink.keep(key, _Function(spark, call, files))
    return files.of(frame).writeStream.format(SINK).option("function", key)


class _Function:
    """Implements Spark's Java interface for functions in Python that take a batch."""

    def __init__(self, spark: SparkSession, call: Call, files: _PostponedFiles) -> None:
        self._spark, self._call, self._files = spark, call, files
        self._session: SparkSession | None = None
        self._tables: JavaObject | None = None

    def call(self, batch: JavaObject, number: int) -> None:
        """Spark calls this for each batch; all batches of a query have one session."""
        if self._session is None or self._tables is None:
            jvm: Any = self._spark._jvm
            self._session = SparkSession(self._spark.sparkContext, batch.sparkSession())
            self._tables = jvm.millpond.TableBroadcasts()
        self._call(_SinkRows(ClassicFrame(batch, self._session), self._tables, self._files), number)

    class Java:
        """The interface's name, for py4j."""

        implements = ("org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchFunction",)
