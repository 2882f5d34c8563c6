"""How large the expressions of an analysed plan are when columns stand for the expressions that define them.

A column that a subquery computes is translated, projected and evaluated wherever it is named, so a text of 25 steps
that name the step before twice has 2^25 parts. They are counted, without being put in, before anything else is done.
"""

from __future__ import annotations

import json
from typing import Any

from py4j.protocol import Py4JError

from millpond.errors import QueryRefused
from millpond.spark.catalyst import JavaObject, children, items
from millpond.spark.growth import is_accepted

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
    """Parts of all expressions of a plan, of its largest column, and the name of that; the lower plans come first."""
    total, largest, name = 0, 0, "an expression"
    for child in children(plan):
        below, most, of = _parts(child, sizes)
        total = max(total, below)  # what stands below is a part of what stands above
        if most > largest:
            largest, name = most, of
    own = 0
    for expression in items(plan.expressions()):
        parts, column = _size(expression, sizes)
        own += parts
        if parts > largest and column:
            largest, name = parts, column
    return max(total, own), largest, name


def _size(expression: JavaObject, sizes: dict[int, int]) -> tuple[int, str]:
    """Parts of an expression, and the name of the column that it defines, if it does."""
    try:
        nodes: list[dict[str, Any]] = json.loads(str(expression.toJSON()))
    except Py4JError:  # it holds something that Spark does not write
        return 1, ""
    parts, defined = 0, ""
    for place, node in enumerate(nodes):
        kind, identity = str(node.get("class", "")).rsplit(".", 1)[-1], node.get("exprId") or {}
        parts += sizes.get(identity.get("id", -1), 1) if kind == "AttributeReference" else 1
        if kind == "Alias" and place == 0:
            defined = str(node.get("name", ""))
    if defined:
        sizes[nodes[0]["exprId"]["id"]] = parts
    return parts, defined
