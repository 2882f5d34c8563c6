"""Frames between a worker and the child that runs a user's function: a JSON object, then Arrow streams.

A frame consists of the size of the JSON (uint32) and the total size of the streams (uint64), both little-endian, then
the JSON and the streams. `sizes` in the JSON has the size of each stream. Nothing is pickled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

HEAD = struct.Struct("<IQ")
MOST_JSON = 1 << 20


def encode(header: Mapping[str, Any], tables: Sequence[pa.Table] = ()) -> list[Any]:
    """Encodes a frame as a list of buffers, without copying them."""
    bodies = [_stream(table) for table in tables]
    text = json.dumps({**header, "sizes": [body.size for body in bodies]}).encode()
    return [HEAD.pack(len(text), sum(body.size for body in bodies)) + text, *bodies]


def decode_header(text: bytes) -> dict[str, Any]:
    """Decodes the JSON object of a frame.

    Raises:
        ValueError: the text is not a JSON object.
    """
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("the frame's JSON is no object")
    return header


def decode_tables(header: Mapping[str, Any], body: Any) -> list[pa.Table]:
    """Decodes the tables of a frame; they refer to the memory of `body`.

    Raises:
        ValueError: a table is not readable (Arrow's own errors are of this class).
    """
    buffer, tables, start = pa.py_buffer(body), [], 0
    for size in header["sizes"]:
        with pa.ipc.open_stream(buffer.slice(start, size)) as reader:
            tables.append(reader.read_all())
        start += size
    return tables


def _stream(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
