"""Moves expressions that only Spark evaluates from an upper step, whose rows Spark does not see, to the step below.

    SELECT w, sum(round(a / b, 2)) FROM (SELECT … JOIN …) GROUP BY w

becomes an aggregation of a column `round(a / b, 2)` of the join, for whose rows Spark can evaluate expressions. If
the expression moves below filters, the column is NULL where these are not met, because the expression may raise there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from millpond.model.join import Join
from millpond.model.selection import AnyQuery, foreign_below, is_inner
from millpond.model.types import EVENT_TIME_TYPES
from millpond.spark.analysis.aggregates import REPLACED
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
    type_of,
    window_mark,
)

_PASSING = ("Project", "Filter", "SubqueryAlias", "EventTimeWatermark", "Expand")
_ROWS = ("Project", "Filter")
_ORDERED = ("GlobalLimit", "LocalLimit", "Sort", "Window")
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


def with_lower_columns(
    catalyst: Catalyst, node: JavaObject, *, top: bool = True, ordered: bool = False
) -> JavaObject:
    """The plan in which lower steps compute the keys and arguments of aggregations over their rows.

    `top`: only projections and filters are above the node. `ordered`: the next other node above is `OVER` or LIMIT.
    """
    if not node.isStreaming():
        return node
    top, ordered = top and kind_of(node) in _ROWS, kind_of(node) in _ORDERED or (ordered and kind_of(node) in _ROWS)
    lower = [with_lower_columns(catalyst, child, top=top, ordered=ordered) for child in children(node)]
    node = catalyst.rebuilt(node, lower)
    leaf = cut_below(child_of(node), at_repeats=True) if kind_of(node) in ("Aggregate", *_ROWS) else None
    if leaf is None:
        return node
    if kind_of(node) in _ROWS:
        united = top and kind_of(leaf) == "Union"
        return _with_lower_values(catalyst, node, leaf) if united or ordered else node
    emitted = {id_of(column) for column in outputs(leaf)}
    where = _where(catalyst, child_of(node), leaf)
    if not _is_known(where, emitted):
        return node
    keys, results = items(node.groupingExpressions()), items(node.aggregateExpressions())
    results = [_guarded(catalyst, one, emitted) for one in results]
    below, aliases = _with_lower_aliases(catalyst, child_of(node), leaf, emitted)
    moved: list[_Moved] = []
    for one in _computed(keys, results, emitted):
        if _can_move_below(one, emitted) and not any(one.semanticEquals(known.expression) for known in moved):
            value = _if(catalyst, where, one)
            moved.append(_Moved(one, catalyst.alias(value, f"computed {len(moved)}")))
    columns = [*aliases, *(one.alias for one in moved)]
    child = _with_columns(catalyst, below, leaf, columns) if columns else None
    if child is None:
        return node
    keys, results = ([_replaced(catalyst, one, moved) for one in part] for part in (keys, results))
    return logical(catalyst, "Aggregate", keys, results, child, node.hint())


def _with_lower_values(catalyst: Catalyst, node: JavaObject, leaf: JavaObject) -> JavaObject:
    """A projection or filter above `leaf`, which computes its expressions; the branches of a UNION ALL do."""
    emitted = {id_of(column) for column in outputs(leaf)}
    is_filter = kind_of(node) == "Filter"
    values = [catalyst.alias(node.condition(), "computed")] if is_filter else items(node.projectList())
    aliases = [one for one in values if kind_of(one) == "Alias" and window_mark(one) is None]
    where = _where(catalyst, child_of(node), leaf)
    movable = [one for one in aliases if _can_move_below(one.child(), emitted)] if _is_known(where, emitted) else []
    computed = {id_of(one): catalyst.alias(_if(catalyst, where, one.child()), str(one.name()), one) for one in movable}
    below = _with_columns(catalyst, child_of(node), leaf, [*computed.values()]) if computed else None
    if below is None:
        return node
    values = [computed[id_of(one)].toAttribute() if id_of(one) in computed else one for one in values]
    if is_filter:
        return logical(catalyst, "Project", outputs(node), logical(catalyst, "Filter", values[0], below))
    return logical(catalyst, "Project", values, below)


def _where(catalyst: Catalyst, node: JavaObject, leaf: JavaObject) -> JavaObject:
    """The condition on the rows of `leaf` that the filters from `node` down to it make; TRUE without filters."""
    return catalyst.every(_conditions_and_aliases(catalyst, node, leaf)[0])


def _conditions_and_aliases(
    catalyst: Catalyst, node: JavaObject, leaf: JavaObject
) -> tuple[list[JavaObject], list[JavaObject]]:
    """The conditions of filters from `leaf` up to `node` and the aliases of projections, over the columns of `leaf`."""
    if node.fastEquals(leaf) or kind_of(node) not in _PASSING:
        return [], []
    conditions, aliases = _conditions_and_aliases(catalyst, child_of(node), leaf)
    if kind_of(node) == "Filter" and kind_of(child_of(node)) != "Expand":  # that one assigns rows to hopping windows
        conditions = [*conditions, catalyst.substitute(node.condition(), aliases)]
    if kind_of(node) == "Project":
        columns = [column for column in items(node.projectList()) if kind_of(column) == "Alias"]
        values = [catalyst.substitute(column.child(), aliases) for column in columns]
        pairs = zip(values, columns, strict=True)
        aliases = [*aliases, *(catalyst.alias(value, str(column.name()), column) for value, column in pairs)]
    return conditions, aliases


def _if(catalyst: Catalyst, condition: JavaObject, value: JavaObject) -> JavaObject:
    """The value where the condition is met, and NULL elsewhere, where it may raise."""
    if kind_of(condition) == "Literal":
        return value
    return catalyst.make("If", condition, value, catalyst.make("Literal", None, value.dataType()))


def _with_lower_aliases(
    catalyst: Catalyst, node: JavaObject, leaf: JavaObject, emitted: Collection[int]
) -> tuple[JavaObject, list[JavaObject]]:
    """The plan that reads columns of its projections, such as keys of grouping sets, from `leaf`; and their aliases."""
    if node.fastEquals(leaf) or kind_of(node) not in _PASSING:
        return node, []
    where = _where(catalyst, child_of(node), leaf)
    below, aliases = _with_lower_aliases(catalyst, child_of(node), leaf, emitted)
    node = catalyst.rebuilt(node, [below])
    if kind_of(node) != "Project":
        return node, aliases
    columns, lower = items(node.projectList()), list(aliases)
    for place, column in enumerate(columns):
        if kind_of(column) == "Alias" and type_of(column) not in EVENT_TIME_TYPES:
            value = catalyst.substitute(column.child(), lower)
            if _can_move_below(value, emitted):
                aliases.append(catalyst.alias(_if(catalyst, where, value), str(column.name()), column))
                columns[place] = column.toAttribute()
    return logical(catalyst, "Project", columns, below), aliases


def _can_move_below(expression: JavaObject, emitted: Collection[int]) -> bool:
    """Whether an expression is more than a column, and reads columns, all of which the step below emits."""
    return kind_of(expression) not in _PLAIN and bool(references(expression)) and _is_known(expression, emitted)


def _is_known(expression: JavaObject, emitted: Collection[int]) -> bool:
    return all(id_of(column) in emitted for column in references(expression))


def _guarded(catalyst: Catalyst, expression: JavaObject, emitted: Collection[int]) -> JavaObject:
    """Replace each argument `x` beside FILTER `f` by `IF(f, x, NULL)`, because `x` may raise where `f` is false."""
    parts = [_guarded(catalyst, part, emitted) for part in children(expression)]
    condition = optional(expression.filter()) if kind_of(expression) == "AggregateExpression" else None
    if condition is None or not _is_known(condition, emitted):
        return catalyst.rebuilt(expression, parts)

    def guarded(part: JavaObject) -> JavaObject:
        return _if(catalyst, condition, part) if _can_move_below(part, emitted) else part

    return catalyst.rebuilt(expression, [_with_arguments(catalyst, parts[0], guarded), *parts[1:]])


def _with_arguments(catalyst: Catalyst, function: JavaObject, change: Callable[[JavaObject], JavaObject]) -> JavaObject:
    """The aggregate function with other arguments."""
    parts = (
        _with_arguments(catalyst, part, change) if kind_of(function) in REPLACED or kind_of(part) == "SortOrder"
        else change(part) for part in children(function)
    )  # fmt: skip
    return catalyst.rebuilt(function, [*parts])


def _computed(
    keys: Iterable[JavaObject], results: Iterable[JavaObject], emitted: Collection[int]
) -> Iterator[JavaObject]:
    """The keys of an aggregation, and the arguments and filters of its aggregates.

    Arguments beside a filter that reads more than the columns `emitted` by the step below stay, because they may raise
    for a row that the filter leaves out.
    """
    yield from keys
    for node in (node for one in results for node in nodes_of(one)):
        if kind_of(node) == "AggregateExpression":
            condition = optional(node.filter())
            yield from [] if condition is None else [condition]
            if condition is None or _is_known(condition, emitted):
                yield from _arguments(node.aggregateFunction())


def _arguments(function: JavaObject) -> Iterator[JavaObject]:
    for part in children(function):
        if kind_of(function) in REPLACED or kind_of(part) == "SortOrder":
            yield from _arguments(part)
        else:
            yield part


def _with_columns(
    catalyst: Catalyst, node: JavaObject, leaf: JavaObject, columns: Sequence[JavaObject]
) -> JavaObject | None:
    """The plan `node` with more columns of `leaf`, which is below it; None if a node does not pass them on."""
    if node.fastEquals(leaf):
        return _extended(catalyst, leaf, columns)
    if kind_of(node) not in _PASSING:
        return None
    below = _with_columns(catalyst, child_of(node), leaf, columns)
    if below is None:
        return None
    known = {id_of(column) for column in outputs(node)}
    passed = [column.toAttribute() for column in columns if id_of(column) not in known]
    if kind_of(node) == "Project":
        return logical(catalyst, "Project", [*items(node.projectList()), *passed], below)
    if kind_of(node) == "Expand":  # the id of a grouping set is the last column
        rows = [catalyst.seq([*passed, *items(row)]) for row in items(node.projections())]
        return logical(catalyst, "Expand", rows, [*passed, *outputs(node)], below)
    return catalyst.rebuilt(node, [below])


def _extended(catalyst: Catalyst, leaf: JavaObject, columns: Sequence[JavaObject]) -> JavaObject:
    """The plan with more columns; each branch of a UNION ALL computes them."""
    if kind_of(leaf) != "Union":
        return logical(catalyst, "Project", [*outputs(leaf), *columns], leaf)
    first, *others = children(leaf)
    branches = [_extended(catalyst, first, columns)]  # the columns of a union have the ids of its first branch
    for branch in others:
        pairs = zip(outputs(leaf), outputs(branch), strict=True)
        own = [catalyst.alias(mine, str(mine.name()), column) for column, mine in pairs]
        made = [catalyst.alias(catalyst.substitute(one.child(), own), str(one.name())) for one in columns]
        branches.append(_extended(catalyst, branch, made))
    return catalyst.rebuilt(leaf, branches)


def _replaced(catalyst: Catalyst, expression: JavaObject, moved: Sequence[_Moved]) -> JavaObject:
    for one in moved:
        if expression.semanticEquals(one.expression):
            return one.alias.toAttribute()
    return catalyst.rebuilt(expression, [_replaced(catalyst, part, moved) for part in children(expression)])
