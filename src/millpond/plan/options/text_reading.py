"""Decides which streams of Kafka have JSON values that the gather tasks can parse, without Spark's parser."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from millpond.model.stream import Field, Stream
from millpond.model.types import is_array, is_decimal, is_storable, is_struct, parts_of

_OPTIONS = frozenset((
    "subscribe", "subscribepattern", "connection", "format", "mode", "registry", "startingoffsets",
    "startingtimestamp", "startingoffsetsbytimestamp", "maxoffsetspertrigger", "failondataloss", "epochtarget",
))  # fmt: skip
"""Options that do not decide how a value is parsed, in lower case."""

KINDS = frozenset((
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "date", "timestamp",
))  # fmt: skip
"""Types of columns that the gather parses, besides decimals and nested types; the same as in `formats.json_values`."""

_TIMES = ("date", "timestamp")

PROVIDED = "_source"
"""The first column that Kafka provides; the declared columns are before it."""


def why_spark_parses(stream: Stream, names: Collection[str], streams: Iterable[Stream]) -> str | None:
    """Why Spark parses the values of a Kafka stream; None if gather tasks can. A value may still be an obstacle.

    `names`: what is needed of it, columns and expressions that Spark evaluates. `streams`: all that are read.
    """
    assert stream.source is not None
    options = dict(stream.source.options)
    form = options.get("format", "").lower()
    if form != "json":
        return f"its format is {form}"
    if options.get("registry", "false").lower() == "true":
        return "its values begin with the number of a schema"
    derived = next((one.name for one in streams if one.derived is not None and stream.name in one.derived.reads), None)
    if derived is not None:
        return f"{derived} is derived from it"
    option = next((name for name in options if name.lower() not in _OPTIONS), None)
    if option is not None:
        return f"it has the option {option}"
    if not {field.name for field in stream.columns}.issuperset(names):
        return "Spark evaluates an expression over its columns"
    for field in declared_columns(stream):
        if not is_parsed(field.type):
            return f"its column {field.name} is {field.type}"
        if not isinstance(field.char, msgspec.UnsetType):
            return f"its column {field.name} is {field.char}"
        if not isinstance(field.default, msgspec.UnsetType):
            return f"its column {field.name} has a default"
    return None


def is_parsed(kind: str) -> bool:
    """Whether the gather parses columns of a type; inside of structs and arrays, it parses no times.

    >>> is_parsed("struct<a:array<int>>"), is_parsed("map<string,int>"), is_parsed("array<date>")
    (True, False, False)
    """
    if is_struct(kind) or is_array(kind):
        return is_storable(kind) and all(part not in _TIMES and is_parsed(part) for part in parts_of(kind))
    return kind in KINDS or is_decimal(kind)


def declared_columns(stream: Stream) -> tuple[Field, ...]:
    """The columns of a Kafka stream that its values contain; those that Kafka provides follow them."""
    names = [field.name for field in stream.columns]
    return stream.columns[: names.index(PROVIDED)] if PROVIDED in names else stream.columns
