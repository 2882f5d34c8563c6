"""Moves joins with tables and `explode` above a UNION ALL into its branches, where they are of the results of a step.

    SELECT … FROM (A UNION ALL B) JOIN t ON …

becomes the union of A joined with t and B joined with t, if A or B keeps state.
"""

from __future__ import annotations

from millpond.spark.analysis.joins.plan_nodes import logical
from millpond.spark.analysis.steps.step_boundaries import cut_below, joins_streams, streaming_child
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    id_of,
    items,
    kind_of,
    optional,
    outputs,
)

_PASSED = ("Project", "Filter", "SubqueryAlias")


def with_rows_of_branches(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The plan in which no join with a table, and no `explode`, is above a UNION ALL of steps."""
    if not node.isStreaming():
        return node
    node = catalyst.rebuilt(node, [with_rows_of_branches(catalyst, child) for child in children(node)])
    if kind_of(node) not in ("Join", "Generate") or joins_streams(node):
        return node
    path, below = [node], streaming_child(node)
    while kind_of(below) in _PASSED:
        path.append(below)
        below = streaming_child(below)
    if kind_of(below) != "Union" or cut_below(below) is None:
        return node
    branches = (_above_branch(catalyst, path, below, branch) for branch in children(below))
    return catalyst.rebuilt(below, [with_rows_of_branches(catalyst, branch) for branch in branches])


def _above_branch(catalyst: Catalyst, path: list[JavaObject], union: JavaObject, branch: JavaObject) -> JavaObject:
    """A branch of a union below the nodes of `path`, the highest first, which read its columns, not the union's."""
    pairs = zip(outputs(union), outputs(branch), strict=True)
    own = [catalyst.alias(mine, str(one.name()), one) for one, mine in pairs if id_of(one) != id_of(mine)]
    for node in reversed(path):
        branch = _above(catalyst, node, branch, own)
    return branch


def _above(catalyst: Catalyst, node: JavaObject, below: JavaObject, own: list[JavaObject]) -> JavaObject:
    """The node above another child, with the columns that the aliases `own` stand for."""
    kind = kind_of(node)
    if kind == "Project":
        columns = [_column(catalyst, column, own) for column in items(node.projectList())]
        return logical(catalyst, "Project", columns, below)
    if kind == "Filter":
        return logical(catalyst, "Filter", catalyst.substitute(node.condition(), own), below)
    if kind == "Generate":
        return logical(
            catalyst, "Generate", catalyst.substitute(node.generator(), own), node.unrequiredChildIndex(), node.outer(),
            node.qualifier(), node.generatorOutput(), below,
        )  # fmt: skip
    if kind == "Join":
        condition = optional(node.condition())
        condition = catalyst.none if condition is None else catalyst.option(catalyst.substitute(condition, own))
        lower = streaming_child(node)
        left, right = (below if child is lower else child for child in children(node))
        return logical(catalyst, "Join", left, right, node.joinType(), condition, node.hint())
    return catalyst.rebuilt(node, [below])


def _column(catalyst: Catalyst, column: JavaObject, own: list[JavaObject]) -> JavaObject:
    """A column of a projection; an alias keeps its id."""
    if kind_of(column) != "Alias":
        return catalyst.substitute(column, own)
    return catalyst.rebuilt(column, [catalyst.substitute(column.child(), own)])
