"""Reads PIVOT with listed values as one aggregate for each value.

Spark aggregates by the pivot column too, and above that collects the results of the listed values in an array
(`PivotFirst`), whose elements are the columns of the result. Here each column becomes the aggregate of the events that
have its value; it is NULL if there are none, as in Spark.
"""

from __future__ import annotations

from millpond.errors import UnsupportedQuery
from millpond.spark.analysis.joins.plan_nodes import constant, logical
from millpond.spark.catalyst.cures import PER_VALUE
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    id_of,
    items,
    kind_of,
    nodes_of,
    optional,
)

_SUFFIXES = {"tinyint": "Y", "smallint": "S", "bigint": "L", "float": "F"}
"""Suffixes of literals whose values Py4J would pass on as another type."""


def is_pivot(plan: JavaObject) -> bool:
    """Whether an `Aggregate` only collects the values of a pivot."""
    columns = plan.aggregateExpressions()
    if "pivotfirst" not in str(columns.toString()):  # one call instead of several for each column
        return False
    return any(_pivot(column) is not None for column in items(columns))


def flattened(catalyst: Catalyst, plan: JavaObject, above: list[JavaObject]) -> tuple[JavaObject, list[JavaObject]]:
    """The aggregation with one aggregate for each value, and the nodes above it; `above` is from the highest down.

    Raises:
        UnsupportedQuery: the analyser made something else of the pivot.
    """
    lower = plan.child()
    if not above or kind_of(above[-1]) != "Project" or kind_of(lower) != "Aggregate":
        raise UnsupportedQuery("This form of PIVOT is not supported.", PER_VALUE)
    results = {id_of(column): column for column in items(lower.aggregateExpressions())}
    pivots = {id_of(one): pivot for one in items(plan.aggregateExpressions()) if (pivot := _pivot(one)) is not None}
    columns = []
    for column in items(above[-1].projectList()):
        picked = column.child() if kind_of(column) == "Alias" else None
        if picked is not None and kind_of(picked) == "GetArrayItem" and id_of(children(picked)[0]) in pivots:
            array, place = children(picked)
            value = _of_value(catalyst, pivots[id_of(array)], int(str(catalyst.constant(place))), results)
            columns.append(catalyst.alias(value, str(column.name()), column))
        elif id_of(column) in results:
            columns.append(results[id_of(column)])
        else:
            raise UnsupportedQuery(f"The column {column.name()} of a PIVOT is not supported.", PER_VALUE)
    groups = [_defined(results[id_of(group)]) for group in items(plan.groupingExpressions())]
    return logical(catalyst, "Aggregate", groups, columns, lower.child(), catalyst.none), above[:-1]


def _pivot(column: JavaObject) -> JavaObject | None:
    """The `PivotFirst` that a result of an aggregation is."""
    call = _defined(column)
    if kind_of(call) != "AggregateExpression" or kind_of(call.aggregateFunction()) != "PivotFirst":
        return None
    return call.aggregateFunction()


def _defined(column: JavaObject) -> JavaObject:
    return column.child() if kind_of(column) == "Alias" else column


def _of_value(catalyst: Catalyst, pivot: JavaObject, place: int, results: dict[int, JavaObject]) -> JavaObject:
    """The result for the value at a position among the listed ones."""
    by = _defined(results[id_of(pivot.pivotColumn())])
    has_value = catalyst.make("EqualNullSafe", by, _literal(catalyst, pivot.pivotColumnValues().apply(place), by))
    found = _filtered(catalyst, _defined(results[id_of(pivot.valueColumn())]), has_value)
    one = catalyst.make("aggregate.Count", [catalyst.literal(True)])
    like = next(node for node in nodes_of(found) if kind_of(node) == "AggregateExpression")
    count = _aggregate(catalyst, one, like, has_value)
    none = catalyst.make("Literal", None, found.dataType())
    return catalyst.make("If", catalyst.make("EqualTo", count, constant(catalyst, "0L")), none, found)


def _literal(catalyst: Catalyst, value: JavaObject, like: JavaObject) -> JavaObject:
    kind = str(like.dataType().catalogString())
    if kind in _SUFFIXES and value is not None:
        return constant(catalyst, f"{value}{_SUFFIXES[kind]}")
    return catalyst.make("Literal", value, like.dataType())


def _filtered(catalyst: Catalyst, node: JavaObject, condition: JavaObject) -> JavaObject:
    """The expression in which each aggregate takes only events that meet a condition."""
    if kind_of(node) == "AggregateExpression":
        own = optional(node.filter())
        both = condition if own is None else catalyst.every([own, condition])
        return _aggregate(catalyst, node.aggregateFunction(), node, both)
    return catalyst.rebuilt(node, [_filtered(catalyst, part, condition) for part in children(node)])


def _aggregate(catalyst: Catalyst, function: JavaObject, like: JavaObject, condition: JavaObject) -> JavaObject:
    distinct = like.isDistinct() and function is like.aggregateFunction()
    identity = catalyst.alias(condition, "e").exprId()
    taken = catalyst.option(condition)
    return catalyst.make("aggregate.AggregateExpression", function, like.mode(), distinct, taken, identity)
