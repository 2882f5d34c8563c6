"""Supports keyed tables in plans: a placeholder during the analysis, and a lookup by key during the read.

For Spark a keyed table is an empty batch relation that carries the table's description. A join with it on its key
columns is computed by a function of the keys alone, so the rows of streams need not leave the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import BooleanType, DataType, StructField, StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.keyed_table import KeyedTable, check_keyed
from millpond.model.stream import Field
from millpond.runtime.joins.lookup_rows import KeyedReader, OpenRows, defaults_of
from millpond.spark.catalyst.private_names import JavaObject, id_of, items, kind_of, nodes_of, outputs
from millpond.spark.session.worker import worker_task
from millpond.spark.sources.arrow_functions import MAPPED, function_in

OpenAt: TypeAlias = Callable[[str | None], OpenRows]
"""Maps an address (None for the pond's own store) to a function that opens the rows there."""

ALIVE = "_alive"
"""The column of a join after the table's own columns; it is NULL if the row that was found makes the event dead."""

T = TypeVar("T")
_TRANSPARENT = ("SubqueryAlias", "ResolvedHint", "Project")


class Keyed(NamedTuple):
    """The description that the placeholder relation of a keyed table carries."""

    reader: KeyedReader
    schema: StructType

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function that Spark gets when a query is analysed; it never runs."""
        raise NotImplementedError(self.reader.table.name)


class KeyedPartner(NamedTuple):
    """The row of a keyed table that is joined to events of a plan.

    It has the row's attributes, their names, the table's column of each, and the column that is TRUE if there is a
    partner. The last attribute is NULL if the row makes the event dead.
    """

    keyed: Keyed
    columns: tuple[str, ...]
    attributes: list[JavaObject]
    names: tuple[str, ...]
    marker: JavaObject
    prefix: str = "join"

    @property
    def can_dead_letter(self) -> bool:
        """Whether a row of the table can make an event dead."""
        table = self.keyed.reader.table
        return "dead-letter" in (table.missing, table.wrong_type, table.vanished)


def keyed_table(name: str, schema: str, options: Mapping[str, str]) -> tuple[KeyedTable, StructType]:
    """A table from its columns in SQL and its options, and its columns as a schema of Spark.

    Raises:
        QueryTypeError: a column or an option is not valid.
    """
    try:
        columns = DataType.fromDDL(schema)
    except Exception as error:
        cure = "Write 'id BIGINT, name STRING'."
        raise QueryTypeError(f"The columns of {name} are not valid: {error}", cure) from error
    if not isinstance(columns, StructType) or not columns.fields:
        raise QueryTypeError(f"{name} lists no columns.", "Write 'id BIGINT, name STRING'.")
    names = [field.name.lower() for field in columns.fields]
    if len(set(names)) < len(names):
        raise QueryTypeError(f"Two columns of {name} have the same name.", "Give each its own name.")
    given = {key.lower(): value for key, value in options.items()}
    if not given.get("key"):
        raise QueryTypeError(f"{name} has no key.", "Add OPTIONS (key 'user:{id}').")
    plain = StructType([StructField(field.name, field.dataType) for field in columns.fields])
    fields = tuple(Field(field.name, field.dataType.simpleString()) for field in plain.fields)
    more = {key.replace(".", "_"): given[key].lower() for key in ("missing", "wrong.type", "vanished") if key in given}
    form = given.get("type", "hash").lower()
    table = KeyedTable(name, given["key"], fields, form, defaults=given.get("defaults", "{}"), **more)
    check_keyed(table)
    defaults_of(table)
    return table, plain


def keyed_frame(
    opens: OpenAt, spark: SparkSession, name: str, schema: str | None, options: Mapping[str, str]
) -> DataFrame:
    """The placeholder frame of a keyed table in joins (see `MakeTable`); `opens` opens its rows.

    Raises:
        QueryTypeError: a column or an option is not valid.
    """
    table, columns = keyed_table(name, schema or "", options)
    address = {key.lower(): value for key, value in options.items()}.get("address")
    keyed = Keyed(KeyedReader(table, opens(address)), columns)
    return spark.range(0).mapInArrow(keyed, columns)  # type: ignore[arg-type]


def keyed_in(plan: JavaObject) -> tuple[Keyed, tuple[str, ...]] | None:
    """The keyed table in a batch plan, and the table's column for each column of the plan; None for other plans.

    Raises:
        UnsupportedQuery: the plan does more than selecting columns of the table.
    """
    layers, node = [], plan
    while kind_of(node) in _TRANSPARENT:
        layers += [node] if kind_of(node) == "Project" else []
        node = node.child()
    keyed = _carried(node)
    if keyed is None:
        if (inside := next(filter(None, map(_carried, nodes_of(node))), None)) is not None:
            raise UnsupportedQuery(
                f"The rows of {inside.reader.table.name} are only known by key, so {kind_of(node)} has none.",
                "Join the stream with the table itself; put conditions into WHERE.",
            )
        return None
    known = dict(zip(map(id_of, outputs(node)), keyed.schema.names, strict=True))
    for layer in layers[::-1]:
        for column in items(layer.projectList()):
            source = column.child() if kind_of(column) == "Alias" else column
            if kind_of(source) != "AttributeReference":
                raise UnsupportedQuery(
                    f"{column.name()} is computed below the join with {keyed.reader.table.name}.",
                    "Compute it in the query's own SELECT.",
                )
            known[id_of(column)] = known[id_of(source)]
    return keyed, tuple(known[id_of(column)] for column in outputs(plan))


def lookup_keys(keyed: Keyed, equal: Mapping[str, list[T]], more: bool) -> list[T]:
    """The stream's sides of the equalities of a join, in the order of the table's key columns.

    `equal` gives the stream's sides for each column; `more` says that there are other conditions.

    Raises:
        UnsupportedQuery: the join is on anything else than each key column once.
    """
    table = keyed.reader.table
    if more or {name: len(some) for name, some in equal.items()} != dict.fromkeys(table.keys, 1):
        names = " AND ".join(f"{table.name}.{name} = …" for name in table.keys)
        raise UnsupportedQuery(
            f"{table.name} is joined by its key alone, with values of the key columns' own types.",
            f"Write ON {names}, cast the stream's side if need be, and put other conditions into WHERE.",
        )
    return [equal[name][0] for name in table.keys]


def _carried(node: JavaObject) -> Keyed | None:
    function = function_in(node) if kind_of(node) == MAPPED else None
    return function if isinstance(function, Keyed) else None


def met(keyed: Keyed, keys: list[Column]) -> Column:
    """A struct for the values of key columns: the table's row that they find.

    `c0` is TRUE if there is a partner, `c1` is TRUE if the partner does not make the event dead, and the table's
    columns follow.
    """
    kinds = [BooleanType(), BooleanType(), *(field.dataType for field in keyed.schema.fields)]
    made = StructType([StructField(f"c{place}", kind) for place, kind in enumerate(kinds)])
    # Otherwise Spark may call the function twice, once for a filter that it pushes down.
    function = UserDefinedFunction(
        _Meeting(keyed.reader), made, keyed.reader.table.name, PythonEvalType.SQL_SCALAR_ARROW_UDF, False
    )
    return function(*keys)


class _Meeting:
    """The function that Spark's workers run to look up rows."""

    def __init__(self, reader: KeyedReader) -> None:
        self._reader = reader

    def __call__(self, *keys: pa.Array) -> pa.StructArray:
        with worker_task():
            columns = self._reader(*keys).flatten()
        return pa.StructArray.from_arrays(columns, names=[f"c{place}" for place in range(len(columns))])
