"""Makes structs of columns, and reads their fields."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from millpond.kernels.columns import NO_ROWS, Values, arrow_type, from_arrow, to_arrow
from millpond.model.expressions import Call, Literal


def made_struct(node: Call, args: Sequence[Values], rows: int) -> Values:
    """The struct of the fields after the first argument, NULL where the first is not TRUE.

    It raises where one of its fields does.
    """
    present, *fields = args
    error = NO_ROWS
    for value in args:
        error = error | value.error
    columns = [
        to_arrow(value._replace(null=value.null | value.error), arg.type, rows)
        for value, arg in zip(fields, node.args[1:], strict=True)
    ]
    return Values(struct_column(columns, node.type, rows), ~present.is_true(), error)


def struct_column(columns: Sequence[pa.Array], kind: str, rows: int) -> pa.Array:
    """An Arrow column of a struct's type from the columns of its fields."""
    target = arrow_type(kind)
    parts = [column.cast(field.type) for column, field in zip(columns, target, strict=True)]
    if not parts:
        return pa.array([{}] * rows, target)
    return pa.StructArray.from_arrays(parts, fields=list(target))


def field_of(node: Call, whole: Values) -> Values:
    """The field of a struct at a constant position; NULL where the struct is."""
    position = node.args[1]
    assert isinstance(position, Literal)
    found = from_arrow(pc.struct_field(whole.data, [int(str(position.value))]), node.type)
    return found._replace(null=found.null | whole.null, error=whole.error)
