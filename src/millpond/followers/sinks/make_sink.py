"""Creates the follower of a query's sink, and another one if its late rows have a sink (`sink_follower`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

from millpond.errors import PlaceError, UnsupportedQuery
from millpond.followers.cursors import CursorFile, CursorPath, cursor_path
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.context import SinkContext
from millpond.followers.sinks.file_formats import format_of
from millpond.followers.sinks.folder import FolderSink, folder_cursor
from millpond.followers.sinks.in_process import Foreach, MemoryTables
from millpond.followers.sinks.kinds import KINDS, sink_kind, sink_path
from millpond.followers.upserts import Instances
from millpond.log.cursor import NOTHING_APPLIED, Cursor
from millpond.log.follower import Follower
from millpond.log.locations.address import address_of
from millpond.model.endpoints import Sink
from millpond.model.selection import AnyQuery
from millpond.model.stream import Stream
from millpond.plugins import imported
from millpond.runtime.joins.lookup_rows import OpenRows
from millpond.runtime.packets.row_batches import dead_letters_of

OpenSink: TypeAlias = Callable[[SinkContext], Follower]
"""The function named by `SinkKind.opens`."""


def sink_follower(
    query: AnyQuery,
    pond_id: str,
    rows: RowsReader,
    cursors: CursorPath,
    *,
    since: int = NOTHING_APPLIED,
    memory: MemoryTables | None = None,
    late: bool = False,
    opens: Callable[[str | None], OpenRows] | None = None,
    functions: Mapping[str, Foreach] | None = None,
    instances: Instances | None = None,
) -> Follower:
    """The follower that writes a query's rows, or its late rows, to their sink; `rows` reads these rows.

    `cursors`: the folder of this pond for cursors of sinks that have no folder of their own. A follower without a
    cursor starts after record `since`: the number of the record that added the query, or -1. `opens`: opens the rows
    of other programs. `functions`: the functions of `foreach` sinks, by query. `instances`: see `SinkContext`.
    UnsupportedQuery: there is no such sink, or its options or columns do not fit. SetupError: its library is missing,
    or its package cannot be imported.
    ForeignPondError, PlaceError: see `FolderSink`.
    """
    sink = query.late_sink or Sink() if late else query.sink
    kind = sink_kind(sink.format)
    if late and not kind.late:
        known = ", ".join(one.name for one in KINDS.values() if one.late)
        raise UnsupportedQuery(f"The late rows of {query.name} cannot go to {kind.name}.", f"Use one of {known}.")
    folder = cursors / "late" if late else cursors
    context = SinkContext(
        query, sink, kind, pond_id, rows, folder, since, late, memory, functions or {}, opens, instances
    )
    opener: OpenSink = imported(f"the sink {kind.name}", kind.opens, kind.extra)
    return opener(context)


def dead_letter_follower(
    stream: str, sink: Sink, pond_id: str, rows: RowsReader, since: int = NOTHING_APPLIED
) -> Follower:
    """The follower that writes the malformed records of a stream to their folder; `rows` reads these records.

    A new folder begins after record `since`, which it stores at once.

    ForeignPondError, PlaceError: see `FolderSink`.
    """
    folder = address_of(sink.path or "", "The sink's path")
    made = FolderSink(dead_letters_of(stream), pond_id, folder, format_of(sink), rows, since)
    if since != NOTHING_APPLIED and made.cursor() == Cursor(since):
        made.rewind(Cursor(since))
    return made


def letters_since(before: Stream, now: Stream, head: int) -> int:
    """The record after which the folder of a stream's dead letters begins, if its declaration was `before`.

    Another folder continues where the previous one ended, or after `head`, the newest record.
    """
    old, new = before.on_malformed.sink, now.on_malformed.sink
    if old == new:
        return NOTHING_APPLIED
    kept = NOTHING_APPLIED
    if old is not None:
        with suppress(PlaceError):
            kept = folder_cursor(address_of(sink_path(old, "The folder of dead letters"), "The folder of dead letters"))
    return head if kept == NOTHING_APPLIED else kept


def sink_cursor(query: AnyQuery, cursors: CursorPath) -> int | None:
    """The record up to which a query's rows are in its sink, read from outside the pond; None: not known there.

    Raises:
        UnsupportedQuery: there is no such sink.
        PlaceError: the sink's folder cannot be read.
    """
    kind = sink_kind(query.sink.format)
    if kind.cursor == "file":
        return CursorFile(cursor_path(cursors, query.name, kind.suffix)).read().n
    if kind.cursor == "folder":
        return folder_cursor(address_of(query.sink.path or "", "The sink's path"))
    return None
