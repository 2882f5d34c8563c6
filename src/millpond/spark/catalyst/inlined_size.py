"""Limits the size of an analysed plan's expressions after columns are replaced by their definitions.

A column that a subquery computes is translated, projected and evaluated wherever it is used. So a query of 25 nested
subqueries, each of which uses a column of the inner one twice, has 2^25 parts. The parts are counted before anything
else is done, without substituting the definitions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError

from millpond.errors import QueryRefused
from millpond.spark.catalyst.private_names import JavaObject
from millpond.spark.catalyst.value_bounds import is_accepted
from millpond.spark.driver_classes.catalyst_trees import loader_of

MAX_PARTS = 10_000
"""The most parts that all expressions of a query may have after substitution."""


def check_inlined(plan: JavaObject) -> None:
    """Refuse a plan whose expressions have too many parts.

    Raises:
        QueryRefused: there are more than `MAX_PARTS`.
    """
    if is_accepted():
        return
    total, largest, name = _parts(plan)
    if total > MAX_PARTS:
        shown = f"{total:,}" if total < 10**15 else "more than 10^15"
        raise QueryRefused(
            f"The query has {shown} parts when computed columns are inlined, {name} alone {largest:,}"
            f" of them; {MAX_PARTS:,} are allowed." if largest < 10**15 else
            f"The query has {shown} parts when computed columns are inlined, most of them in {name};"
            f" {MAX_PARTS:,} are allowed.",
            "Name a computed column less often, or make the inner part a query of its own and read its rows.",
        )  # fmt: skip


def _parts(plan: JavaObject) -> tuple[int, int, str]:
    """The number of parts in a plan's largest node and in its largest column, and that column's name."""
    try:
        loader = loader_of(plan)
        if loader is not None:
            return loader.inlined(plan)
        return parts_of(json.loads(str(plan.toJSON())))
    except Py4JJavaError as error:
        if bool(error.java_exception.getClass().getName().endswith("Error")):  # out of memory, or of stack
            raise QueryRefused("The plan of the query is too large.", "Write a shorter query.") from error
        return 0, 0, ""  # the plan holds an object that Spark cannot write as JSON


def parts_of(nodes: list[dict[str, Any]]) -> tuple[int, int, str]:
    """The same of a plan as Spark writes it as JSON."""
    sizes: dict[int, int] = {}
    total, largest, name = 0, 0, "an expression"
    for node in reversed(nodes):  # child nodes, which define columns, are listed after their parents
        own_parts, trees = 0, list(_expressions([value for key, value in node.items() if key != "projections"]))
        for expression in trees:
            parts, column = _size(expression, sizes)
            own_parts += parts
            if column and parts > largest:
                largest, name = parts, column
        if str(node["class"]).endswith(".Aggregate"):  # results of an aggregation are values, also for those above it
            sizes.clear()
            for expression in trees:
                _size(expression, sizes)
        total = max(total, own_parts)  # a child's expressions are already counted in its parent
    return total, largest, name


def _expressions(values: list[Any]) -> Iterator[list[dict[str, Any]]]:
    """The expression trees among the fields of a plan node; each tree is a list of its nodes."""
    for value in values:
        if isinstance(value, list) and value:
            if all(isinstance(one, dict) and "num-children" in one for one in value):
                yield value
            else:
                yield from _expressions(value)


def _size(nodes: list[dict[str, Any]], sizes: dict[int, int]) -> tuple[int, str]:
    """The number of parts of an expression, and the name of the column that it defines, or ""."""
    parts = 0
    for node in nodes:
        is_column = str(node["class"]).endswith(".AttributeReference")
        parts += sizes.get((node.get("exprId") or {}).get("id", -1), 1) if is_column else 1
    if not str(nodes[0]["class"]).endswith(".Alias"):
        return parts, ""
    sizes[nodes[0]["exprId"]["id"]] = parts
    return parts, str(nodes[0]["name"])
