"""Runs functions of Arrow batches between a source and its queries: `RecordBatch -> RecordBatch`.

A function is identified by its module and name, and by a digest of its module's source or a version that its owner
states. Spark's workers import and run it; its code is not stored. Rows for other forms of the source bypass it. If a
batch raises, it is retried in halves down to single rows: rows that raise are dead, and the others continue.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, DataType, StructField, StructType

from millpond.errors import QueryTypeError, UnsupportedQuery, of_machine
from millpond.spark.catalyst.private_names import JavaObject
from millpond.spark.catalyst.user_scalars import command_of

BatchFunction: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


class ArrowFunction(NamedTuple):
    """A function of batches: its stream, its identity, and its input and output columns."""

    stream: str
    function: BatchFunction
    reference: str
    digest: str
    takes: tuple[str, ...]
    makes: StructType

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function that Spark gets when a query is analysed; it never runs."""
        raise NotImplementedError(self.reference)


def batches_of(
    stream: str, function: BatchFunction, takes: tuple[str, ...], schema: str | StructType, version: str | None = None
) -> ArrowFunction:  # fmt: skip
    """Describe a function for use in a pond.

    Raises:
        UnsupportedQuery: workers cannot import it.
        QueryTypeError: the schema is not valid, or names a column twice.
    """
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    home = sys.modules.get(module)
    if home is None or module == "__main__" or getattr(home, name, None) is not function:
        raise UnsupportedQuery(
            f"The function {name or function!r} cannot be imported by its name.",
            "Define it at the top of a module that workers can import.",
        )
    try:
        makes = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    except Exception as error:
        raise QueryTypeError(f"The schema of {name} is not valid: {error}", "Write 'a INT, b STRING'.") from error
    if not isinstance(makes, StructType):
        raise QueryTypeError(f"The schema of {name} is a type, not a list of columns.", "Write 'a INT, b STRING'.")
    names = [field.name for field in makes.fields]
    if not names or len({one.lower() for one in names}) < len(names):
        raise QueryTypeError(f"The schema of {name} has no column, or one twice.", "Give each its own name.")
    known = f"version {version}" if version is not None else inspect.getsource(home)
    digest = hashlib.sha256(known.encode()).hexdigest()[:16]
    nullable = StructType([StructField(field.name, field.dataType) for field in makes.fields])
    return ArrowFunction(stream, function, f"{module}:{name}", digest, takes, nullable)


def batches_in(leaf: JavaObject) -> ArrowFunction:
    """The `ArrowFunction` in a `MapInArrow` of an analysed plan.

    Raises:
        QueryTypeError: its input is not a stream.
        UnsupportedQuery: it was not made by Millpond.
    """
    if not leaf.isStreaming():
        raise QueryTypeError("What the query reads is no stream, but a table.", "Join a stream with it.")
    function = function_in(leaf)
    if not isinstance(function, ArrowFunction):
        raise UnsupportedQuery(
            "A mapInArrow of your own has no name that survives a restart.", "Use pond.map_batches(…)."
        )
    return function


def function_in(node: JavaObject) -> object:
    """The function of a `MapInArrow` of an analysed plan."""
    # Unpickling is safe: this process made the bytes, from the function that its program passed to Spark.
    sent = CPickleSerializer().loads(command_of(node.functionExpr()))  # type: ignore[no-untyped-call]
    return sent[0] if isinstance(sent, tuple) else None


def mapped(frame: DataFrame, batches: ArrowFunction, number: int | None) -> DataFrame:
    """The frame with the function's output columns and a column that is TRUE if it ran; columns are found by position.

    The first columns are the function's input. With a `number`, the next column says which copy a row is, and the
    function runs only on rows with this number.
    """
    fields = [*frame.schema.fields, *batches.makes.fields, StructField("ran", BooleanType())]
    schema = StructType([StructField(f"c{i}", field.dataType) for i, field in enumerate(fields)])
    plain = frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))
    return plain.mapInArrow(_Mapping(batches, number), schema)


class _Mapping:
    """Runs a function over the rows that are meant for it; other rows pass unchanged."""

    def __init__(self, batches: ArrowFunction, number: int | None) -> None:
        self._batches = batches
        self._number = number
        self._makes = to_arrow_schema(batches.makes, timezone="UTC")

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        takes = len(self._batches.takes)
        for batch in batches:
            mine = batch
            if self._number is not None:
                meant = np.asarray(batch.column(takes)) == self._number
                mine, others = batch.filter(pa.array(meant)), batch.filter(pa.array(~meant))
                if others.num_rows:
                    made = [pa.nulls(others.num_rows, kind) for kind in self._makes.types]
                    yield _batch([*others.columns, *made, pa.nulls(others.num_rows, pa.bool_())])
            if mine.num_rows:
                own = pa.RecordBatch.from_arrays(mine.columns[:takes], names=list(self._batches.takes))
                for made, ran in self._tried(own):
                    yield self._whole(batch.schema, made, ran)

    def _whole(self, schema: pa.Schema, made: pa.RecordBatch, ran: bool) -> pa.RecordBatch:
        columns = [pa.nulls(made.num_rows, kind) for kind in schema.types]
        if self._number is not None:
            columns[len(self._batches.takes)] = pa.array([self._number] * made.num_rows, pa.int32())
        flag = pa.array([True if ran else None] * made.num_rows, pa.bool_())
        return _batch([*columns, *made.columns, flag])

    def _tried(self, rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """The function's result for the rows, with a row without values for each row for which it raises."""
        try:
            made = self._checked(self._batches.function(rows))
        except QueryTypeError:
            raise
        except Exception as error:  # whatever the exception is, one of these rows caused it
            known = of_machine(error) if isinstance(error, OSError | MemoryError) else None
            if known is not None:
                raise known from error
            if rows.num_rows == 1:
                nothing = [pa.nulls(1, kind) for kind in self._makes.types]
                yield pa.RecordBatch.from_arrays(nothing, schema=self._makes), False
                return
            half = rows.num_rows // 2
            yield from self._tried(rows.slice(0, half))
            yield from self._tried(rows.slice(half))
            return
        if made.num_rows:
            yield made, True

    def _checked(self, made: object) -> pa.RecordBatch:
        if not isinstance(made, pa.RecordBatch) or set(made.schema.names) != set(self._makes.names):
            got = made.schema.names if isinstance(made, pa.RecordBatch) else type(made).__name__
            raise QueryTypeError(
                f"{self._batches.reference} gave {got}, not a RecordBatch of {', '.join(self._makes.names)}.",
                "Give what its schema says.",
            )
        return made.select(self._makes.names).cast(self._makes)


def _batch(columns: list[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])


MAPPED = "MapInArrow"
