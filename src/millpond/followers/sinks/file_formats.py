"""Encodes tables as files for folder sinks, and defines the options of each format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from millpond.errors import UnsupportedQuery
from millpond.followers.sinks.text import as_lines, csv_header, csv_lines, json_objects
from millpond.model.endpoints import Sink
from millpond.model.query import Named
from millpond.model.types import has_json

WriteTable: TypeAlias = Callable[[pa.Table, BinaryIO], None]

_CODECS = ("none", "uncompressed", "snappy", "gzip", "zstd", "lz4", "brotli")
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Format:
    """A format with its options: the suffix of its files, and the function that writes a table to a file."""

    name: str
    suffix: str
    write: WriteTable


def format_of(sink: Sink, output: Iterable[Named] = ()) -> Format:
    """The format of a folder sink for these columns; UnsupportedQuery: an option or a column is not supported."""
    options = {name.lower(): value for name, value in sink.options}
    match sink.format:
        case "parquet":
            return _parquet(options)
        case "json":
            for named in output:
                if not has_json(named.expression.type):
                    raise UnsupportedQuery(
                        f"JSON has no place for the column {named.name} of type {named.expression.type}.",
                        "Select its parts, or write Parquet.",
                    )
            return _json(options)
        case "csv":
            for named in output:
                if named.expression.type.startswith(("struct", "array")) or not has_json(named.expression.type):
                    raise UnsupportedQuery(
                        f"CSV has no place for the column {named.name} of type {named.expression.type}.",
                        "Select its parts (window.start and window.end), or write JSON or Parquet.",
                    )
            return _csv(options)
    raise UnsupportedQuery(f"{sink.format} is no format of files.", "Use parquet, json or csv.")


def _parquet(options: Mapping[str, str]) -> Format:
    _check_known("parquet", options, "compression")
    codec = options.get("compression", "snappy").lower()
    if codec not in _CODECS:
        raise UnsupportedQuery(f"Parquet is not compressed with {codec}.", f"Use one of {', '.join(_CODECS)}.")
    codec = "none" if codec == "uncompressed" else codec

    def write(table: pa.Table, file: BinaryIO) -> None:
        pq.write_table(table, file, compression=codec)

    return Format("parquet", ".parquet", write)


def _json(options: Mapping[str, str]) -> Format:
    _check_known("json", options, "ignorenullfields")
    omit_nulls = _boolean("ignoreNullFields", options.get("ignorenullfields", "true"))

    def write(table: pa.Table, file: BinaryIO) -> None:
        file.write(as_lines(json_objects(table, omit_nulls=omit_nulls)))

    return Format("json", ".json", write)


def _csv(options: Mapping[str, str]) -> Format:
    _check_known("csv", options, "header", "sep", "delimiter")
    header = _boolean("header", options.get("header", "false"))
    separator = options.get("sep", options.get("delimiter", ","))
    if len(separator) != 1 or separator in '"\\\r\n#':
        raise UnsupportedQuery(f"{separator!r} cannot separate CSV fields.", "Use one other character.")

    def write(table: pa.Table, file: BinaryIO) -> None:
        if header:
            file.write((csv_header(table.column_names, separator) + "\n").encode())
        file.write(as_lines(csv_lines(table, separator)))

    return Format("csv", ".csv", write)


def _check_known(name: str, options: Mapping[str, str], *known: str) -> None:
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise UnsupportedQuery(
            f"The {name} sink does not know the option {', '.join(unknown)}.", f"It takes {', '.join(known)}."
        )


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise UnsupportedQuery(f"The option {name} is {text!r}.", "Use true or false.")
    return _BOOLEANS[text.lower()]
