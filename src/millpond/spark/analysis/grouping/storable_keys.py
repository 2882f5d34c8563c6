"""Rewrites aggregations whose keys are intervals, bytes or arrays, or that sum intervals, to ones of numbers and texts.

    SELECT a - b AS wait, sum(c - d) FROM … GROUP BY a - b

is grouped by the microseconds of `a - b`, and sums those of `c - d`; the results are intervals again. Bytes are grouped
by their hexadecimal text, and arrays by their JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from millpond.errors import UnsupportedQuery
from millpond.model.types import FLOATS, INTEGERS, INTERVAL, is_array, is_decimal, is_struct, parts_of
from millpond.spark.analysis.grouping.grouping_sets import is_of_sets
from millpond.spark.analysis.joins.plan_nodes import constant, logical
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    items,
    kind_of,
    optional,
    text_of,
    type_of,
)

_EXACT_JSON = ("string", "boolean", *INTEGERS, *FLOATS)


class _Key(NamedTuple):
    """A grouping key, what the rows are grouped by instead, and the key computed from that."""

    key: JavaObject
    stored: JavaObject
    restored: JavaObject


def with_storable_keys(catalyst: Catalyst, node: JavaObject, served: str | None) -> JavaObject:
    """The plan after these rewrites; `served`: the name of the query, if it is served.

    Raises:
        UnsupportedQuery: rows would be looked up by a key that is not stored.
    """
    if not node.isStreaming():
        return node
    below = None if kind_of(node) == "Aggregate" else served
    node = catalyst.rebuilt(node, [with_storable_keys(catalyst, child, below) for child in children(node)])
    if kind_of(node) != "Aggregate" or is_of_sets(node):
        return node
    keys, results = items(node.groupingExpressions()), items(node.aggregateExpressions())
    values = [key.child() if kind_of(key) == "Alias" else key for key in keys]
    made = [key for key in (_stored(catalyst, value) for value in values) if key is not None]
    if served is not None and made:
        raise UnsupportedQuery(
            f"{served} is served, and its key `{text_of(made[0].key)}` is of type {type_of(made[0].key)}.",
            "Group by a value by which rows can be looked up: hex(b), to_json(a), or timestampdiff(SECOND, a, b).",
        )
    rewritten = [_result(catalyst, one, made) for one in results]
    if not made and all(new is old for new, old in zip(rewritten, results, strict=True)):
        return node
    pairs = zip(keys, values, strict=True)
    stored = [next((one.stored for one in made if one.key is value), key) for key, value in pairs]
    return logical(catalyst, "Aggregate", stored, rewritten, node.child(), node.hint())


def compared_value(catalyst: Catalyst, column: JavaObject) -> JavaObject:
    """What a column is compared by where repeated rows are removed; the rows show the column itself.

    Values with floating numbers are not compared by their JSON, because it has one zero, and rows show both.
    """
    kind = type_of(column)
    if kind == "binary":
        return catalyst.make("Hex", column)
    is_nested = is_array(kind) or is_struct(kind)
    if not is_nested or not _has_exact_json(kind) or re.search(r"\b(float|double)\b", kind):
        return column
    return _as_json(catalyst, column).stored


def _stored(catalyst: Catalyst, key: JavaObject) -> _Key | None:
    if type_of(key) == INTERVAL:
        micros = _micros(catalyst, key)
        return _Key(key, micros, _interval(catalyst, micros))
    if type_of(key) == "binary":
        text = catalyst.make("Hex", key)
        return _Key(key, text, catalyst.make("Unhex", text))
    if "array<" in type_of(key) and _has_exact_json(type_of(key)):
        return _as_json(catalyst, key)
    return None


def _has_exact_json(kind: str) -> bool:
    """Whether equal values have equal JSON, from which `from_json` restores them."""
    if is_array(kind) or is_struct(kind):
        return all(map(_has_exact_json, parts_of(kind)))
    return kind in _EXACT_JSON or is_decimal(kind)


def _as_json(catalyst: Catalyst, key: JavaObject) -> _Key:
    """A key as a field of a JSON object, so that NULL is not an empty array; with one zero and one NaN."""
    normal = catalyst.module("optimizer.NormalizeFloatingNumbers").normalize(key)
    object_ = catalyst.make("CreateNamedStruct", [catalyst.literal("a"), normal])
    text = catalyst.make("StructsToJson", object_).withTimeZone("UTC")
    read = catalyst.make("JsonToStructs", text, catalyst.literal(f"a {type_of(key)}")).withTimeZone("UTC")
    return _Key(key, text, catalyst.make("GetStructField", read, 0, catalyst.none))


def _result(catalyst: Catalyst, expression: JavaObject, keys: Sequence[_Key]) -> JavaObject:
    """A result column, over the keys that are stored and over sums of numbers."""
    made = _rewritten(catalyst, expression, keys)
    if made is expression or kind_of(made) == "Alias":
        return made
    return catalyst.alias(made, str(expression.name()), expression)


def _rewritten(catalyst: Catalyst, expression: JavaObject, keys: Sequence[_Key]) -> JavaObject:
    if kind_of(expression) == "AggregateExpression":
        return _summed(catalyst, expression)
    for one in keys:
        if expression.semanticEquals(one.key):
            return one.restored
    return catalyst.rebuilt(expression, [_rewritten(catalyst, part, keys) for part in children(expression)])


def _summed(catalyst: Catalyst, call: JavaObject) -> JavaObject:
    """The sum or average of intervals as one of their microseconds; other aggregates stay."""
    function, condition = call.aggregateFunction(), optional(call.filter())
    kind = kind_of(function)
    if kind not in ("Sum", "Average") or type_of(function.child()) != INTERVAL:
        return call
    micros = _micros(catalyst, function.child())

    def aggregate(of: JavaObject) -> JavaObject:
        return of.toAggregateExpression(bool(call.isDistinct()), catalyst.option(condition))

    if kind == "Sum":
        return _interval(catalyst, aggregate(catalyst.rebuilt(function, [micros])))
    total = _interval(catalyst, aggregate(catalyst.make("aggregate.Sum", micros)))
    return catalyst.make("DivideDTInterval", total, aggregate(catalyst.make("aggregate.Count", [micros])))


def _micros(catalyst: Catalyst, interval: JavaObject) -> JavaObject:
    """The microseconds of an interval, as a BIGINT."""
    begin = constant(catalyst, "TIMESTAMP '1970-01-01 00:00:00Z'")
    return catalyst.make("UnixMicros", catalyst.make("TimestampAddInterval", begin, interval, catalyst.option("UTC")))


def _interval(catalyst: Catalyst, micros: JavaObject) -> JavaObject:
    one = constant(catalyst, "INTERVAL '0 00:00:00.000001' DAY TO SECOND")
    return catalyst.make("MultiplyDTInterval", one, micros)
