"""Reads functions of the rows of a window in an order: ranks, shares, and values of other rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import UNSET

from millpond.errors import UnsupportedQuery
from millpond.model.aggregates import IGNORE_NULLS, NEIGHBOURS, RUNNING_TOTAL, Aggregate
from millpond.model.expressions import Expression, Literal, literal
from millpond.model.types import EVENT_TIME_TYPES, WINDOW
from millpond.spark.analysis.aggregates import aggregate_of
from millpond.spark.analysis.expressions import Translator
from millpond.spark.analysis.frames import constant_default, whole
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, items, kind_of, text_of, type_of

NAMES = {
    "RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank", "PercentRank": "percent_rank",
    "CumeDist": "cume_dist", "NTile": "ntile", "Lag": "lag", "Lead": "lead", "NthValue": "nth_value",
}  # fmt: skip
"""Spark's expression -> the function of the model."""

_ENDS = {"First": 1, "Last": -1}
"""Spark's aggregates that are the first or last value of their frame -> the number of this value."""

_TIED = ("rank", "dense_rank", "percent_rank", "cume_dist")
"""Functions that treat rows with equal values of ORDER BY alike."""

_FRAMES = {
    ("RangeFrame", "UnboundedPreceding", "CurrentRow"): "peers",
    ("RowFrame", "UnboundedPreceding", "CurrentRow"): "rows",
    ("RangeFrame", "UnboundedPreceding", "UnboundedFollowing"): "partition",
    ("RowFrame", "UnboundedPreceding", "UnboundedFollowing"): "partition",
}
"""The frames of `nth_value`, `first_value` and `last_value` that are supported."""

_TOTALS = ("sum", "avg", "count", "min", "max")
"""The aggregates that are supported over the rows up to each one in an order."""


def is_ordered(node: JavaObject) -> bool:
    """Whether a `Window` node has a function of the rows of a window in an order, or of all rows of its partition.

    `lag`, `lead`, `nth_value`, `first_value` and `last_value` in the order of event time, without a window in
    PARTITION BY, are frames of events instead.
    """
    kinds = {kind_of(_function(alias.child())) for alias in items(node.windowExpressions())}
    framed, orders = {"Lag", "Lead", "NthValue", *_ENDS}, items(node.orderSpec())
    if not kinds.isdisjoint(NAMES.keys() - framed) or not orders:
        return True
    lower = {kind_of(a.child().windowSpec().frameSpecification().lower()) for a in items(node.windowExpressions())}
    if [type_of(order.child()) for order in orders] != ["timestamp"] or lower == {"UnboundedPreceding"}:
        framed.add("AggregateExpression")  # with another frame in the order of a time, it is one of earlier events
    return not kinds.isdisjoint(framed) and any(type_of(key) in EVENT_TIME_TYPES for key in items(node.partitionSpec()))


def numbers_in_time(node: JavaObject) -> bool:
    """Whether a `Window` node numbers events or rows of keys in the order of their times, perhaps beside frames."""
    kinds = {kind_of(alias.child().windowFunction()) for alias in items(node.windowExpressions())}
    order = items(node.orderSpec())
    return (
        "RowNumber" in kinds
        and kinds <= {"RowNumber", "Lag", "Lead", "NthValue", "AggregateExpression"}
        and len(order) == 1
        and kind_of(order[0].direction()) == "Ascending"
        and type_of(order[0].child()) in EVENT_TIME_TYPES
        and not any(type_of(key) == WINDOW for key in items(node.partitionSpec()))
    )


def _function(over: JavaObject) -> JavaObject:
    """The function of OVER; of `first_value` and `last_value`, what is aggregated."""
    function = over.windowFunction()
    if kind_of(function) == "AggregateExpression" and kind_of(function.aggregateFunction()) in _ENDS:
        return function.aggregateFunction()
    return function


def ordered_function(
    catalyst: Catalyst, over: JavaObject, by: Mapping[Expression, str], ties: Mapping[Expression, str],
    meaning: Translator,
) -> Aggregate:  # fmt: skip
    """A function OVER (… ORDER BY …); `by` and `ties`: what it orders by, and what decides between equal rows.

    Raises:
        UnsupportedQuery: the function, or its form, is not supported.
    """
    function = _function(over)
    name = "nth_value" if kind_of(function) in _ENDS else NAMES.get(kind_of(function))
    if kind_of(function) in _ENDS and over.windowFunction().filter().isDefined():
        raise UnsupportedQuery(
            f"`{text_of(function)}` OVER has a FILTER, which is not supported.", "Leave it out, and use IGNORE NULLS."
        )
    plain = aggregate_of(catalyst, function, meaning) if kind_of(function) == "AggregateExpression" else None
    if plain is not None and _is_total(plain):
        constants = [literal(plain.function, "string"), *_frame(over, len(by))]
        total = rank_by(RUNNING_TOTAL, {**by, **ties, **by}, plain.argument, constants)
        return msgspec.structs.replace(total, type=plain.type)
    if name is None:
        raise UnsupportedQuery(
            f"`{text_of(function)}` OVER (… ORDER BY …) is not supported beside ranks.",
            f"Use {', '.join((*NAMES.values(), 'first_value', 'last_value'))}, {', '.join(_TOTALS)} of a column, or an "
            "aggregate without ORDER BY.",
        )
    order = dict(by) if name in _TIED else {**by, **ties, **by}
    value = None
    if name in NEIGHBOURS:
        value = meaning(function.child() if kind_of(function) in _ENDS else function.input())
    return rank_by(name, order, value, _constants(catalyst, over, name, len(by), meaning))


def ordering(orders: Sequence[JavaObject], meaning: Callable[[JavaObject], Expression]) -> dict[Expression, str]:
    """The distinct expressions of ORDER BY with their directions; a constant does not affect the order."""
    by: dict[Expression, str] = {}
    for order in orders:
        value = meaning(order.child())
        if not isinstance(value, Literal):
            by.setdefault(value, f"{order.direction().sql()!s} {order.nullOrdering().sql()!s}".lower())
    return by


def rank_by(
    name: str, order: Mapping[Expression, str], value: Expression | None = None, constants: Sequence[Literal] = ()
) -> Aggregate:
    """A function of rows in an order, as the model has it; see `model.aggregates.ORDERED`."""
    kind = value.type if value is not None else "double" if name in ("percent_rank", "cume_dist") else "int"
    arguments = [*order, *([] if value is None else [value])]
    parameters = (*(literal(how, "string") for how in order.values()), *constants)
    first, second = arguments[0] if arguments else None, arguments[1] if len(arguments) > 1 else UNSET
    return Aggregate(name, first, None, kind, second, parameters, tuple(arguments[2:]) or UNSET)


def _constants(
    catalyst: Catalyst, over: JavaObject, name: str, tied: int, meaning: Callable[[JavaObject], Expression]
) -> list[Literal]:
    """The parameters after the directions; `tied`: the number of expressions of ORDER BY."""
    function = _function(over)
    nulls = [literal(IGNORE_NULLS, "string")] if name in NEIGHBOURS and function.ignoreNulls() else []
    if name == "ntile":
        return [literal(whole(catalyst, function.buckets()), "int")]
    if name in ("lag", "lead"):
        rows = whole(catalyst, function.inputOffset() if name == "lag" else function.offset())
        return [literal(rows, "int"), constant_default(function, meaning), *nulls]
    if name != "nth_value":
        return []
    number = _ENDS.get(kind_of(function)) or whole(catalyst, function.offset())
    return [literal(number, "int"), *_frame(over, tied), *nulls]


def _frame(over: JavaObject, tied: int) -> list[Literal]:
    """Where the frame ends, and the number of expressions of ORDER BY in which events that tie are equal."""
    frame = over.windowSpec().frameSpecification()
    ends = _FRAMES.get((kind_of(frame.frameType()), kind_of(frame.lower()), kind_of(frame.upper())))
    if ends is None:
        raise UnsupportedQuery(
            f"The frame `{frame.sql()}` of `{text_of(_function(over))}` is not supported.",
            "Leave the frame out, or write ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING.",
        )
    return [literal(ends, "string"), literal(tied, "int")]


def _is_total(aggregate: Aggregate) -> bool:
    """Whether the aggregate of the rows up to each one is supported."""
    if aggregate.logged or aggregate.filter is not None or aggregate.parameters is not UNSET:
        return False
    return aggregate.function in _TOTALS and not isinstance(aggregate.argument, Literal | None)
