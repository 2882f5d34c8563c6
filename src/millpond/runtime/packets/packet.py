"""Packets: the bytes that the shuffle moves from one source partition to one instance.

packet  = "MPK1" , u32 length of header , header (JSON) , sections
section = an Arrow IPC stream, lz4: keys and then cells for each group in the header; afterwards rows of stateless
          queries and late rows, if any
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millpond.arrays import IPC_READ, Ints, ipc_write
from millpond.errors import CorruptError, of_machine
from millpond.kernels.key_codes import encode
from millpond.runtime.packets.raw_columns import RawRows, raw_batch, raw_of_batch
from millpond.runtime.task.counters import Counts
from millpond.spans import Span
from millpond.state.keys.filter_signatures import Stored, to_stored
from millpond.state.layout.cells import Piece
from millpond.state.layout.event_log import Events, decode_events, encode_events
from millpond.state.layout.segments import columns_batch, narrow, read_slices

_MAGIC = b"MPK1"

_BUCKET = "bucket"
"""The last of the columns of keys, if their buckets are sent too."""


class PartHeader(msgspec.Struct, omit_defaults=True):
    """One group's share of a packet: its slices, and the sizes in bytes of its keys and its body.

    `events`: the body consists of events for the log, without slices. `keys_before`: the keys are those of the previous
    part and not repeated. `filters`: those of raw rows, None for cells. `same`: columns of cells that equal another
    column, whose name is the value.
    """

    group: str
    start_us: list[int]
    end_us: list[int]
    late_class: list[int]
    keys_size: int
    body_size: int
    keys: int
    same: dict[str, str] = {}
    filters: list[int] | None = None
    signature: list[int] | None = None
    signatures: Stored | None = None
    events: bool = False
    keys_before: bool = False


class SourceFates(msgspec.Struct):
    """The fates of events per source partition for each of `queries`: five numbers, see `counters.FATES`."""

    queries: list[str]
    partitions: dict[str, list[int]]


class Header(msgspec.Struct):
    """The origin of a packet and what its task observed: `newest_us` is the largest event time per source partition.

    `counts` and `fates` are sent to one instance only, and so are late rows (`late_size` bytes) and rows of stateless
    queries (`selected_size` bytes). `malformed`: the rows counted by `selected_size` are dead letters. `spans`: of the
    task's timeline, since its previous packet for the same instance.
    """

    stream: str
    partition: int
    sequence: int
    newest_us: dict[str, int]
    counts: dict[str, Counts]
    groups: list[PartHeader] = []
    fates: list[SourceFates] = []
    late_size: int = 0
    selected_size: int | msgspec.UnsetType = msgspec.UNSET
    malformed: bool | msgspec.UnsetType = msgspec.UNSET
    spans: list[Span] | msgspec.UnsetType = msgspec.UNSET


class GroupPart(NamedTuple):
    """The data of one group for an instance: distinct keys as columns, and a body whose slots are positions in them.

    `buckets`: those of the keys, if they are known.
    """

    group: str
    keys: list[pa.Array]
    key_count: int
    body: Piece | RawRows | Events
    buckets: Ints | None = None


def encode_packet(header: Header, parts: Sequence[GroupPart], late_rows: bytes = b"", selected: bytes = b"") -> bytes:
    """Encodes a packet, with late rows and rows of stateless queries; sets the groups and sizes in `header`."""
    header.late_size, header.selected_size = len(late_rows), len(selected) or msgspec.UNSET
    written: list[bytes] = []
    for before, part in zip([None, *parts], parts, strict=False):
        has_same_keys = before is not None and _has_keys_of(part, before)
        keys = b"" if has_same_keys else _keys(part)
        body, filters = part.body, None
        same: dict[str, str] = {}
        if isinstance(body, Events):
            data = _stream(encode_events(body))
            sizes = len(keys), len(data), part.key_count
            header.groups.append(PartHeader(part.group, [], [], [], *sizes, events=True, keys_before=has_same_keys))
            written += [keys, data]
            continue
        if isinstance(body, RawRows):
            batch, filters = raw_batch(body), body.filters
        else:
            batch, same = columns_batch({"slice": body.slice_rows, "slot": body.slots}, body.columns)
        data = _stream(batch)
        start, end, late = (column.tolist() for column in body.slices[:3])
        signed = body.slices.signed
        signature = (None, None) if signed is None else (signed.ids.tolist(), to_stored(signed.table))
        sizes = len(keys), len(data), part.key_count
        part_header = PartHeader(part.group, start, end, late, *sizes, same, filters, *signature)
        part_header.keys_before = has_same_keys
        header.groups.append(part_header)
        written += [keys, data]
    head = msgspec.json.encode(header)
    return b"".join([_MAGIC, struct.pack("<I", len(head)), head, *written, selected, late_rows])


def _has_keys_of(part: GroupPart, before: GroupPart) -> bool:
    """Whether a part has the very key columns (the same memory) of the previous part, so that they are written once."""
    if part.group != before.group or part.key_count != before.key_count or not part.keys:
        return False
    return all(_memory_of(own) == _memory_of(other) for own, other in zip(part.keys, before.keys, strict=True))


def _memory_of(column: pa.Array) -> tuple[int | None, ...]:
    return column.offset, len(column), *(None if buffer is None else buffer.address for buffer in column.buffers())


def _keys(part: GroupPart) -> bytes:
    columns = {f"k{i}": _key_column(key) for i, key in enumerate(part.keys)}
    if columns and part.buckets is not None:
        columns[_BUCKET] = pa.array(part.buckets.astype(np.uint16))
    return _stream(pa.RecordBatch.from_pydict(columns))


def _key_column(key: pa.Array) -> pa.Array:
    """A key column with a dictionary of the values that it uses, or without one if this takes fewer bytes."""
    if not pa.types.is_dictionary(key.type):
        return key
    codes, values = encode(key)
    positions = narrow(codes)
    if values.nbytes + positions.nbytes < len(key) * values.nbytes // max(len(values), 1):
        return pa.DictionaryArray.from_arrays(pa.array(positions), values)
    return values.take(pa.array(positions))


def _stream(batch: pa.RecordBatch) -> bytes:
    if not batch.num_columns:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=ipc_write("lz4")) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def header_of(packet: bytes) -> Header:
    """The header of a packet that this process encoded, so that it need not be checked."""
    (size,) = struct.unpack("<I", packet[4:8])
    return msgspec.json.decode(packet[8 : 8 + size], type=Header)


def decode_packet(packet: pa.Buffer) -> tuple[Header, list[GroupPart]]:
    """The header and groups of a packet.

    Raises:
        CorruptError: the bytes are not a valid packet.
    """
    if packet.size < 8 or packet[:4].to_pybytes() != _MAGIC:
        raise CorruptError("A packet does not begin as one.", "Run the batch again.")
    (size,) = struct.unpack("<I", packet[4:8].to_pybytes())
    try:
        header = msgspec.json.decode(packet[8 : 8 + size].to_pybytes(), type=Header)
        return header, _parts(packet, 8 + size, header)
    except (msgspec.MsgspecError, pa.ArrowException, OSError, KeyError, IndexError, StopIteration) as error:
        raise of_machine(error) or CorruptError(f"A packet does not read: {error}.", "Run the batch again.") from error


def late_rows_of(header: Header, packet: pa.Buffer) -> pa.RecordBatch | None:
    """The late rows of a packet, if it has any.

    Raises:
        CorruptError: the rows are not readable.
    """
    return _tail(packet, header.late_size, packet.size) if header.late_size else None


def selected_rows_of(header: Header, packet: pa.Buffer) -> pa.RecordBatch | None:
    """The rows of stateless queries of a packet, if it has any.

    Raises:
        CorruptError: the rows are not readable.
    """
    size = header.selected_size
    return None if isinstance(size, msgspec.UnsetType) else _tail(packet, size, packet.size - header.late_size)


def _tail(packet: pa.Buffer, size: int, end: int) -> pa.RecordBatch:
    try:
        return _read(packet, end - size, size)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise of_machine(error) or CorruptError(
            f"The rows of a packet do not read: {error}.", "Run the batch again."
        ) from error


def _parts(packet: pa.Buffer, at: int, header: Header) -> list[GroupPart]:
    parts: list[GroupPart] = []
    for group in header.groups:
        keys, buckets = (parts[-1].keys, parts[-1].buckets) if group.keys_before else ([], None)
        if group.keys_size:
            sent = _read(packet, at, group.keys_size)
            keys, has_buckets = sent.columns, sent.schema.names[-1] == _BUCKET
            buckets = np.asarray(keys.pop()).astype(np.int64) if has_buckets else None
        batch = _read(packet, at + group.keys_size, group.body_size)
        at += group.keys_size + group.body_size
        parts.append(GroupPart(group.group, keys, group.keys, _body(group, batch), buckets))
    return parts


def _body(group: PartHeader, batch: pa.RecordBatch) -> Piece | RawRows | Events:
    if group.events:
        return decode_events(batch)
    slices = read_slices(group.start_us, group.end_us, group.late_class, group.signature, group.signatures)
    if group.filters is not None:
        return raw_of_batch(batch, slices, group.filters)
    columns = {name: np.asarray(batch.column(name)) for name in batch.schema.names[2:]}
    columns.update({name: columns[other] for name, other in group.same.items()})
    return Piece(slices, np.asarray(batch.column(0)), np.asarray(batch.column(1)), columns)


def _read(packet: pa.Buffer, at: int, size: int) -> pa.RecordBatch:
    return pa.ipc.open_stream(packet[at : at + size], options=IPC_READ).read_next_batch()
