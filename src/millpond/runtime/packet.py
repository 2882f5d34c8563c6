"""Packets: what the one shuffle moves, from one source partition to one instance, as bytes.

packet  = "MPK1" , u32 length of header , header (JSON) , sections
section = an Arrow IPC stream, lz4: keys and cells in turn, for each group the header names
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from millpond.errors import CorruptError
from millpond.state.cells import Piece, Slices
from millpond.state.segments import columns_batch

_MAGIC = b"MPK1"


class GroupPart(msgspec.Struct):
    """One group's share of a packet: its slices, and the sizes in bytes of its keys and cells."""

    group: str
    start_us: list[int]
    end_us: list[int]
    late_class: list[int]
    keys_size: int
    cells_size: int
    keys: int
    same: dict[str, str]


class Header(msgspec.Struct):
    """Where a packet comes from and what its task saw: `newest_us` is the largest event time per source partition.

    `counts` travel to one instance only.
    """

    stream: str
    partition: int
    sequence: int
    newest_us: dict[str, int]
    counts: dict[str, dict[str, int]]
    groups: list[GroupPart] = []


class GroupCells(msgspec.Struct):
    """Partials of one group on their way: distinct key columns, and cells whose slot is a position among them."""

    group: str
    keys: list[pa.Array]
    key_count: int
    piece: Piece


def encode_packet(header: Header, parts: Sequence[GroupCells]) -> bytes:
    """The bytes of a packet; `header.groups` is filled in."""
    body: list[bytes] = []
    for part in parts:
        keys = _stream(pa.RecordBatch.from_arrays(part.keys, names=[f"k{i}" for i in range(len(part.keys))]))
        piece = part.piece
        batch, same = columns_batch({"slice": piece.slice_rows, "slot": piece.slots}, piece.columns)
        cells = _stream(batch)
        slices = piece.slices
        header.groups.append(
            GroupPart(
                part.group,
                slices.start_us.tolist(),
                slices.end_us.tolist(),
                slices.late_class.tolist(),
                len(keys),
                len(cells),
                part.key_count,
                same,
            )
        )
        body += [keys, cells]
    head = msgspec.json.encode(header)
    return b"".join([_MAGIC, struct.pack("<I", len(head)), head, *body])


def _stream(batch: pa.RecordBatch) -> bytes:
    if not batch.num_columns:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_packet(packet: pa.Buffer) -> tuple[Header, list[GroupCells]]:
    """The header and groups of a packet.

    Raises:
        CorruptError: the bytes are no packet.
    """
    if packet.size < 8 or packet[:4].to_pybytes() != _MAGIC:
        raise CorruptError("A packet does not begin as one.", "Run the batch again.")
    (size,) = struct.unpack("<I", packet[4:8].to_pybytes())
    header = msgspec.json.decode(packet[8 : 8 + size].to_pybytes(), type=Header)
    at, parts = 8 + size, []
    for group in header.groups:
        keys = _read(packet, at, group.keys_size).columns if group.keys_size else []
        cells = _read(packet, at + group.keys_size, group.cells_size)
        at += group.keys_size + group.cells_size
        columns = {name: np.asarray(cells.column(name)) for name in cells.schema.names[2:]}
        columns.update({name: columns[other] for name, other in group.same.items()})
        slices = Slices(
            *(np.array(part, np.int64) for part in (group.start_us, group.end_us, group.late_class))
        )
        piece = Piece(slices, np.asarray(cells.column(0)), np.asarray(cells.column(1)), columns)
        parts.append(GroupCells(group.group, keys, group.keys, piece))
    return header, parts


def _read(packet: pa.Buffer, at: int, size: int) -> pa.RecordBatch:
    return pa.ipc.open_stream(packet[at : at + size]).read_next_batch()
