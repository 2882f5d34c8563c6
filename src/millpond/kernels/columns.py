"""Defines `Values`, a column with masks of its NULLs and failed rows, and converts it from and to Arrow.

Integers, times and booleans become int64, int64 and bool arrays; floats keep their width; decimals become 128-bit
integers; text stays Arrow.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import WIDE
from millpond.model.types import (
    INTEGERS,
    INTERVAL,
    TIMES,
    digits_of,
    element_of,
    is_array,
    is_decimal,
    is_known,
    is_map,
    is_struct,
    map_parts,
    struct_fields,
)

Array: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]

ARROW_TYPES: dict[str, pa.DataType] = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
    INTERVAL: pa.duration("us"),
}
"""The Arrow types in which SQL types are stored and published; `arrow_type` also supports decimals and nested types."""

NO_ROWS = np.zeros((), bool)
"""A zero-dimensional mask that is false in every row."""


class Values(NamedTuple):
    """Values of one expression for all rows: `data` (NumPy, or Arrow for text), `null` and `error` masks.

    All three broadcast against each other; a constant is zero-dimensional. Where `error` is set, the expression raised
    an error for that row, and `data` and `null` are arbitrary. Where `null` is set, `data` is arbitrary.
    """

    data: Any
    null: Mask = NO_ROWS
    error: Mask = NO_ROWS

    def is_true(self) -> Mask:
        """The rows where a boolean is TRUE (neither NULL nor an error)."""
        chosen: Mask = self.data & ~self.null & ~self.error
        return chosen


def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type in which values of SQL type `kind` are stored and published.

    Raises:
        KeyError: the type is not storable.
    """
    if is_decimal(kind):
        return pa.decimal128(*digits_of(kind))
    if is_array(kind):
        return list_of(arrow_type(element_of(kind)))
    if is_struct(kind):
        return pa.struct([(field.name, arrow_type(field.type)) for field in struct_fields(kind)])
    return pa.map_(*map(arrow_type, map_parts(kind))) if is_map(kind) else ARROW_TYPES[kind]


def list_of(kind: pa.DataType) -> pa.DataType:
    """The Arrow type of arrays of a type; the element field has the same name as in Spark."""
    return pa.list_(pa.field("element", kind))


def with_null_rule(args: list[Values], data: Any, raised: Mask = NO_ROWS) -> Values:
    """The result of an operator that is NULL where an operand is NULL.

    An operand to the right of a NULL operand is not evaluated, so its error has no effect. `raised`: errors of the
    operator itself, which have no effect where an operand is NULL.
    """
    null, error = NO_ROWS, NO_ROWS
    for value in args:
        error = error | (value.error & ~null)
        null = null | value.null
    return Values(data, null, error | (raised & ~null))


def from_arrow(column: pa.Array, kind: str) -> Values:
    """The values of an Arrow column of SQL type `kind`; timestamps in µs, dates in days.

    Columns of unsupported types, which are only passed through, are not converted.
    """
    null = null_mask(column)
    if kind == "string" or not is_known(kind):
        return Values(column, null)
    if kind == "boolean":
        return Values(pc.fill_null(column, False).to_numpy(zero_copy_only=False), null)
    if kind in INTEGERS or kind in TIMES:
        return Values(_buffer(column).astype(np.int64, copy=False), null)
    return Values(_buffer(column), null)


def attempted(column: pa.Array, kind: str) -> Values:
    """The values of a `struct<v: kind>` that is NULL where evaluating `v` raised."""
    inner = from_arrow(column.field("v"), kind)
    raised = np.asarray(column.is_null()) if column.null_count else np.zeros((), bool)
    return inner._replace(null=inner.null & ~raised, error=raised)


def unnested(arrays: Values, kind: str, rows: int) -> tuple[npt.NDArray[np.int64], dict[str, Values]]:
    """For each element of arrays of structs, the position of its array, and its fields, as `each.i`."""
    column = to_arrow(arrays, kind, rows)
    elements, fields = pc.list_flatten(column), struct_fields(element_of(kind))
    values = {
        f"each.{place}": from_arrow(pc.struct_field(elements, [place]), field.type)
        for place, field in enumerate(fields)
    }
    return np.asarray(pc.list_parent_indices(column)).astype(np.int64), values


def as_attempted(values: Values, kind: str, rows: int) -> pa.Array:
    """Values as a column that `attempted` reads."""
    column = to_arrow(values._replace(null=values.null | values.error), kind, rows)
    raised = pa.array(np.broadcast_to(values.error, (rows,))) if values.error.any() else None
    return pa.StructArray.from_arrays([column], names=["v"], mask=raised)


def null_mask(column: pa.Array) -> Mask:
    """True where the Arrow column is NULL; zero-dimensional if there are no NULLs."""
    if column.null_count == 0:
        return NO_ROWS
    mask: Mask = pc.is_null(column).to_numpy(zero_copy_only=False)
    return mask


def _buffer(column: pa.Array) -> Array:
    """The value buffer of a fixed-width column without a copy; values at NULLs are arbitrary."""
    kind = column.type
    width: Any
    if pa.types.is_decimal(kind):
        width = WIDE
    elif pa.types.is_floating(kind):
        width = np.float32 if kind.bit_width == 32 else np.float64
    else:
        width = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}[kind.bit_width]
    data = np.frombuffer(column.buffers()[1], dtype=width) if len(column) else np.empty(0, width)
    return data[column.offset : column.offset + len(column)]


def to_arrow(values: Values, kind: str, rows: int) -> pa.Array:
    """Converts values to an Arrow array of SQL type `kind` with `rows` rows; constants are repeated."""
    null = np.broadcast_to(values.null, (rows,)) if values.null.any() else None
    if kind == "string" or not is_known(kind):
        column = values.data
        if isinstance(column, pa.Scalar):
            column = pa.array([column.as_py()] * rows, column.type)
        return column if null is None else pc.if_else(pa.array(~null), column, pa.scalar(None, column.type))
    data = np.ascontiguousarray(np.broadcast_to(values.data, (rows,)))
    target = arrow_type(kind)
    if is_decimal(kind):
        valid = None if null is None else pa.array(~null).buffers()[1]
        return pa.Array.from_buffers(target, rows, [valid, pa.py_buffer(data)])
    if kind in TIMES:
        data = data.astype(np.int32) if kind == "date" else data
        return pa.array(data, mask=null).view(target) if null is None else _masked(data, null, target)
    return pa.array(data, mask=null).cast(target)


def _masked(data: Array, null: Mask, target: pa.DataType) -> pa.Array:
    return pa.array(data, mask=null).cast(target)
