"""Row batches: rows of one query, or of one packet, encoded as bytes with their column names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa

from millpond.arrays import ipc_write

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)

_PRIVATE = "__"
"""The prefix of columns that only the view reads; they are not published to sinks."""


def leaving(rows: _Rows) -> _Rows:
    """The rows as they are published: without private columns."""
    return rows.select([name for name in rows.schema.names if not name.startswith(_PRIVATE)])


def rows_stream(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Encodes batches (at least one) as an Arrow IPC stream compressed with lz4."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=ipc_write("lz4")) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data
