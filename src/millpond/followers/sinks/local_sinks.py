"""Opens the sinks that need no other system: noop, console, memory and foreach."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import UnsupportedQuery
from millpond.followers.cursors import CursorFile, CursorPath, cursor_path, follower_name, is_next, make_folder
from millpond.followers.record_rows import RowsGone, RowsReader
from millpond.followers.sinks.context import SinkContext
from millpond.followers.sinks.delivery import deliver
from millpond.followers.sinks.in_process import ForeachSink, MemorySink
from millpond.followers.sinks.text import interval_texts
from millpond.formats.escapes import printable
from millpond.log.cursor import NOTHING_APPLIED, Cursor, cursor_at
from millpond.log.manifest import Manifest
from millpond.log.records import Entry
from millpond.model.endpoints import Sink

_log = logging.getLogger("millpond.pond")

_SHOWN_ROWS = 20


class NoopSink:
    """Keeps a cursor, and writes no rows."""

    def __init__(self, query: str, cursors: CursorPath, since: int = NOTHING_APPLIED, late: bool = False) -> None:
        self.name = follower_name(query, late)
        self._query = query
        self._since = since
        make_folder(cursors)
        self._cursor_file = CursorFile(cursor_path(cursors, query))

    def cursor(self) -> Cursor:
        return max(Cursor(self._since), self._cursor_file.read())

    def rewind(self, to: Cursor) -> str:
        self._cursor_file.write(to)
        return f"shows the rows after record {to.n} again"

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        if is_next(self.name, self.cursor(), record):
            deliver(self._delivering(n, record))

    @contextmanager
    def _delivering(self, n: int, record: Entry) -> Iterator[None]:
        self._show(n, record)
        yield
        self._cursor_file.write(cursor_at(record))

    def _show(self, n: int, record: Entry) -> None:
        """Publish the rows of record `n`; this class does nothing."""


class ConsoleSink(NoopSink):
    """Prints the rows of each record as a small table, at least once; skips rows that were pruned.

    If the reader of standard output has ended, as `head` does, the sink goes on without printing.
    """

    def __init__(
        self,
        query: str,
        cursors: CursorPath,
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
            (self._write or _print)(_drawn(self._title, n, table, self._shown))


def _print(text: str) -> None:
    # A process that is killed after the cursor was stored must not lose text of a buffered output.
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        # No later attempt can succeed, so this text and all that follows, also at the end of the process, goes nowhere.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        _log.warning("Standard output was closed, so console sinks show no more rows.")


def open_noop(context: SinkContext) -> NoopSink:
    """Open the sink `noop`, or `subscribers`, whose rows the service reads from the log."""
    return NoopSink(context.query.name, context.cursors, context.since, context.late)


def open_console(context: SinkContext) -> ConsoleSink:
    """Open the sink `console`.

    Raises:
        UnsupportedQuery: `numRows` is no number.
    """
    shown = _console_rows(context.sink)
    return ConsoleSink(context.query.name, context.cursors, context.rows, context.since, shown, late=context.late)


def open_memory(context: SinkContext) -> MemorySink:
    """Open the sink `memory`, and add it to the tables of its pond."""
    made = MemorySink(context.query.name, context.rows, context.since, context.late)
    if context.memory is not None:
        context.memory.add(context.query.name, made)
    return made


def open_foreach(context: SinkContext) -> ForeachSink:
    """Open the sink `foreach`.

    Raises:
        QueryTypeError: the query has no function.
    """
    name = context.query.name
    return ForeachSink(name, context.rows, context.cursor_file, context.functions.get(name), context.since)


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
    if pa.types.is_duration(column.type):
        return pa.chunked_array(map(interval_texts, column.chunks), pa.large_utf8())
    if pa.types.is_temporal(column.type):
        return pc.cast(column, pa.utf8())
    return column


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join("NULL" if part is None else _cell(part) for part in value.values()) + "}"
    return printable(str(value))
