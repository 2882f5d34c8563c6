"""Row batches: rows of one query, or of one packet, and their encoding as bytes with their column names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import ipc_write

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)

RowKind: TypeAlias = Literal["rows", "late", "dead", "differing"]
"""The sections that hold rows; see `runtime.rows.row_writer`."""


class RowBatch(NamedTuple):
    """Rows that leave a fold, with all that is carried in columns: outputs, window bounds, operation and revision.

    `owner`: the name of the query, or for dead letters of the stream.
    """

    owner: str
    rows: pa.RecordBatch
    kind: RowKind = "rows"


_PRIVATE = "__"
"""The prefix of columns that only the view reads; they are not published to sinks."""


def without_private_columns(rows: _Rows) -> _Rows:
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


def section_group(kind: RowKind, owner: str) -> str:
    """The group of the sections with these rows."""
    return dead_letters_of(owner) if kind == "dead" else owner


def dead_letters_of(stream: str) -> str:
    """The group of the sections with dead letters of a stream; no query can have this name."""
    return f"dead letters of {stream}"


_TIMELESS = "the event time {}, {}, does not compute"


def timeless_reason(column: str, sql: str) -> str:
    """The reason of a dead letter whose record parses, but whose event time, computed by `sql`, is NULL or raises."""
    return _TIMELESS.format(column, sql)


def is_timeless(reason: str) -> bool:
    """Whether this is a `timeless_reason`.

    >>> is_timeless(timeless_reason("ts", "timestamp_millis(ms)")), is_timeless("the value does not parse")
    (True, False)
    """
    start, *_, end = _TIMELESS.split("{}")
    return reason.startswith(start) and reason.endswith(end)


def row_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column of rows by name; `<window>.start`, `.end` and `.time` name the bounds of a window column.

    The `time` of a window is the last microsecond before its end.
    """
    if name in batch.schema.names:
        return batch.column(name)
    window, _, bound = name.rpartition(".")
    whole = batch.column(window)
    if bound != "time":
        return whole.field(bound)
    end = whole.field("end")
    return pc.subtract(end.view(pa.int64()), 1).view(end.type)
