"""Runs Python functions on Arrow batches of Spark's rows, with one call to the JVM for each step, and without a plan.

Each epoch has the same few steps. Spark would analyse, optimize and describe a plan of them every time, and PySpark
makes about thirty calls to the JVM for each `mapInArrow`.
"""

from __future__ import annotations

import struct
from binascii import a2b_base64
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from py4j.java_gateway import JavaObject
from py4j.protocol import BYTES_TYPE, register_output_converter
from pyspark import SparkContext
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import _wrap_function

from millpond.spark.driver_classes.loading import load_class

CLASS = "millpond.ArrowRows"

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_LENGTH = struct.Struct(">i")

_numbers: WeakKeyDictionary[SparkSession, dict[tuple[int, int], JavaObject]] = WeakKeyDictionary()
"""The rows that `ArrowRows.numbers` has made in a session: Spark makes the RDD of an operator only once."""

# py4j's own converter calls a function of Python for each byte.
register_output_converter(BYTES_TYPE, lambda text, _client: bytearray(a2b_base64(text)))


class ArrowRows:
    """Rows of Spark; nothing is computed before `collect`."""

    def __init__(self, spark: SparkSession, rows: Any) -> None:
        self._spark, self._rows = spark, rows

    @classmethod
    def numbers(cls, spark: SparkSession, end: int, parts: int) -> ArrowRows:
        """The numbers below `end`, in `parts` partitions."""
        if not load_class(spark, CLASS):
            return _Frames(spark, spark.range(0, end, 1, parts))
        known = _numbers.setdefault(spark, {})
        if (end, parts) not in known:
            known[end, parts] = _class(spark._jvm, "ArrowRows").numbers(spark._jsparkSession, end, parts)
        return cls(spark, known[end, parts])

    @classmethod
    def of(cls, frame: DataFrame, plan: JavaObject | None = None) -> ArrowRows:
        """The rows of a frame; `plan`: computes them, in place of the frame's own, where our class can be loaded."""
        spark = frame.sparkSession
        if not load_class(spark, CLASS):
            return _Frames(spark, frame)
        return cls(spark, _class(spark._jvm, "ArrowRows").of(frame._jdf, *(() if plan is None else (plan,))))

    def map(self, function: Function, columns: StructType, *, barrier: bool = False) -> ArrowRows:
        """The batches that a function makes of those of each partition; `barrier`: all its tasks run at one time."""
        context = self._spark.sparkContext
        pickled: Callable[[object], bytes] = CloudPickleSerializer().dumps  # type: ignore[no-untyped-call]
        # PySpark would write a large one to a file, which stays on the driver's disk until Spark ends.
        command = pickled((function, columns))
        made = _environment(context, (*context.environment.items(), *(context._python_includes or ())))
        name, types = type(function).__name__, _json(columns)
        return ArrowRows(self._spark, self._rows.map(name, made, command, types, barrier))

    def union(self, other: ArrowRows) -> ArrowRows:
        """These rows and others with the same columns."""
        return ArrowRows(self._spark, self._rows.union(other._rows))

    def shuffled(self, partitions: int) -> ArrowRows:
        """The rows by the number of a partition in their first column."""
        return ArrowRows(self._spark, self._rows.shuffled(partitions))

    def single(self) -> ArrowRows:
        """The rows in one partition, so that one task computes them."""
        return ArrowRows(self._spark, self._rows.single())

    def on(self, hosts: Sequence[str]) -> ArrowRows:
        """The same partitions, of which partition i is preferably computed on host i, if hosts are given."""
        if not any(hosts):
            return self
        return ArrowRows(self._spark, self._rows.on(_class(self._spark._jvm, "PreferredHosts")("\n".join(hosts))))

    def frame(self) -> DataFrame:
        """The rows as a frame."""
        return ClassicFrame(self._rows.frame(), self._spark)

    def collect(self) -> list[tuple[bytes, ...]]:
        """Run a job and return all rows; their columns are binary."""
        data = memoryview(self._rows.collect())
        width, values, place = _LENGTH.unpack_from(data)[0], list[bytes](), _LENGTH.size
        while place < len(data):
            size = _LENGTH.unpack_from(data, place)[0]
            place += _LENGTH.size
            values.append(bytes(data[place : place + size]))
            place += size
        return list(zip(*(values[column::width] for column in range(width)), strict=True))


class _Frames(ArrowRows):
    """The same by frames, where the driver's class loader accepts no further jars."""

    def map(self, function: Function, columns: StructType, *, barrier: bool = False) -> ArrowRows:
        return _Frames(self._spark, self._rows.mapInArrow(function, columns, barrier=barrier))

    def union(self, other: ArrowRows) -> ArrowRows:
        return _Frames(self._spark, self._rows.union(other._rows))

    def shuffled(self, partitions: int) -> ArrowRows:
        return _Frames(self._spark, self._rows.repartitionById(partitions, self._rows.columns[0]))

    def single(self) -> ArrowRows:
        return _Frames(self._spark, self._rows.coalesce(1))

    def on(self, hosts: Sequence[str]) -> ArrowRows:
        return self  # no host is preferred, see `TaskHosts`

    def frame(self) -> DataFrame:
        frame: DataFrame = self._rows
        return frame

    def collect(self) -> list[tuple[bytes, ...]]:
        columns = self._rows.toArrow().columns
        return list(zip(*(column.to_pylist() for column in columns), strict=True))


@lru_cache(8)
def _class(jvm: Any, name: str) -> Any:
    """A class of ours. To look it up, the JVM first searches all jars for a class with the name of the package."""
    return getattr(jvm.millpond, name)


@lru_cache(1)
def _environment(context: SparkContext, _variables_and_includes: tuple[Any, ...]) -> JavaObject:
    """A function of Spark with the environment of all functions."""
    return _wrap_function(context, None, StructType())  # type: ignore[arg-type]


@lru_cache(16)
def _json(columns: StructType) -> str:
    return columns.json()
