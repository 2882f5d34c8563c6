"""Segments: cells as immutable Arrow bytes that can be mapped into memory and read in place.

A segment is one Arrow IPC file with the column `slot` and one column per distinct cell column, each in the narrowest
integer type that fits. The metadata of the schema contain the slices, their row offsets and, for columns that equal
another one, the name of that column. docs/formats.md defines the format. A reader of a segment decodes the numbers of
all slices, possibly thousands, so they are packed: as JSON they took the largest part of an epoch during migrations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays import IPC_READ, Ints, ipc_write
from millpond.errors import CorruptError, of_machine
from millpond.state.keys.filter_signatures import Stored, from_stored, to_stored
from millpond.state.layout.cells import Cells, Signed, Slices

Whole: TypeAlias = npt.NDArray[np.integer]

MEASURE_DIGITS = 8
"""The number of leading digits of a measure's id that identify it within a group."""

_WIDTHS = [(np.dtype(f"i{size}"), -(1 << 8 * size - 1), (1 << 8 * size - 1) - 1) for size in (1, 2, 4, 8)]
"""Signed integer types, with their least and greatest value."""


class _Header(msgspec.Struct, omit_defaults=True):
    """The header of version 2: the number of slices, the start of the first, and columns that equal others.

    The other numbers of slices are packed beside the header, in the metadata.
    """

    version: int
    slices: int
    first_us: int
    same: dict[str, str]
    signatures: Stored | None = None


class _FirstHeader(msgspec.Struct):
    """The header of version 1: all numbers of slices are JSON."""

    start_us: list[int]
    end_us: list[int]
    late_class: list[int]
    offsets: list[int]
    same: dict[str, str]
    signature: list[int] | None = None
    signatures: Stored | None = None


class _Version(msgspec.Struct):
    version: int


def encode_cells(cells: Cells) -> pa.RecordBatch:
    """Encodes cells as one record batch, ready to be written."""
    leading = {"slot": cells.slots.astype(np.int32)}
    batch, same = columns_batch(leading, cells.columns)
    slices, signed = cells.slices, cells.slices.signed
    first = int(slices.start_us[0]) if len(slices.start_us) else 0
    header = _Header(2, len(slices.start_us), first, same, None if signed is None else to_stored(signed.table))
    numbers = {
        "step_us": np.diff(slices.start_us, prepend=first),
        "length_us": slices.end_us - slices.start_us,
        "late_class": slices.late_class,
        "rows": np.diff(cells.offsets),
    } | ({} if signed is None else {"signature": signed.ids})
    packed = {name: narrow(column).tobytes() for name, column in numbers.items()}
    return batch.replace_schema_metadata({"millpond": msgspec.json.encode(header), **packed})


def columns_batch(leading: Mapping[str, Whole], columns: Mapping[str, Whole]) -> tuple[pa.RecordBatch, dict[str, str]]:
    """Integer columns as a batch, each in its narrowest type.

    A column that shares its array with an earlier one is left out; the second value maps its name to the earlier one.
    """
    arrays = {name: pa.array(narrow(column)) for name, column in leading.items()}
    same: dict[str, str] = {}
    known: dict[int, str] = {}
    for name, column in columns.items():
        first = known.setdefault(id(column), name)
        if first == name:
            arrays[name] = pa.array(narrow(column))
        else:
            same[name] = first
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays)), same


def encode_with_sizes(cells: Cells) -> tuple[pa.Buffer, dict[str, str]]:
    """Encodes cells as bytes; also returns the `info` of their section, with the size of each measure as `bytes`.

    A measure is named by the first digits of its id; measures that share a column are named together. The overhead of
    the file is divided equally among the columns.
    """
    batch = encode_cells(cells)
    data = to_bytes(batch)
    frame = max(0, data.size - batch.nbytes) // batch.num_columns
    measures: dict[int, dict[str, None]] = {}
    sizes: dict[int, int] = {}
    for name, column in cells.columns.items():
        measures.setdefault(id(column), {})[name.partition(":")[0][:MEASURE_DIGITS]] = None
        if id(column) not in sizes:
            sizes[id(column)] = batch.column(name).nbytes + frame
    section_bytes: dict[str, int] = {}
    for at, ids in measures.items():
        named = "+".join(sorted(ids))
        section_bytes[named] = section_bytes.get(named, 0) + sizes[at]
    return data, {"bytes": " ".join(f"{named}:{size}" for named, size in section_bytes.items())}


def parse_sizes(text: str) -> list[tuple[list[str], int]]:
    """Parses the sizes of measures that `encode_with_sizes` returns.

    >>> parse_sizes("5e6b10ee:120 ab21b95a+c26f7aea:64")
    [(['5e6b10ee'], 120), (['ab21b95a', 'c26f7aea'], 64)]
    """
    pairs = (part.partition(":") for part in text.split())
    return [(named.split("+"), int(size)) for named, _, size in pairs]


def decode_cells(batch: pa.RecordBatch) -> Cells:
    """The cells of a batch from `encode_cells`, of this version or version 1; arrays are views of its buffers.

    Raises:
        CorruptError: the header is missing, of another version, or does not fit the columns.
    """
    metadata = batch.schema.metadata or {}
    try:
        version = msgspec.json.decode(metadata[b"millpond"], type=_Version).version
        if version not in (1, 2):
            raise CorruptError(f"A segment has version {version}.", "Read it with a newer Millpond.")
        slices, offsets, same = (_read_first if version == 1 else _read)(metadata)
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise CorruptError("A segment has no header that this version reads.", "Restore the file.") from error
    columns = {name: np.asarray(batch.column(name)) for name in batch.schema.names[1:]}
    fits = (
        len({len(offsets) - 1, *map(len, slices[:3]), len(slices.signatures)}) == 1
        and (offsets[0], offsets[-1]) == (0, batch.num_rows)
        and bool((np.diff(offsets) >= 0).all())
        and columns.keys() >= set(same.values())
    )
    if not fits:
        raise CorruptError("The header of a segment does not fit its columns.", "Restore the file.")
    columns.update({name: columns[other] for name, other in same.items()})
    return Cells(slices, offsets, np.asarray(batch.column(0)), columns)


_Read: TypeAlias = tuple[Slices, Ints, dict[str, str]]
"""Slices, their row offsets, and the columns that equal others."""


def _read(metadata: dict[bytes, bytes]) -> _Read:
    header = msgspec.json.decode(metadata[b"millpond"], type=_Header)
    table = header.signatures
    names = ("step_us", "length_us", "late_class", "rows", *(() if table is None else ("signature",)))
    step, length, late, rows, *ids = (_unpacked(metadata[name.encode()], header.slices) for name in names)
    start = header.first_us + np.cumsum(step)
    signed = None if table is None else Signed(ids[0], from_stored(table))
    return Slices(start, start + length, late, signed), np.append(0, np.cumsum(rows)), header.same


def _read_first(metadata: dict[bytes, bytes]) -> _Read:
    header = msgspec.json.decode(metadata[b"millpond"], type=_FirstHeader)
    slices = read_slices(header.start_us, header.end_us, header.late_class, header.signature, header.signatures)
    return slices, _ints(header.offsets), header.same


def _unpacked(data: bytes, count: int) -> Ints:
    """Unpacks `count` integers; their width follows from the number of bytes.

    Raises:
        ValueError: the number of bytes does not fit `count`.
    """
    width = len(data) // count if count else 1
    if width not in (1, 2, 4, 8) or len(data) != width * count:
        raise ValueError(f"{len(data)} bytes are not {count} numbers")
    return np.frombuffer(data, f"<i{width}").astype(np.int64)


def read_slices(
    start_us: list[int], end_us: list[int], late_class: list[int], signature: list[int] | None, table: Stored | None
) -> Slices:
    """The slices in a header of version 1.

    Raises:
        CorruptError: the table of signatures cannot be decoded.
    """
    signed = None if signature is None or table is None else Signed(_ints(signature), from_stored(table))
    return Slices(_ints(start_us), _ints(end_us), _ints(late_class), signed)


def _ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def narrow(column: Whole) -> Whole:
    """The column in the narrowest signed integer type that fits."""
    if not len(column):
        return column.astype(np.int8)
    low, high = int(column.min()), int(column.max())
    for width, least, greatest in _WIDTHS:
        if least <= low and high <= greatest:
            return column.astype(width, copy=False)
    return column


def to_bytes(batch: pa.RecordBatch, compression: str | None = None) -> pa.Buffer:
    """A record batch as an Arrow IPC file in memory."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=ipc_write(compression)) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def from_bytes(buffer: pa.Buffer) -> pa.RecordBatch:
    """The record batch of an Arrow IPC file, without a copy.

    Raises:
        CorruptError: the bytes are not an Arrow file.
    """
    try:
        return pa.ipc.open_file(buffer, options=IPC_READ).get_batch(0)
    except (pa.ArrowInvalid, OSError) as error:
        raise of_machine(error) or CorruptError(
            f"A section does not read as Arrow: {error}.", "Restore the file."
        ) from error
