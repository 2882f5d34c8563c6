"""Names the columns of a result without an alias as PostgreSQL does: `count` instead of DuckDB's `count_star()`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_UNKNOWN = "?column?"
_FUNCTIONS = {"count_star": "count", "class_oid": "regclass"}
_OPERATORS = {"OPERATOR_COALESCE": "coalesce", "ARRAY_CONSTRUCTOR": "array"}
_UNEQUAL_NUMBERS = ("STAR", "unnest")
"""What can make several columns of one expression."""


def unnamed_columns(node: Mapping[str, Any]) -> dict[int, str]:
    """The names of the columns that have none, by their places; places after a `*` count from the end, from -1.

    `node`: the query of a statement's syntax tree, as DuckDB's `json_serialize_sql` returns it. Columns with a name,
    and those between two stars, are left out.
    """
    expressions = _select_list(node)
    stars = [place for place, one in enumerate(expressions) if _is_star(one)]
    first, last = (stars[0], stars[-1]) if stars else (len(expressions), -1)
    names = {
        place if place < first else place - len(expressions): _name(one)
        for place, one in enumerate(expressions) if place < first or place > last
    }  # fmt: skip
    return {place: name for place, name in names.items() if name is not None}


def ordered_by(node: Mapping[str, Any], unnamed: Mapping[int, str]) -> Iterator[tuple[int, int, int]]:
    """Where ORDER BY names a column of `unnamed_columns`: the bytes from start to end, and the column's number from 1.

    DuckDB does not know these names. A name that several columns have does not refer to any of these.
    """
    own = [one["alias"] or _inner(one) or "" for one in _select_list(node)]
    counts = Counter(name.lower() for name in own)
    numbers = {
        name: place + 1 for place, name in unnamed.items()
        if place >= 0 and name != _UNKNOWN and counts[name.lower()] == 1
    }  # fmt: skip
    for modifier in node.get("modifiers", ()):
        for order in modifier.get("orders", ()):
            match order["expression"]:
                case {"class": "COLUMN_REF", "column_names": [name], "query_location": start, **more}:
                    if (number := numbers.get(name.lower())) is not None:
                        yield start, start + more["query_location_length"], number


def _select_list(node: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The expressions that name the columns: those of the first part of a UNION."""
    while "select_list" not in node and node.get("children"):
        node = node["children"][0]
    expressions: Sequence[Mapping[str, Any]] = node.get("select_list", ())
    return expressions


def _is_star(tree: Any) -> bool:
    if isinstance(tree, Mapping):
        several = tree.get("class") in _UNEQUAL_NUMBERS or tree.get("function_name") in _UNEQUAL_NUMBERS
        return several or any(map(_is_star, tree.values()))
    return isinstance(tree, list) and any(map(_is_star, tree))


def _name(one: Mapping[str, Any]) -> str | None:
    """The name of an expression; None: it has a name of its own."""
    if one["alias"] or one["class"] == "COLUMN_REF":
        return None
    return _inner(one) or _UNKNOWN


def _inner(one: Mapping[str, Any]) -> str | None:
    """The name that an expression takes from its parts, as `FigureColname` of PostgreSQL's parser."""
    match one:
        case {"class": "COLUMN_REF", "column_names": [*_, name]}:
            return str(name)
        case {"class": "FUNCTION" | "WINDOW", "function_name": str(name)} if not one.get("is_operator"):
            return _FUNCTIONS.get(name, name).removeprefix("client_")
        case {"class": "CAST", "child": child} | {"type": "ARRAY_EXTRACT", "children": [child, _]}:
            return _inner(child)
        case {"type": "STRUCT_EXTRACT", "children": [_, {"literal": {"text": str(name)}}]}:
            return name
        case {"class": "CASE", "else_expr": otherwise}:
            return _inner(otherwise) or "case"
        case {"class": "SUBQUERY", "subquery_type": "EXISTS" | "NOT_EXISTS"}:
            return "exists"
        case {"class": "SUBQUERY", "subquery_type": "SCALAR", "subquery": {"node": {"select_list": [single]}}}:
            return str(single["alias"]) or _inner(single)
    return _OPERATORS.get(one["type"])
