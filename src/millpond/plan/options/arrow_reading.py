"""Decides which streams of files can be read into Arrow by the gather tasks, without Spark's reader."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from millpond.model.stream import Stream
from millpond.model.types import is_decimal
from millpond.plan.options.kafka_parsers import CSV_SEPARATORS, csv_separator, is_parsed

_OPTIONS = frozenset((
    "path", "maxfilespertrigger", "maxbytespertrigger", "latestfirst", "filenameonly", "maxfileage", "cleansource",
    "sourcearchivedir", "pathglobfilter", "recursivefilelookup", "maxcachedfiles", "mergeschema",
))  # fmt: skip
"""Options that decide which files are read, not how, in lower case."""

_CSV_OPTIONS = CSV_SEPARATORS | {"header"}
_FLAGS = ("true", "false")

TYPES = frozenset((
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp",
    "timestamp_ntz",
))  # fmt: skip
"""The types of columns of Parquet files that are read into Arrow, besides decimals."""

CORRUPT = "_corrupt_record"
"""The column in which Spark puts records of JSON and CSV files that do not parse, if it is declared."""


def why_spark(stream: Stream, names: Collection[str], streams: Iterable[Stream]) -> str | None:
    """Why Spark reads a stream that has a source; None if gather tasks can read its files into Arrow.

    `names`: what is needed of it, columns and expressions that Spark evaluates. `streams`: all that are read. A file
    may still be an obstacle.
    """
    assert stream.source is not None
    form = stream.source.format
    if form not in ("parquet", "json", "csv"):
        return f"its format is {form}"
    derived = next((one.label for one in streams if one.derived is not None and stream.name in one.derived.reads), None)
    if derived is not None:
        return f"{derived} is derived from it"
    known = _OPTIONS | _CSV_OPTIONS if form == "csv" else _OPTIONS
    option = next((name for name, _ in stream.source.options if name.lower() not in known), None)
    if option is not None:
        return f"it has the option {option}"
    if form == "csv" and csv_form(stream) is None:
        return "it has an unusual separator or header"
    if form != "parquet" and CORRUPT in [field.name for field in stream.columns]:
        return f"it has the column {CORRUPT}"
    fields = {field.name: field for field in stream.columns}
    for name in names:
        field = fields.get(name)
        if field is None:
            return "Spark evaluates an expression over its columns"
        if not _is_read(form, field.type):
            return f"its column {name} is {field.type}"
        if not isinstance(field.char, msgspec.UnsetType):
            return f"its column {name} is {field.char}"
        if form != "parquet" and not isinstance(field.default, msgspec.UnsetType):
            return f"its column {name} has a default"
    return None


def _is_read(form: str, kind: str) -> bool:
    """Whether columns of a type are read from files of a format."""
    return (is_decimal(kind) or kind in TYPES) if form == "parquet" else is_parsed(kind, form)


def csv_form(stream: Stream) -> tuple[str, bool] | None:
    """The separator of a stream of CSV files, and whether they have a header; None if Arrow may read another one."""
    assert stream.source is not None
    header = (stream.source.option("header") or "false").lower()
    separator = csv_separator(stream)
    return None if separator is None or header not in _FLAGS else (separator, header == "true")
