"""Moves expressions that only Spark evaluates from an upper step, whose rows Spark does not see, to the step below.

    SELECT w, sum(round(a / b, 2)) FROM (SELECT … JOIN …) GROUP BY w

becomes an aggregation of a column `round(a / b, 2)` of the join, for whose rows Spark can evaluate expressions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from millpond.model.join import Join
from millpond.model.selection import AnyQuery, foreign_below, is_inner
from millpond.spark.analysis.joins.plan_nodes import logical
from millpond.spark.analysis.query_terms import Extraction
from millpond.spark.analysis.steps.step_boundaries import child_of, cut_below
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    id_of,
    items,
    kind_of,
    nodes_of,
    optional,
    outputs,
    references,
)

_PASSING = ("Project", "Filter", "SubqueryAlias", "EventTimeWatermark")
_PLAIN = ("AttributeReference", "Literal")


class _Moved(NamedTuple):
    """An expression, and the column that the step below computes instead."""

    expression: JavaObject
    alias: JavaObject


def reads_inner_rows(found: Extraction) -> bool:
    """Whether a step has an expression over rows of the step below that only Spark evaluates."""
    return any(map(_reads_inner_rows, (found.query, *(step.query for step in found.inner))))


def _reads_inner_rows(query: AnyQuery) -> bool:
    return not isinstance(query, Join) and is_inner(query.stream) and bool(foreign_below(query))


def with_lower_columns(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The plan in which lower steps compute the keys and arguments of aggregations over their rows."""
    if not node.isStreaming():
        return node
    node = catalyst.rebuilt(node, [with_lower_columns(catalyst, child) for child in children(node)])
    leaf = cut_below(child_of(node)) if kind_of(node) == "Aggregate" else None
    if leaf is None or kind_of(leaf) == "Union":
        return node
    emitted = {id_of(column) for column in outputs(leaf)}
    moved: list[_Moved] = []
    for one in _computed(node):
        used = {id_of(column) for column in references(one)}
        if used and used <= emitted and not any(one.semanticEquals(known.expression) for known in moved):
            moved.append(_Moved(one, catalyst.alias(one, f"computed {len(moved)}")))
    child = _with_columns(catalyst, child_of(node), leaf, [one.alias for one in moved]) if moved else None
    if child is None:
        return node
    keys, results = (
        [_replaced(catalyst, one, moved) for one in items(part)]
        for part in (node.groupingExpressions(), node.aggregateExpressions())
    )
    return logical(catalyst, "Aggregate", keys, results, child, node.hint())


def _computed(aggregate: JavaObject) -> Iterator[JavaObject]:
    """The keys of an aggregation, and the arguments and filters of its aggregates, that are more than a column.

    An argument beside a filter stays, because it may raise for a row that the filter leaves out.
    """
    parts = items(aggregate.groupingExpressions())
    for node in (node for one in items(aggregate.aggregateExpressions()) for node in nodes_of(one)):
        if kind_of(node) == "AggregateExpression":
            condition = optional(node.filter())
            parts += children(node.aggregateFunction()) if condition is None else [condition]
    yield from (part for part in parts if kind_of(part) not in _PLAIN)


def _with_columns(
    catalyst: Catalyst, node: JavaObject, leaf: JavaObject, columns: Sequence[JavaObject]
) -> JavaObject | None:
    """The plan `node` with more columns of `leaf`, which is below it; None if a node does not pass them on."""
    if node.fastEquals(leaf):
        return logical(catalyst, "Project", [*outputs(leaf), *columns], leaf)
    if kind_of(node) not in _PASSING:
        return None
    below = _with_columns(catalyst, child_of(node), leaf, columns)
    if below is None:
        return None
    if kind_of(node) == "Project":
        passed = [*items(node.projectList()), *(column.toAttribute() for column in columns)]
        return logical(catalyst, "Project", passed, below)
    return catalyst.rebuilt(node, [below])


def _replaced(catalyst: Catalyst, expression: JavaObject, moved: Sequence[_Moved]) -> JavaObject:
    for one in moved:
        if expression.semanticEquals(one.expression):
            return one.alias.toAttribute()
    return catalyst.rebuilt(expression, [_replaced(catalyst, part, moved) for part in children(expression)])
