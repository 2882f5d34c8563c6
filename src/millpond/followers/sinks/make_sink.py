"""Creates the follower of a query's sink, and another one if its late rows have a sink (`sink_follower`).

parquet, json, csv   folder.FolderSink    exactly once: names by n, created if absent
kafka                kafka.KafkaSink      exactly once for readers of committed records: a transaction per record
postgres             postgres.PostgresSink  exactly once: rows and cursor are one transaction
delta                delta.DeltaSink      exactly once: a commit per record, with its number
webhook              webhook.WebhookSink  at least once: the same request has the same key
foreach              foreach.ForeachSink  at least once: a function of this process
console              ConsoleSink          at least once: a crash after printing prints again
noop                 NoopSink             only a cursor
redis                keyed.KeyedSink      at least once, but never an older row over a newer
memory               MemorySink           exactly once per process; a new process starts with what is retained
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import QueryError, UnsupportedQuery
from millpond.followers.cursors import CursorFile, cursor_path, explained, follower_name, is_next
from millpond.followers.record_rows import RowsGone, RowsReader
from millpond.followers.sinks.external_sinks import OUTSIDE, outside_sink
from millpond.followers.sinks.file_formats import format_of, is_folder
from millpond.followers.sinks.folder import FolderSink, folder_cursor
from millpond.followers.sinks.foreach import Foreach
from millpond.followers.sinks.redis_rows import KeyedSink, target_of
from millpond.local_path import local_path
from millpond.log.cursor import NOTHING_APPLIED, Cursor, cursor_at
from millpond.log.follower import Follower
from millpond.log.manifest import Manifest
from millpond.log.records import Entry
from millpond.model.endpoints import KEYED, SINKS, Sink
from millpond.model.selection import AnyQuery
from millpond.runtime.gather.dead_letters import group_of
from millpond.runtime.joins.lookup_rows import OpenRows

_SHOWN_ROWS = 20


class NoopSink:
    """Keeps a cursor, and writes no rows."""

    def __init__(self, query: str, cursors: Path, since: int = NOTHING_APPLIED, late: bool = False) -> None:
        self.name = follower_name(query, late)
        self._query = query
        self._since = since
        with explained(cursors):
            cursors.mkdir(parents=True, exist_ok=True)
        self._cursor_file = _cursor_file(cursors, query)

    def cursor(self) -> Cursor:
        """See `Follower.cursor`."""
        return max(Cursor(self._since), self._cursor_file.read())

    def rewind(self, to: Cursor) -> str:
        """See `Reversible.rewind`."""
        self._cursor_file.write(to)
        return f"shows the rows of what came after record {to.n} again"

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`."""
        if is_next(self.name, self.cursor(), record):
            self._show(n, record)
            self._cursor_file.write(cursor_at(record))

    def _show(self, n: int, record: Entry) -> None:
        """Publish the rows of record `n`; this class does nothing."""


class ConsoleSink(NoopSink):
    """Prints the rows of each record as a small table, at least once; skips rows that were pruned."""

    def __init__(
        self,
        query: str,
        cursors: Path,
        rows: RowsReader,
        since: int = NOTHING_APPLIED,
        shown: int = _SHOWN_ROWS,
        write: Callable[[str], object] | None = None,
        late: bool = False,
    ) -> None:
        super().__init__(query, cursors, since, late)
        self._title = f"{query}, late" if late else query
        self._rows = rows
        self._shown = shown
        self._write = write

    def _show(self, n: int, record: Entry) -> None:
        try:
            table = self._rows.table(record, self._query)
        except RowsGone:
            return
        if table is not None:
            # Looked up at each call, so that output can be captured after the start.
            (self._write or sys.stdout.write)(_drawn(self._title, n, table, self._shown))


class MemorySink:
    """Keeps the rows of each record as Arrow tables, for tests and notebooks; thread-safe."""

    def __init__(self, query: str, rows: RowsReader, since: int = NOTHING_APPLIED, late: bool = False) -> None:
        self.name = follower_name(query, late)
        self._query = query
        self._rows = rows
        self._lock = threading.Lock()
        self._reached = Cursor(since)
        self._epochs: list[tuple[int, pa.Table]] = []

    def cursor(self) -> Cursor:
        """See `Follower.cursor`; `since` in a new process."""
        with self._lock:
            return self._reached

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`; rows that were pruned before this process started are skipped."""
        with self._lock:
            if not is_next(self.name, self._reached, record):
                return
            try:
                table = self._rows.table(record, self._query)
            except RowsGone:
                table = None
            if table is not None:
                self._epochs.append((n, table))
            self._reached = cursor_at(record)

    def epochs(self) -> list[tuple[int, pa.Table]]:
        """The number and the rows of each record that had any, in order."""
        with self._lock:
            return list(self._epochs)

    def table(self) -> pa.Table:
        """All rows so far, in the order of records; a table without columns before the first row."""
        tables = [table for _, table in self.epochs()]
        return pa.concat_tables(tables) if tables else pa.table({})


class MemoryTables:
    """The memory sinks of a pond by query name."""

    def __init__(self) -> None:
        self._sinks: dict[str, MemorySink] = {}

    def add(self, query: str, sink: MemorySink) -> None:
        """Add a sink; it replaces an earlier sink of the same name."""
        self._sinks[query] = sink

    def table(self, query: str) -> pa.Table:
        """All rows of a query so far; QueryError if it has no memory sink."""
        return self.sink(query).table()

    def sink(self, query: str) -> MemorySink:
        """The sink of a query; QueryError if it has no memory sink."""
        if query not in self._sinks:
            raise QueryError(f"The query {query} keeps no rows in memory.", "Give it the sink `memory`.")
        return self._sinks[query]


def sink_follower(
    query: AnyQuery,
    pond_id: str,
    rows: RowsReader,
    cursors: Path,
    *,
    since: int = NOTHING_APPLIED,
    memory: MemoryTables | None = None,
    late: bool = False,
    opens: Callable[[str | None], OpenRows] | None = None,
    functions: Mapping[str, Foreach] | None = None,
) -> Follower:
    """The follower that writes a query's rows, or its late rows, to their sink; `rows` reads these rows.

    `cursors`: the folder of this pond for cursors of sinks that have no folder of their own. A follower without a
    cursor starts after record `since`: the number of the record that added the query, or -1. `opens`: opens the rows
    of other programs. `functions`: the functions of `foreach` sinks, by query.
    UnsupportedQuery: the sink's format, options or columns do not fit. ForeignPondError, PlaceError: see
    `FolderSink`.
    """
    sink = query.late_sink or Sink() if late else query.sink
    cursors = cursors / "late" if late else cursors
    if is_folder(sink):
        if not sink.path:
            raise UnsupportedQuery(f"The {sink.format} sink of {query.name} has no path.", "Give it a folder.")
        form = format_of(sink, () if late else query.output)
        return FolderSink(query.name, pond_id, local_path(sink.path, "The sink's path"), form, rows, since, late)
    if sink.format == "console":
        return ConsoleSink(query.name, cursors, rows, since, _console_rows(sink), late=late)
    if sink.format == "noop":
        return NoopSink(query.name, cursors, since, late)
    if sink.format == "memory":
        kept = MemorySink(query.name, rows, since, late)
        if memory is not None:
            memory.add(query.name, kept)
        return kept
    if sink.format == KEYED and late:
        raise UnsupportedQuery(f"Late events of {query.name} have no key in Redis.", "Give them a folder.")
    if sink.format == KEYED and opens is not None:
        target, file = target_of(query, sink), cursor_path(cursors, query.name)
        return KeyedSink(query.name, pond_id, target, rows, file, opens(dict(sink.options).get("address")), since)
    if sink.format in OUTSIDE and not late:
        return outside_sink(query, pond_id, rows, cursors, since, functions or {})
    raise UnsupportedQuery(f"There is no sink {sink.format}.", f"Use one of {', '.join(SINKS)}.")


def dead_letter_follower(
    stream: str, sink: Sink, pond_id: str, rows: RowsReader, since: int = NOTHING_APPLIED
) -> Follower:
    """The follower that writes the malformed records of a stream to their folder; `rows` reads these records.

    A new folder begins after record `since`.

    ForeignPondError, PlaceError: see `FolderSink`.
    """
    folder = local_path(sink.path or "", "The sink's path")
    return FolderSink(group_of(stream), pond_id, folder, format_of(sink), rows, since)


def sink_cursor(query: AnyQuery, cursors: Path) -> int | None:
    """The record up to which a query's rows are in its sink, read from outside the pond; None: not known there.

    Raises:
        PlaceError: the sink's folder cannot be read.
    """
    if is_folder(query.sink):
        return folder_cursor(local_path(query.sink.path or "", "The sink's path"))
    kind = query.sink.format
    if kind in ("memory", "postgres"):
        return None
    if kind in OUTSIDE:
        return CursorFile(cursor_path(cursors, query.name, kind)).read().n
    if kind in ("noop", "console", KEYED):
        return _cursor_file(cursors, query.name).read().n
    raise ValueError(f"Nothing says where a sink of the format {kind!r} keeps its cursor.")


def _cursor_file(cursors: Path, query: str) -> CursorFile:
    return CursorFile(cursor_path(cursors, query))


def _console_rows(sink: Sink) -> int:
    text = dict(sink.options).get("numRows", str(_SHOWN_ROWS))
    if not text.isdecimal():
        raise UnsupportedQuery(f"The option numRows is {text!r}.", "Use a whole number.")
    return int(text)


def _drawn(query: str, n: int, table: pa.Table, shown: int) -> str:
    total = len(table)
    columns = []
    for name, column in zip(table.column_names, table.slice(0, shown).columns, strict=True):
        cells = [name] + ["NULL" if cell is None else _cell(cell) for cell in _printable(column).to_pylist()]
        width = max(map(len, cells))
        columns.append([cell.ljust(width) for cell in cells])
    lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    more = [f"… and {total - shown} more"] if total > shown else []
    counted = "1 row" if total == 1 else f"{total} rows"
    return "\n".join([f"{query} @ {n} ({counted})", *lines, *more, "", ""])


def _printable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_temporal(column.type):
        return pc.cast(column, pa.utf8())
    return column


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join("NULL" if part is None else _cell(part) for part in value.values()) + "}"
    return str(value)
