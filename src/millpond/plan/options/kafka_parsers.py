"""Decides which streams of Kafka have values of JSON or CSV that the gather tasks can parse, without Spark's parser."""

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

CSV_SEPARATORS = frozenset(("sep", "delimiter"))
"""The options of CSV with which gather tasks parse it."""

_SEPARATORS = (",", ";", "|", "\t")

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
    if form not in ("json", "csv"):
        return f"its format is {form}"
    if options.get("registry", "false").lower() == "true":
        return "its values begin with the number of a schema"
    derived = next((one.label for one in streams if one.derived is not None and stream.name in one.derived.reads), None)
    if derived is not None:
        return f"{derived} is derived from it"
    known = _OPTIONS | CSV_SEPARATORS if form == "csv" else _OPTIONS
    option = next((name for name in options if name.lower() not in known), None)
    if option is not None:
        return f"it has the option {option}"
    if form == "csv" and csv_separator(stream) is None:
        return "it has an unusual separator"
    if not {field.name for field in stream.columns}.issuperset(names):
        return "Spark evaluates an expression over its columns"
    for field in declared_columns(stream):
        if not is_parsed(field.type, form):
            return f"its column {field.name} is {field.type}"
        if not isinstance(field.char, msgspec.UnsetType):
            return f"its column {field.name} is {field.char}"
        if not isinstance(field.default, msgspec.UnsetType):
            return f"its column {field.name} has a default"
    return None


def is_parsed(kind: str, form: str = "json") -> bool:
    """Whether gather tasks parse columns of a type from texts of JSON or CSV; no times inside of structs and arrays.

    >>> is_parsed("struct<a:array<int>>"), is_parsed("map<string,int>"), is_parsed("array<date>")
    (True, False, False)
    >>> is_parsed("struct<a:int>", "csv"), is_parsed("timestamp", "csv")
    (False, True)
    """
    if form == "json" and (is_struct(kind) or is_array(kind)):
        return is_storable(kind) and all(part not in _TIMES and is_parsed(part) for part in parts_of(kind))
    return kind in KINDS or is_decimal(kind)


def csv_separator(stream: Stream) -> str | None:
    """The separator of a stream of CSV; None if the stream has another format, or Arrow may read another separator."""
    assert stream.source is not None
    options = {name.lower(): value for name, value in stream.source.options}
    if "csv" not in (stream.source.format, options.get("format", "").lower()):
        return None
    given = [options[name] for name in sorted(CSV_SEPARATORS & options.keys())] or [","]
    return given[0] if len(given) == 1 and given[0] in _SEPARATORS else None


def declared_columns(stream: Stream) -> tuple[Field, ...]:
    """The columns of a Kafka stream that its values contain; those that Kafka provides follow them."""
    names = [field.name for field in stream.columns]
    return stream.columns[: names.index(PROVIDED)] if PROVIDED in names else stream.columns
