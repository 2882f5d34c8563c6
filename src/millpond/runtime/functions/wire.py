"""Frames between a worker and the child that runs a user's function: a JSON object, then Arrow streams.

A frame is the size of the JSON (uint32), the size of all streams together (uint64), both little-endian, the JSON,
the streams; `sizes` in the JSON says where one stream ends. Nothing is pickled.
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
    """A frame as buffers, none of which is copied."""
    bodies = [_stream(table) for table in tables]
    text = json.dumps({**header, "sizes": [body.size for body in bodies]}).encode()
    return [HEAD.pack(len(text), sum(body.size for body in bodies)) + text, *bodies]


def decode_header(text: bytes) -> dict[str, Any]:
    """The JSON object of a frame.

    Raises:
        ValueError: it is none.
    """
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("the frame's JSON is no object")
    return header


def decode_tables(header: Mapping[str, Any], body: Any) -> list[pa.Table]:
    """The tables of a frame, over `body` without a copy.

    Raises:
        ValueError: they do not read (Arrow's own errors are of this class).
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
