"""Reads Parquet files into Arrow, with exactly the values that Spark's reader gives for the declared columns.

A column of a file is read here only if the rule for its declared type, its physical and its logical type is known to be
Spark's. `tests/spark/test_parquet.py` compares both readers on random files. Any other file is an obstacle (see
`obstacle`), and Spark reads it or reports what is wrong with it. Large files are divided among tasks by row groups.

A text column with few distinct values keeps the dictionary of the file, so that the gather need not encode its keys.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millpond.kernels.columns import arrow_type
from millpond.model.types import digits_of, is_decimal
from millpond.runtime.inputs.file_parts import FileColumn, NotEqual

BATCH_ROWS = 1 << 17
"""Rows that are decoded at once."""

_ROWS_PER_BYTE = 2
"""A text column keeps its dictionary if each row group has at least this many rows per compressed byte of it."""

_DISTINCT = ("parquet-mr ", "parquet-cpp-arrow ")
"""Writers whose dictionaries have each value once; pyarrow misreads others if they are kept."""

_WIDE_FILE = 1 << 16
_LEAST_SHARE = 4
"""The columns that are read must be at least this part (1/4) of a file, of `_WIDE_FILE` bytes or more, whose content is
delivered as a whole."""

_LONGEST_TEXT = 256
"""Bytes of the longest text in a dictionary that is kept: the texts of all rows of a chunk must fit into one column."""


def read_columns(
    file: str | pa.Buffer, columns: Sequence[FileColumn], share: int = 0, shares: int = 1
) -> Iterator[tuple[list[pa.Array], int]]:
    """The declared columns of a share of a file's row groups, in batches, with the number of rows.

    `file`: the path of a local file, or the content of another one, which must consist mostly of these columns. Text
    columns may have dictionaries.

    Raises:
        NotEqual: the file is not known to be read as Spark reads it; batches may have been returned before.
    """
    try:
        size = os.path.getsize(file) if isinstance(file, str) else file.size
        if size == 0:
            return  # Spark reads no split of it
        # A map of the file would end the process if the file became shorter.
        with pa.OSFile(file) if isinstance(file, str) else pa.BufferReader(file) as opened:
            metadata = pq.read_metadata(opened)
            leaves = _leaves(metadata, columns)
            groups = _row_groups(metadata, share, shares)
            _check_chunks(metadata, groups, {leaf.path for leaf in leaves if leaf is not None})
            names = [leaf.name for leaf in leaves if leaf is not None]
            if not isinstance(file, str):
                _check_share_of_columns(metadata, size, {leaf.path for leaf in leaves if leaf is not None})
            parquet = pq.ParquetFile(
                opened, metadata=metadata, read_dictionary=_with_few_texts(metadata, groups, columns, leaves),
                coerce_int96_timestamp_unit="us", page_checksum_verification=True,
            )  # fmt: skip
            if not names:
                for n in _counts(parquet, groups):
                    yield [pa.nulls(n, arrow_type(one.type)) for one in columns], n
                return
            for batch in parquet.iter_batches(BATCH_ROWS, groups, names, use_threads=False) if groups else ():
                yield _converted(batch, columns, leaves), batch.num_rows
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise NotEqual(f"cannot be read: {str(error).splitlines()[0][:200]}") from error


def _check_share_of_columns(metadata: pq.FileMetaData, size: int, paths: Collection[str]) -> None:
    """Check that most of a content was needed: Spark's reader fetches only the columns that are read."""
    needed = sum(
        chunk.total_compressed_size
        for group in map(metadata.row_group, range(metadata.num_row_groups))
        for chunk in map(group.column, range(group.num_columns)) if chunk.path_in_schema in paths
    )  # fmt: skip
    if size >= _WIDE_FILE and needed * _LEAST_SHARE < size:
        raise NotEqual(f"has {size:,} bytes, and the columns that are read have only {needed:,} of them")


def _counts(file: pq.ParquetFile, groups: Sequence[int]) -> Iterator[int]:
    """Numbers of rows, in pieces of at most `BATCH_ROWS`."""
    rows = sum(file.metadata.row_group(group).num_rows for group in groups)
    yield from (min(BATCH_ROWS, rows - first) for first in range(0, rows, BATCH_ROWS))


def _row_groups(metadata: pq.FileMetaData, share: int, shares: int) -> list[int]:
    """The row groups whose middle lies in the share of the file's bytes."""
    sizes = [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
    ends = np.cumsum(sizes, dtype=np.int64)
    middles = 2 * ends - np.array(sizes, np.int64)
    shares_of = middles * shares // (2 * max(int(ends[-1]), 1)) if len(ends) else middles
    chosen: list[int] = np.flatnonzero(np.minimum(shares_of, shares - 1) == share).tolist()
    return chosen


_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4")
_ENCODINGS = frozenset((
    "PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
))  # fmt: skip


def _check_chunks(metadata: pq.FileMetaData, groups: Sequence[int], paths: Collection[str]) -> None:
    """Check that Spark, too, knows how the columns are compressed and encoded."""
    for group in map(metadata.row_group, groups):
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema in paths and (
                chunk.compression not in _CODECS or not _ENCODINGS.issuperset(chunk.encodings)
            ):
                raise NotEqual(f"is compressed or encoded as {', '.join((chunk.compression, *chunk.encodings))}")


def _with_few_texts(
    metadata: pq.FileMetaData, groups: Sequence[int], columns: Sequence[FileColumn],
    leaves: Sequence[pq.ColumnSchema | None],
) -> list[str]:  # fmt: skip
    """The text columns that have few distinct values in each of the row groups, judged by the sizes of dictionaries."""
    if not (metadata.created_by or "").startswith(_DISTINCT):
        return []
    few = {leaf.path for column, leaf in zip(columns, leaves, strict=True) if leaf and column.type == "string"}
    for group in map(metadata.row_group, groups):
        for chunk in map(group.column, range(group.num_columns)) if few else ():
            if chunk.path_in_schema in few and not (
                chunk.has_dictionary_page
                and (chunk.data_page_offset - chunk.dictionary_page_offset) * _ROWS_PER_BYTE <= chunk.num_values
            ):
                few.discard(chunk.path_in_schema)
    return sorted(few)


def _leaves(metadata: pq.FileMetaData, columns: Sequence[FileColumn]) -> list[pq.ColumnSchema | None]:
    """The file's column of each declared one, None if it lacks it; names are compared without case, as Spark does."""
    schema = metadata.schema
    by_name: dict[str, dict[str, list[pq.ColumnSchema]]] = {}
    for leaf in (schema.column(place) for place in range(len(schema))):
        # The name of a group with a dot is not seen, so a declared name with a dot is not looked up.
        root = leaf.name if leaf.name == leaf.path else leaf.path.partition(".")[0]
        by_name.setdefault(root.lower(), {}).setdefault(root, []).append(leaf)
    found: list[pq.ColumnSchema | None] = []
    for column in columns:
        if "." in column.name:
            raise NotEqual(f"may have the column {column.name}, whose name contains a dot")
        roots = by_name.get(column.name.lower(), {})
        leaves = [leaf for some in roots.values() for leaf in some]
        if not leaves:
            if column.default:
                raise NotEqual(f"lacks the column {column.name}, which has a default")
            found.append(None)
            continue
        leaf = leaves[0]
        flat = leaf.path == leaf.name and leaf.max_repetition_level == 0 and leaf.max_definition_level <= 1
        if len(leaves) > 1 or not flat:
            raise NotEqual(f"has the column {column.name} in a nested form, or several of them")
        _check_type(column, leaf)
        _check_calendar(metadata.metadata or {}, column, leaf)
        found.append(leaf)
    return found


class _Stored(NamedTuple):
    """How a file may store the values of an SQL type: the physical type, and what the logical type must have."""

    physical: str
    logical: Mapping[str, Any]


def _integers(*widths: int) -> tuple[_Stored, ...]:
    return tuple(_Stored("INT32", {"Type": "Int", "bitWidth": width, "isSigned": True}) for width in widths)


_NONE = {"Type": "None"}
_SMALL = (_Stored("INT32", _NONE), *_integers(8, 16, 32))
_LARGE = (_Stored("INT64", _NONE), _Stored("INT64", {"Type": "Int", "bitWidth": 64, "isSigned": True}))
_UNITS = ("milliseconds", "microseconds")
_INT96 = _Stored("INT96", _NONE)

_RULES: Mapping[str, tuple[_Stored, ...]] = {
    "boolean": (_Stored("BOOLEAN", _NONE),),
    "tinyint": _SMALL,
    "smallint": _SMALL,
    "int": _SMALL,
    "bigint": (*_SMALL, *_LARGE),
    "float": (_Stored("FLOAT", _NONE),),
    "double": (_Stored("FLOAT", _NONE), _Stored("DOUBLE", _NONE)),
    "string": (_Stored("BYTE_ARRAY", {"Type": "String"}),),
    "binary": (_Stored("BYTE_ARRAY", _NONE),),
    "date": (_Stored("INT32", {"Type": "Date"}),),
    "timestamp": (
        _INT96,
        *(_Stored("INT64", {"Type": "Timestamp", "isAdjustedToUTC": True, "timeUnit": unit}) for unit in _UNITS),
    ),
    "timestamp_ntz": tuple(
        _Stored("INT64", {"Type": "Timestamp", "isAdjustedToUTC": False, "timeUnit": unit}) for unit in _UNITS
    ),
}
"""How files may store each SQL type; decimals have a rule of their own."""

_DECIMALS = ("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY", "BYTE_ARRAY")


def _check_type(column: FileColumn, leaf: pq.ColumnSchema) -> None:
    logical = json.loads(leaf.logical_type.to_json())
    if is_decimal(column.type):
        precision, scale = digits_of(column.type)
        fits = leaf.physical_type in _DECIMALS and logical["Type"] == "Decimal"
        if fits and logical["scale"] == scale and logical["precision"] <= precision:
            return
    elif any(
        leaf.physical_type == rule.physical and rule.logical.items() <= logical.items()
        for rule in _RULES.get(column.type, ())
    ):
        return
    stored = leaf.physical_type if logical == _NONE else f"{leaf.physical_type} {leaf.logical_type}"
    raise NotEqual(f"stores {column.name}, which is declared as {column.type}, as {stored}")


_VERSION = b"org.apache.spark.version"
_CALENDARS = {
    "INT96": (b"org.apache.spark.legacyINT96", b"3.1.0"),
    "INT32": (b"org.apache.spark.legacyDateTime", b"3.0.0"),
    "INT64": (b"org.apache.spark.legacyDateTime", b"3.0.0"),
}
"""By physical type of a time: the mark that Spark sets in a file with times of the old calendar, and the first version
that sets it."""


def _check_calendar(marks: Mapping[bytes, bytes], column: FileColumn, leaf: pq.ColumnSchema) -> None:
    if column.type not in ("date", "timestamp", "timestamp_ntz"):
        return
    mark, since = _CALENDARS[leaf.physical_type]
    if mark in marks or marks.get(_VERSION, since) < since:
        raise NotEqual(f"stores {column.name} in the calendar of an old version of Spark")


def _converted(
    batch: pa.RecordBatch, columns: Sequence[FileColumn], leaves: Sequence[pq.ColumnSchema | None]
) -> list[pa.Array]:
    arrays = []
    for column, leaf in zip(columns, leaves, strict=True):
        target = arrow_type(column.type)
        if leaf is None:
            arrays.append(pa.nulls(batch.num_rows, target))
            continue
        array = batch.column(leaf.name)
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        if isinstance(array, pa.DictionaryArray) and not _is_kept(array):
            array = array.dictionary_decode()
        array = array if array.type in (target, _ENCODED) else array.cast(target)
        if leaf.physical_type == "INT96":
            _check_int96(column, array)
        arrays.append(array)
    return arrays


_ENCODED = pa.dictionary(pa.int32(), pa.string())


def _is_kept(array: pa.DictionaryArray) -> bool:
    longest = pc.max(pc.binary_length(array.dictionary)).as_py() or 0
    return array.type == _ENCODED and longest <= _LONGEST_TEXT


_FIRST_US, _LAST_US = -(2**63) // 1000, 2**63 // 1000


def _check_int96(column: FileColumn, times: pa.Array) -> None:
    """Refuse times outside of 1677 to 2262: Arrow and Spark differ for nanoseconds of the day that are negative."""
    extremes = pc.min_max(times.view(pa.int64()))
    first, last = extremes["min"].as_py(), extremes["max"].as_py()
    if first is not None and not (first >= _FIRST_US and last < _LAST_US):
        raise NotEqual(f"stores {column.name} as INT96 with a time outside of 1677 to 2262")
