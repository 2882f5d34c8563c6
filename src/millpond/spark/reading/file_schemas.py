"""Inspects single files for columns that differ from the declaration of their stream, by format.

It reads footers of Parquet and ORC files, CSV headers and the first record of JSON files. What would make Spark fail
is an error. What Spark would read as NULL is a note. Files that cannot be inspected are left to Spark.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from millpond.errors import LateSchemaError
from millpond.model.types import digits_of, is_decimal
from millpond.spark.reading.columns_of_sources import ReadColumns

Look: TypeAlias = Callable[[ReadColumns, Path, Mapping[str, str]], Iterator[LateSchemaError]]
"""Inspects a file of a stream; options have lower-case names. It yields notes, and raises what Spark would fail on."""

_PHYSICAL = {
    "boolean": ("BOOLEAN",),
    "tinyint": ("INT32",),
    "smallint": ("INT32",),
    "int": ("INT32",),
    "bigint": ("INT32", "INT64"),
    "float": ("FLOAT",),
    "double": ("INT32", "FLOAT", "DOUBLE"),
    "string": ("BYTE_ARRAY",),
    "binary": ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"),
    "date": ("INT32",),
    "timestamp": ("INT64", "INT96"),
    "timestamp_ntz": ("INT32", "INT64", "INT96"),
}
"""How Parquet may store a column for Spark 4.3 to read it as a type; other types are left to Spark."""

_NARROW = ("tinyint", "smallint", "int", "date")
_TIMES = ("timestamp", "timestamp_ntz")
_NAMES = {"BOOLEAN": "boolean", "INT32": "int", "INT64": "bigint", "FLOAT": "float", "DOUBLE": "double"}
_TRUE = "true"


def parquet_columns(reading: ReadColumns, path: Path, _: Mapping[str, str]) -> Iterator[LateSchemaError]:
    """Check the footer of a Parquet file."""
    try:
        schema = pq.read_metadata(path).schema
    except (OSError, pa.ArrowException):
        return
    leaves = [schema.column(i) for i in range(len(schema))]
    flat = {leaf.path.lower(): leaf for leaf in leaves if "." not in leaf.path}
    tops = dict.fromkeys(leaf.path.partition(".")[0] for leaf in leaves)
    yield from _lacking(reading, path, list(tops))
    for field in reading.stream.columns:
        leaf = flat.get(field.name.lower())
        if leaf is not None and field.name in reading.columns and not _fits(leaf, field.type):
            raise _unlike(reading, path, field.name, field.type, leaf)


def orc_columns(reading: ReadColumns, path: Path, _: Mapping[str, str]) -> Iterator[LateSchemaError]:
    """Check that the footer of an ORC file has the columns."""
    try:
        names = orc.ORCFile(path).schema.names
    except (OSError, pa.ArrowException):
        return
    yield from _lacking(reading, path, names)


def _lacking(reading: ReadColumns, path: Path, names: list[str]) -> Iterator[LateSchemaError]:
    """A note for each column that neither the file nor a partition folder in its path has."""
    there = {name.lower() for name in names} | {name.lower() for name in re.findall(r"([^/]+)=[^/]*(?=/)", str(path))}
    for name in sorted(column for column in reading.columns if column.lower() not in there):
        what = f"{path} has no column {name}"
        if name in reading.times:
            raise LateSchemaError(
                f"{what}, the event time of the stream {reading.stream.name}; it has {', '.join(names) or 'none'}.",
                "Mend the declaration, or take the file away; no event was read.",
            )
        yield _absent(reading, f"{what}, which is NULL there")


def _absent(reading: ReadColumns, what: str) -> LateSchemaError:
    return LateSchemaError(f"{what} for the stream {reading.stream.name}.", "Correct the declaration if it is wrong.")


def _fits(leaf: pq.ColumnSchema, kind: str) -> bool:
    """Whether Spark can read a column of a Parquet file as a type, as far as this module knows."""
    logical = str(leaf.logical_type)
    if is_decimal(kind):
        if leaf.physical_type in ("BOOLEAN", "FLOAT", "DOUBLE", "INT96") or "String" in logical:
            return False
        return "Decimal" not in logical or int(leaf.scale) <= digits_of(kind)[1]
    if kind not in _PHYSICAL or "Decimal" in logical:
        return True
    if leaf.physical_type not in _PHYSICAL[kind]:
        return False
    if kind in _TIMES and leaf.physical_type == "INT64":
        return "Timestamp" in logical and "nano" not in logical
    if kind == "timestamp_ntz" and leaf.physical_type == "INT32":
        return "Date" in logical
    if "isSigned=false" in logical:
        return not ("bitWidth=64" in logical or ("bitWidth=32" in logical and kind in _NARROW))
    return True


def _unlike(reading: ReadColumns, path: Path, name: str, kind: str, leaf: pq.ColumnSchema) -> LateSchemaError:
    logical = str(leaf.logical_type)
    stored = leaf.physical_type if logical == "None" else f"{leaf.physical_type} {logical}"
    cure = "Mend the declaration or the file"
    if "nano" in logical:
        stored = "a time in nanoseconds"
        cure = "Write it in microseconds: pandas' to_parquet(…, coerce_timestamps='us')"
    elif logical == "None" and leaf.physical_type in _NAMES:
        cure = f"Declare {name} {_NAMES[leaf.physical_type].upper()}, or correct the file"
    elif "String" in logical:
        cure = f"Declare {name} STRING, or correct the file"
    return LateSchemaError(
        f"{path} holds {name} as {stored}, which Spark cannot read as the {kind} that the stream "
        f"{reading.stream.name} declares.",
        f"{cure}, or take the file away; no event was read.",
    )


def csv_columns(reading: ReadColumns, path: Path, options: Mapping[str, str]) -> Iterator[LateSchemaError]:
    """Check a CSV header: Spark reads the columns of CSV by position, whatever the header says."""
    separator = options.get("sep", options.get("delimiter", ","))
    if options.get("header", "").lower() != _TRUE or len(separator) != 1:
        return
    line = _first_line(path)
    names = [] if line is None else [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]
    if not names:
        return
    declared = [field.name.lower() for field in reading.stream.columns]
    for place, name in enumerate(names):
        if name.lower() in declared and declared.index(name.lower()) != place:
            raise LateSchemaError(
                f"{path} has {name} as column {place + 1}, but the stream {reading.stream.name} declares it as column "
                f"{declared.index(name.lower()) + 1}; Spark goes by the place.",
                "Declare the columns in the order of the header, or take the file away; no event was read.",
            )
    for field in reading.stream.columns[len(names) :]:
        if field.name in reading.columns:
            yield _absent(reading, f"{path} has no column {field.name}, which is NULL there")


def json_columns(reading: ReadColumns, path: Path, options: Mapping[str, str]) -> Iterator[LateSchemaError]:
    """Check that the first record of a JSON file has the event time."""
    line = None if options.get("multiline", "").lower() == _TRUE else _first_line(path)
    try:
        record = msgspec.json.decode(line or "")
    except msgspec.DecodeError:
        return
    if not isinstance(record, dict):
        return
    for name in sorted(reading.times - record.keys()):
        has = ", ".join(list(record)[:10]) or "none"
        yield _absent(reading, f"The first record of {path} has no {name}, the event time, but {has}; it is lost")


def _first_line(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8-sig") as file:
            return file.readline(1 << 20).rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        return None
