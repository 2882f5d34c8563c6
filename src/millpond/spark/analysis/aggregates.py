"""Translates Spark's aggregate calls to `model.aggregates.Aggregate`; conditional forms become FILTER."""

from __future__ import annotations

from msgspec import UNSET

from millpond.errors import UnsupportedQuery
from millpond.model.aggregates import APPROX_DISTINCT, Aggregate
from millpond.model.expressions import Call, Expression, Literal, call, literal
from millpond.model.types import is_decimal, is_integer, is_known
from millpond.plan.groups.aggregate_functions import ANSWERED, FUNCTIONS, Function
from millpond.plan.groups.measures import precision_of
from millpond.runtime.aggregates.hyperloglog import LARGEST_PRECISION
from millpond.spark.analysis.event_aggregates import TRIED, logged_of, overflow_mode
from millpond.spark.analysis.expressions import Translator, all_true
from millpond.spark.catalyst.cures import COLLATED
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, children, kind_of, optional, text_of, type_of

_FUNCTIONS = {function.spark: function for function in FUNCTIONS.values()}
REPLACED = (
    "BoolAnd", "BoolOr", "RegrCount", "RegrAvgX", "RegrAvgY", "RegrSXX", "RegrSYY", "Median",
    "PercentileCont", "AnyValue",
)  # fmt: skip
"""Functions that Spark itself replaces by another one of these."""


def aggregate_of(catalyst: Catalyst, node: JavaObject, translate: Translator) -> Aggregate:
    """The model's aggregate for an `AggregateExpression`.

    Raises:
        UnsupportedQuery: the function, DISTINCT or the type is not supported by this version.
    """
    function = node.aggregateFunction()
    if kind_of(function) in REPLACED:
        function = function.replacement()
    condition = optional(node.filter())
    filters = [] if condition is None else [translate(condition)]
    logged = logged_of(catalyst, node, function, filters, translate)
    if logged is not None:
        return logged
    row = _FUNCTIONS.get(kind_of(function))
    if row is None or (node.isDistinct() and row.name not in ("min", "max", "bit_and", "bit_or", APPROX_DISTINCT)):
        used = str(function.prettyName()) + (" DISTINCT" if node.isDistinct() else "")
        raise UnsupportedQuery(
            f"`{text_of(node)}` uses {used}, which is planned, but not supported yet.",
            f"This version supports {ANSWERED}.",
        )
    name = row.name
    if name == "count":
        return _count(catalyst, function, filters, translate)
    part, *others = children(function)
    if name == APPROX_DISTINCT:
        return _distinct(node, function, part, filters, translate)
    _check_type(node, row, type_of(part))
    may_overflow = is_decimal(type_of(part)) or (name == "sum" and is_integer(type_of(part)))
    mode = overflow_mode(function) if name in ("sum", "avg") and may_overflow else "ANSI"
    if mode == "LEGACY":
        raise UnsupportedQuery(
            f"`{text_of(node)}` may leave its type, and wraps around with spark.sql.ansi.enabled=false.",
            f"Use try_{name}, or set spark.sql.ansi.enabled=true.",
        )
    argument, guard = _unguarded(translate(part))
    if not others:
        given = TRIED if mode == "TRY" else UNSET
        return Aggregate(name, argument, all_true(filters + guard), type_of(function), parameters=given)
    other, second = _unguarded(translate(others[0]))
    return Aggregate(name, argument, all_true(filters + guard + second), type_of(function), other)


def _distinct(
    node: JavaObject, function: JavaObject, part: JavaObject, filters: list[Expression], translate: Translator
) -> Aggregate:
    error = literal(float(function.relativeSD()), "double")
    if precision_of(error) > LARGEST_PRECISION:
        raise UnsupportedQuery(
            f"`{text_of(node)}` needs more than {1 << LARGEST_PRECISION} registers for each key and slice.",
            "Use a relative standard error of 0.01 or more.",
        )
    if not is_known(type_of(part)):
        raise UnsupportedQuery(
            f"`{text_of(node)}` counts distinct values of type {type_of(part)}, which is not supported.",
            "Use count(DISTINCT …), or count a string that is made of its parts, such as to_json(…).",
        )
    argument, guard = _unguarded(translate(part))
    return Aggregate(APPROX_DISTINCT, argument, all_true(filters + guard), "bigint", error)


def _check_type(node: JavaObject, function: Function, kind: str) -> None:
    if not function.accepts.includes(kind):
        raise UnsupportedQuery(
            f"`{text_of(node)}` is {function.name} of the type {kind}, which is not supported.",
            COLLATED if " collate " in kind else f"{function.name} takes {function.accepts.text}.",
        )


def _count(catalyst: Catalyst, function: JavaObject, filters: list[Expression], translate: Translator) -> Aggregate:
    """`count(a, b)` counts rows where neither is NULL; a constant counts every row."""
    arguments: list[Expression] = []
    for part in children(function):
        if not is_known(type_of(part)):
            filters = [*filters, translate(catalyst.not_null(part))]
            continue
        argument, guard = _unguarded(translate(part))
        filters = filters + guard
        if not (isinstance(argument, Literal) and argument.text is not None):
            arguments.append(argument)
    if len(arguments) == 1:
        return Aggregate("count", arguments[0], all_true(filters), "bigint")
    filters = filters + [call("isnotnull", (argument,), "boolean") for argument in arguments]
    return Aggregate("count", None, all_true(filters), "bigint")


def _unguarded(argument: Expression) -> tuple[Expression, list[Expression]]:
    """Split `CASE WHEN p THEN x END` into x and the filter p; this is valid because every aggregate here skips NULL."""
    if not isinstance(argument, Call) or argument.op != "case":
        return argument, []
    condition, value = argument.args[:2]
    rest = argument.args[2:]
    if not rest or (len(rest) == 1 and _is_null(rest[0])):
        return value, [condition]
    # regr_sxx(y, x) arrives as a function of CASE WHEN y IS NULL OR x IS NULL THEN NULL ELSE x END
    parts = condition.args if isinstance(condition, Call) and condition.op == "or" else (condition,)
    unknown = [part.args[0] for part in parts if isinstance(part, Call) and part.op == "isnull"]
    if _is_null(value) and len(rest) == 1 and len(unknown) == len(parts):
        return rest[0], [call("isnotnull", (part,), "boolean") for part in unknown]
    # count_if(p) arrives as count(CASE WHEN p = false THEN NULL ELSE p END)
    if _is_null(value) and rest[1:] == () and condition == call("eq", (rest[0], literal(False, "boolean")), "boolean"):
        return literal(1, "int"), [rest[0]]
    return argument, []


def _is_null(expression: Expression) -> bool:
    return isinstance(expression, Literal) and expression.text is None
