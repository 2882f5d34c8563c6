"""Converts a trial's rows and the user's expected rows to comparable values, and to text for messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from millpond.errors import QueryTypeError
from millpond.model.types import WINDOW
from millpond.testing.read_rows import Misfit, value_of


def expected_value(query: str, name: str, kind: str | None, value: Any) -> Any:
    """Converts an expected value to the form of `plain_rows`; `kind` None: the query has no such column.

    Raises:
        QueryTypeError: the value is not of its column's type.
    """
    if kind is None:
        return value  # a surplus column, which the difference will report
    try:
        return value_of(kind, value)
    except Misfit as error:
        raise QueryTypeError(f"{value!r} cannot be {name} of {query}.", f"It must be {error}.") from None


def plain_rows(tables: Sequence[pa.Table]) -> list[dict[str, Any]]:
    """Rows with times as microseconds or days, also within windows, in the form of `value_of`."""
    rows: list[dict[str, Any]] = []
    for table in tables:
        columns = [_ticks(column.combine_chunks()).to_pylist() for column in table.columns]
        rows += [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows


def _ticks(array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64())
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32())
    if pa.types.is_struct(array.type):
        fields = [array.type.field(i).name for i in range(array.type.num_fields)]
        return pa.StructArray.from_arrays([_ticks(part) for part in array.flatten()], fields, mask=array.is_null())
    return array


def as_written(rows: Iterable[Mapping[str, Any]], types: Mapping[str, str]) -> list[dict[str, Any]]:
    """Raw rows with their times as text, for messages."""
    return [{name: _written(types.get(name), value) for name, value in row.items()} for row in rows]


def _written(kind: str | None, value: Any) -> Any:
    if value is None or kind not in (WINDOW, "timestamp", "timestamp_ntz", "date"):
        return value
    if isinstance(value, Mapping):
        return {part: _written("timestamp", moment) for part, moment in value.items()}
    unit = pa.int32() if kind == "date" else pa.int64()
    moment = pa.array([value], unit).view(pa.date32() if kind == "date" else pa.timestamp("us"))
    return moment.cast(pa.string())[0].as_py().removesuffix(".000000")


def listed(tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    """Rows as Python values, sorted by their columns from left to right, NULL first, NaN last."""
    rows = [row for table in tables for row in table.to_pylist()]
    return sorted(rows, key=lambda row: [_rank(value) for value in row.values()])


def _rank(value: Any) -> tuple[Any, ...]:
    """The sort key of a column's value: NULL, then values, then NaN."""
    if value is None:
        return (0,)
    if isinstance(value, Mapping):
        return (1, [_rank(part) for part in value.values()])
    if isinstance(value, list | tuple):
        return (1, [_rank(part) for part in value])
    return (1, value) if value == value else (2,)
