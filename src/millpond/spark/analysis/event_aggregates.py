"""Translates Spark's aggregate calls that need the event log to `model.aggregates.Aggregate`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec
from msgspec import UNSET

from millpond.errors import UnsupportedQuery
from millpond.model.aggregates import ACCURACY, DESCENDING, LISTAGGS, OR_NULL, PERCENTILE, Aggregate
from millpond.model.expressions import Expression, Literal, call, literal
from millpond.model.types import is_decimal, is_known, is_number, is_storable
from millpond.plan.groups.aggregate_functions import EVENT_FUNCTIONS
from millpond.spark.analysis.expressions import Translator, all_true
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, children, items, kind_of, text_of, type_of

TRIED = (literal(OR_NULL, "string"),)
"""The parameters of `try_sum` and `try_avg`."""

_FUNCTIONS = {function.spark: function.name for function in EVENT_FUNCTIONS if function.spark} | {"MaxMinByK": "by"}
_DISTINCT = {kind: function.name for function in EVENT_FUNCTIONS for kind in function.distinct}
_NESTED = frozenset(
    {"first", "last", "min", "max", "min_by", "max_by", "by", "collect_list", "collect_set", "mode", "count_distinct"}
)
"""Functions that also take structs, arrays, maps and bytes."""
_NUMBERS = "Use numbers: of a time unix_micros(…), of a date datediff(…, DATE '1970-01-01')."
_MOST = 10_000
"""Largest k of `min_by(x, y, k)`."""


def logged_of(
    catalyst: Catalyst, node: JavaObject, function: JavaObject, filters: Sequence[Expression], translate: Translator
) -> Aggregate | None:
    """The model's aggregate for an `AggregateExpression`, if it is computed from the event log; otherwise None.

    Raises:
        UnsupportedQuery: the form or the type is not supported by this version.
    """
    kind, parts = kind_of(function), children(function)
    if node.isDistinct() and kind not in ("Min", "Max"):
        name = _DISTINCT.get(kind)
    elif kind in ("Min", "Max") and _is_compared_in_log(type_of(parts[0])):
        name = kind.lower()
    else:
        name = _FUNCTIONS.get(kind)
    if name is None:
        return None
    _check_form(node, function)
    if name in LISTAGGS:
        return _listagg(catalyst, node, function, filters, translate, name)
    if name == "count_distinct" and len(parts) > 2:  # rows are compared as structs
        filters = [*filters, *(translate(catalyst.not_null(part)) for part in parts)]
        names = (catalyst.literal(f"c{place}") for place in range(len(parts)))
        parts = [catalyst.make("CreateNamedStruct", [*chain.from_iterable(zip(names, parts, strict=True))])]
    arguments = [translate(part) for part in parts[: 2 if name in ("min_by", "max_by", "by", "count_distinct") else 1]]
    _check_types(node, arguments, nested=name in _NESTED)
    if "percentile" in name and not (is_number(arguments[0].type) or is_decimal(arguments[0].type)):
        raise _refused(node, f"is of {arguments[0].type} values", _NUMBERS)
    if name == "histogram_numeric" and (is_decimal(arguments[0].type) or arguments[0].type in ("string", "boolean")):
        raise _refused(node, f"is of {arguments[0].type} values", "Cast them to DOUBLE.")
    given = tuple(literal(number, "double") for number in _parameters(catalyst, node, function, name))
    if name in ("sum_distinct", "avg_distinct") and overflow_mode(function) == "TRY":
        given = TRIED
    if _is_descending(function):
        given += (literal(DESCENDING, "string"),)
    if name == "by":
        name = str(function.prettyName())  # both functions have the same class
    rows = [*filters]
    if name in ("first", "last") and function.ignoreNulls():
        rows.append(call("isnotnull", (arguments[0],), "boolean"))
    other = arguments[1] if len(arguments) > 1 else UNSET
    made = Aggregate(name, arguments[0], all_true(rows), type_of(function), other, given or UNSET)
    if name == PERCENTILE and (accuracy := int(str(catalyst.constant(function.accuracyExpression())))) != ACCURACY:
        made = msgspec.structs.replace(made, accuracy=accuracy)
    return made


def overflow_mode(function: JavaObject) -> str:
    """What a sum or average does where it leaves its type: `ANSI`, `LEGACY` or `TRY`."""
    return str((function.evalContext() if kind_of(function) == "Sum" else function).evalMode().toString())


def _listagg(
    catalyst: Catalyst, node: JavaObject, function: JavaObject, filters: Sequence[Expression], translate: Translator,
    name: str,
) -> Aggregate:  # fmt: skip
    delimiter = catalyst.constant(function.delimiter())
    text = translate(function.child())
    orders = [(order, translate(order.child())) for order in items(function.orderExpressions())]
    # a constant does not affect the order
    by = [(order, value) for order, value in orders if not isinstance(value, Literal)]
    _check_types(node, [text, *(value for _, value in by)])
    parameters = [literal("" if delimiter is None else str(delimiter), "string")]
    for order, _ in by:
        direction, nulls = str(order.direction().sql()).lower(), str(order.nullOrdering().sql()).lower()
        parameters.append(literal(f"{direction} {nulls}", "string"))
    values = tuple(value for _, value in by)
    other, more = values[0] if by else UNSET, values[1:] or UNSET
    return Aggregate(name, text, all_true([*filters]), "string", other, tuple(parameters), more)


def _is_compared_in_log(kind: str) -> bool:
    return kind == "string" or (is_storable(kind) and not is_known(kind))


def _check_types(node: JavaObject, arguments: Sequence[Expression], *, nested: bool = False) -> None:
    for argument in arguments:
        if not (is_storable(argument.type) if nested else is_known(argument.type)):
            raise _refused(node, f"is of {argument.type} values", "Use numbers, strings, booleans, times or decimals.")


def _check_form(node: JavaObject, function: JavaObject) -> None:
    if kind_of(function) == "Percentile" and str(function.frequencyExpression().toString()) != "1":
        raise _refused(node, "has a frequency", "Leave it out.")


def _is_descending(function: JavaObject) -> bool:
    """Whether a percentile, or a mode among equally frequent values, is ORDER BY … DESC."""
    if kind_of(function) == "Mode":
        return str(function.reverseOpt().toString()) == "Some(false)"  # Spark calls the order upwards reversed
    return kind_of(function) in ("Percentile", "PercentileDisc") and bool(function.reverse())


def _parameters(catalyst: Catalyst, node: JavaObject, function: JavaObject, name: str) -> list[float]:
    """The fractions of a percentile, or the requested number of values or bins."""
    if name == "by":
        most = catalyst.constant(function.kExpr())
        if not isinstance(most, int) or not 0 < most <= _MOST:
            raise _refused(node, f"requests {most} values", f"Request 1 to {_MOST:,}.")
        return [float(most)]
    if name == "histogram_numeric":
        return [float(str(catalyst.constant(function.nBins())))]
    if "percentile" not in name:
        return []
    return catalyst.numbers(function.percentageExpression())


def _refused(node: JavaObject, what: str, cure: str) -> UnsupportedQuery:
    return UnsupportedQuery(f"`{text_of(node)}` {what}, which is not supported.", cure)
