"""How large the expressions of an analysed plan are when columns stand for the expressions that define them.

A column that a subquery computes is translated, projected and evaluated wherever it is named, so a text of 25 steps
that name the step before twice has 2^25 parts. They are counted, without being put in, before anything else is done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError

from millpond.errors import QueryRefused
from millpond.spark.catalyst.private_names import JavaObject
from millpond.spark.catalyst.value_bounds import is_accepted

MAX_PARTS = 10_000
"""Parts of all expressions of a query, with what its columns stand for."""


def check_inlined(plan: JavaObject) -> None:
    """Refuse a plan whose expressions have too many parts.

    Raises:
        QueryRefused: see above.
    """
    if is_accepted():
        return
    sizes: dict[int, int] = {}
    total, largest, name = _parts(plan, sizes)
    if total > MAX_PARTS:
        shown = f"{total:,}" if total < 10**15 else "more than 10^15"
        raise QueryRefused(
            f"The query has {shown} parts when each column stands for what defines it, {name} alone {largest:,}"
            f" of them; {MAX_PARTS:,} are allowed." if largest < 10**15 else
            f"The query has {shown} parts when each column stands for what defines it, most of them in {name};"
            f" {MAX_PARTS:,} are allowed.",
            "Name a computed column less often, or make the inner part a query of its own and read its rows.",
        )  # fmt: skip


def _parts(plan: JavaObject, sizes: dict[int, int]) -> tuple[int, int, str]:
    """Parts of all expressions of the largest node of a plan, of its largest column, and the name of that."""
    try:
        nodes: list[dict[str, Any]] = json.loads(str(plan.toJSON()))
    except Py4JError:  # it holds something that Spark does not write
        return 0, 0, ""
    total, largest, name = 0, 0, "an expression"
    for node in reversed(nodes):  # those below, which define columns, stand behind those above
        own = 0
        for expression in _expressions([value for key, value in node.items() if key != "projections"]):
            parts, column = _size(expression, sizes)
            own += parts
            if column and parts > largest:
                largest, name = parts, column
        total = max(total, own)  # what stands below is a part of what stands above
    return total, largest, name


def _expressions(values: list[Any]) -> Iterator[list[dict[str, Any]]]:
    """The trees among the fields of a node of a plan: each is a list of its nodes."""
    for value in values:
        if isinstance(value, list) and value:
            if all(isinstance(one, dict) and "num-children" in one for one in value):
                yield value
            else:
                yield from _expressions(value)


def _size(nodes: list[dict[str, Any]], sizes: dict[int, int]) -> tuple[int, str]:
    """Parts of an expression, and the name of the column that it defines, if it does."""
    parts = 0
    for node in nodes:
        is_column = str(node["class"]).endswith(".AttributeReference")
        parts += sizes.get((node.get("exprId") or {}).get("id", -1), 1) if is_column else 1
    if not str(nodes[0]["class"]).endswith(".Alias"):
        return parts, ""
    sizes[nodes[0]["exprId"]["id"]] = parts
    return parts, str(nodes[0]["name"])
