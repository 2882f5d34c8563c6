"""Decides which streams of files can be read into Arrow by the gather tasks, without Spark's reader."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from millpond.model.stream import Stream
from millpond.model.types import is_decimal

_OPTIONS = frozenset((
    "path", "maxfilespertrigger", "maxbytespertrigger", "latestfirst", "filenameonly", "maxfileage", "cleansource",
    "sourcearchivedir", "pathglobfilter", "recursivefilelookup", "maxcachedfiles", "mergeschema",
))  # fmt: skip
"""Options that decide which files are read, not how, in lower case."""

TYPES = frozenset((
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp",
    "timestamp_ntz",
))  # fmt: skip
"""The types of columns that are read into Arrow, besides decimals."""


def why_spark(stream: Stream, names: Collection[str], streams: Iterable[Stream]) -> str | None:
    """Why Spark reads a stream that has a source; None if gather tasks can read its files into Arrow.

    `names`: what is needed of it, columns and expressions that Spark evaluates. `streams`: all that are read. A file
    may still be an obstacle.
    """
    assert stream.source is not None
    if stream.source.format != "parquet":
        return f"its format is {stream.source.format}"
    derived = next((one.name for one in streams if one.derived is not None and stream.name in one.derived.reads), None)
    if derived is not None:
        return f"{derived} is derived from it"
    option = next((name for name, _ in stream.source.options if name.lower() not in _OPTIONS), None)
    if option is not None:
        return f"it has the option {option}"
    fields = {field.name: field for field in stream.columns}
    for name in names:
        field = fields.get(name)
        if field is None:
            return "Spark evaluates an expression over its columns"
        if field.type not in TYPES and not is_decimal(field.type):
            return f"its column {name} is {field.type}"
        if not isinstance(field.char, msgspec.UnsetType):
            return f"its column {name} is {field.char}"
    return None
