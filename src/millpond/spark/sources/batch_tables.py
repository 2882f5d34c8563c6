"""Determines the identity across restarts of batch relations that a stream joins, and their names in messages."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator

from millpond.errors import UnsupportedQuery
from millpond.spark.catalyst.allow_list import PARTITIONINGS
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    expressions,
    id_of,
    items,
    kind_of,
    nodes_of,
    optional,
    outputs,
    pairs,
)
from millpond.spark.catalyst.spark_expressions import check_stable, tree_of

_SHAPES = frozenset({"Project", "Filter", "Join", "Union", "Aggregate", "Distinct", "Deduplicate"})
_TRANSPARENT = PARTITIONINGS | {"ResolvedHint", "SubqueryAlias"}
_ROWS = ("LogicalRDD", "LocalRelation")
_IGNORED = re.compile("^path$|password|secret|token|key|user", re.IGNORECASE)
MAX_ROWS = 10_000
"""Plan nodes of rows that exist only in this process and that streams may be joined with."""


def relation_tree(catalyst: Catalyst, plan: JavaObject) -> list[object]:
    """The meaning of a batch plan as plain values: tables by format, location and options, columns by number.

    Raises:
        UnsupportedQuery: it contains rows of this process, runs user code, or is of an unknown kind.
    """
    numbers: dict[int, int] = {}

    def label(column: JavaObject) -> object:
        return numbers.setdefault(id_of(column), len(numbers))

    def tree(node: JavaObject) -> list[object]:
        kind = kind_of(node)
        if not children(node):
            found = _leaf(catalyst, node)
            for column in outputs(node):
                label(column)
            return found
        if kind in _TRANSPARENT:
            return tree(node.child())
        if kind not in _SHAPES:
            raise UnsupportedQuery(
                f"The stream is joined with a relation that has {kind}, which is not supported.",
                "Write that relation to a table and join the stream with it.",
            )
        parts: list[object] = [kind, *(tree(child) for child in children(node))]
        if kind == "Aggregate":
            parts.append(node.groupingExpressions().size())
        for expression in expressions(node):
            check_stable(catalyst, expression)
            named = expression if kind_of(expression) != "Alias" else expression.child()
            parts.append(tree_of(catalyst, named, label))
            if kind_of(expression) == "Alias":
                parts.append([str(expression.name()), label(expression)])
        if kind == "Join":
            joined = node.joinType()
            parts.append(str(joined.toString()) if kind_of(joined) != "ExistenceJoin" else "ExistenceJoin")
        return parts

    return tree(plan)


def relation_text(plan: JavaObject) -> str:
    """The tables of a batch plan, for people."""
    leaves = (node for node in nodes_of(plan) if not children(node))
    found = [_table(leaf)[:2] if kind_of(leaf) not in _ROWS else ["rows of this program"] for leaf in leaves]
    texts = [" ".join(map(str, parts)) for parts in found]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def file_relations(plan: JavaObject) -> Iterator[JavaObject]:
    """The relations over files in a batch plan."""
    for node in nodes_of(plan):
        if kind_of(node) == "LogicalRelation" and kind_of(node.relation()) == "HadoopFsRelation":
            yield node.relation()


def _leaf(catalyst: Catalyst, node: JavaObject) -> list[object]:
    # Types are written as in older versions, because the digests of existing ponds are computed from this text.
    columns = [[str(column.name()), str(column.dataType().catalogString())] for column in outputs(node)]
    return [*(_rows(catalyst, node) if kind_of(node) in _ROWS else _table(node)), columns]


def _rows(catalyst: Catalyst, node: JavaObject) -> list[object]:
    """Rows that exist only in this process are identified by their values."""
    rows = catalyst.frame(node).limit(MAX_ROWS + 1).collect()
    if len(rows) > MAX_ROWS:
        raise UnsupportedQuery(
            f"The stream is joined with more than {MAX_ROWS} rows that only this program has.",
            "Write them to a table and join the stream with it.",
        )
    return ["rows", hashlib.sha256("\n".join(sorted(map(repr, rows))).encode()).hexdigest()]


def _table(node: JavaObject) -> list[object]:
    """Format, location and options of a table; options that could be secrets are left out."""
    kind = kind_of(node)
    if kind == "LogicalRelation":
        relation = node.relation()
        table = optional(node.catalogTable())
        if kind_of(relation) == "HadoopFsRelation":
            paths = ", ".join(str(path.toString()) for path in items(relation.location().rootPaths()))
            return [str(relation.fileFormat().toString()).lower(), paths, _public(dict(pairs(relation.options())))]
        if kind_of(relation) == "JDBCRelation":
            options = relation.jdbcOptions()
            return ["jdbc", str(options.tableOrQuery()), str(options.url()).partition("?")[0]]
        if table is not None:
            return ["table", str(table.identifier().unquotedString())]
        kind = kind_of(relation)
    if kind == "DataSourceV2Relation":
        options = node.options()
        given = {str(key): str(options.get(key)) for key in options.keySet()}
        if kind_of(node.table()) == "PythonTable" and "path" in given:
            return [str(node.table().name()), os.path.abspath(given["path"]), _public(given)]
        return ["table", str(node.table().name()), _public(given)]
    if kind == "HiveTableRelation":
        return ["table", str(node.tableMeta().identifier().unquotedString())]
    if kind == "Range":
        return ["range", f"{node.start()} to {node.end()} by {node.step()}"]
    raise UnsupportedQuery(
        f"The stream is joined with {kind}, which has no identity that survives a restart.",
        "Join it with a table, or with files.",
    )


def _public(options: dict[str, str]) -> list[list[str]]:
    """The relevant options: without the location, which is listed separately, and without possible secrets."""
    return sorted([key.lower(), value] for key, value in options.items() if not _IGNORED.search(key))
