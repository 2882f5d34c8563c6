"""Computes what stateless queries over one stream share: filters of rows and transferred columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from millpond.model.expressions import Column, Expression, Foreign, Literal, may_raise, walk
from millpond.model.selection import Selection, is_inner
from millpond.model.types import INTEGERS, is_decimal

RowFilter = tuple[Expression | None, tuple[Expression, ...]]
"""The rows that a query takes: the first expression is TRUE (None: for all rows) and none of the others raises."""

_WIDTHS = {"boolean": 0.125, "float": 4.0, "date": 4.0, "string": 16.0}
_WIDTHS |= {kind: bits / 8 for kind, bits in INTEGERS.items()}


def row_filter_of(selection: Selection) -> RowFilter:
    """The rows that the query takes. Queries with equal filters share one bit of each row."""
    raising = (item.expression for item in selection.output if may_raise(item.expression))
    return selection.where, tuple(dict.fromkeys(raising))


def row_filters_of(selections: Iterable[Selection]) -> list[RowFilter]:
    """The distinct filters of queries, in the order in which a packet has their bits."""
    return list(dict.fromkeys(map(row_filter_of, selections)))


def moved_selections(selections: Iterable[Selection], compared: Collection[str] = ()) -> tuple[Selection, ...]:
    """The stateless queries whose rows are transferred: those with a sink other than `noop` or whose rows are read by
    other queries, and `compared` ones.

    The rows of the other queries are only counted by the task that reads them.
    """
    return tuple(one for one in selections if not one.sink.goes_nowhere or is_inner(one.name) or one.name in compared)


def carried(selections: Sequence[Selection]) -> tuple[Expression, ...]:
    """The expressions transferred per row: the columns that the outputs read, or the distinct outputs if narrower."""
    outputs = tuple(dict.fromkeys(item.expression for selection in selections for item in selection.output))
    columns = tuple(dict.fromkeys(leaf for output in outputs for leaf in leaves_of(output)))
    computed = tuple(output for output in outputs if not isinstance(output, Literal))
    return min(columns, computed, key=row_bytes)


def leaves_of(expression: Expression) -> tuple[Column | Foreign, ...]:
    """The distinct columns that an expression reads, including projected ones."""
    return tuple(dict.fromkeys(node for node in walk(expression) if isinstance(node, Column | Foreign)))


def row_bytes(expressions: Iterable[Expression]) -> float:
    """The approximate size of a row of these expressions in bytes; for text and nested values it is a fixed guess."""
    return sum(16.0 if is_decimal(one.type) else _WIDTHS.get(one.type, 8.0 if "<" not in one.type else 32.0)
               for one in expressions)  # fmt: skip
