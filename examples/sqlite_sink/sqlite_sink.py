"""A sink of a package: rows go to a table of SQLite, exactly once, because rows and cursor are one transaction.

CREATE STREAMING TABLE spend USING sqlite TBLPROPERTIES ('path' = 'shop.db', 'table' = 'spend') AS SELECT …
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from millpond.errors import StoreError
from millpond.sinks import Cursor, Delivery, Entry, RowsTable, SinkContext, SinkKind, cursor_at, is_next

KIND = SinkKind(name="sqlite", opens="sqlite_sink:SqliteSink", options=("table", "key"), path="file", cursor="target")
"""What the entry point names."""

TYPES = {
    "boolean": "INTEGER", "int": "INTEGER", "bigint": "INTEGER", "double": "REAL", "string": "TEXT",
    "timestamp": "INTEGER",
}  # fmt: skip
"""The type of a column in SQLite by its SQL type; times are microseconds since 1970 UTC."""


class SqliteSink(Delivery):
    """Writes rows to a table; a row replaces the one with the same key. It connects at the first use."""

    def __init__(self, context: SinkContext) -> None:
        name = context.query.name
        super().__init__(name, context.rows, f"The file {context.path}", "set `n` of the query in `cursors`")
        self._rows_table = RowsTable.of(context.query, KIND.name, TYPES.get, context.options.get("key"))
        self._path, self._table = context.path, _quoted(context.options.get("table", name))
        self._whose, self._since = (context.pond, name), context.since
        self._database: sqlite3.Connection | None = None

    def cursor(self) -> Cursor:
        """The last record whose rows are in the table."""
        with self._connected() as database:
            return self._stored(database)

    def close(self) -> None:
        """Close the file."""
        held, self._database = self._database, None
        if held is not None:
            held.close()

    @contextmanager
    def _delivering(self, record: Entry, table: pa.Table | None) -> Iterator[None]:
        with self._connected() as database:
            database.execute("BEGIN IMMEDIATE")  # another process may deliver at the same time
            if is_next(self.name, self._stored(database), record):
                if table is not None:
                    self._write(database, table)
                database.execute("REPLACE INTO cursors VALUES (?, ?, ?, ?)", (*self._whose, *cursor_at(record)))
            yield

    def _stored(self, database: sqlite3.Connection) -> Cursor:
        text = "SELECT n, mark FROM cursors WHERE pond = ? AND query = ?"
        return Cursor(*(database.execute(text, self._whose).fetchone() or (self._since,)))

    def _write(self, database: sqlite3.Connection, table: pa.Table) -> None:
        key, changes = self._rows_table.key, self._rows_table.last(table)
        if key:
            same = " AND ".join(f"{_quoted(name)} IS ?" for name in key)  # NULL IS NULL is true
            for rows in changes:
                database.executemany(f"DELETE FROM {self._table} WHERE {same}", _tuples(rows.select(key)))
        places = ", ".join("?" * len(self._rows_table.columns))
        database.executemany(f"INSERT INTO {self._table} VALUES ({places})", _tuples(changes.upserts))

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            if self._database is None:
                self._database = sqlite3.connect(self._path, 30, isolation_level=None, check_same_thread=False)
                for text in self._definitions():
                    self._database.execute(text)
            with self._database:  # commits at the end, or rolls back
                yield self._database
        except sqlite3.Error as error:
            self.close()
            raise StoreError(f"SQLite did not take rows of {self._query}: {error}.", "It is tried again.") from error

    def _definitions(self) -> Iterator[str]:
        columns, key = self._rows_table.columns, self._rows_table.key
        yield "CREATE TABLE IF NOT EXISTS cursors (pond, query, n INTEGER, mark TEXT, PRIMARY KEY (pond, query))"
        listed = ", ".join(f"{_quoted(name)} {kind}" for name, kind in columns.items())
        yield f"CREATE TABLE IF NOT EXISTS {self._table} ({listed})"
        if key:
            index = _quoted(f"{self._query}_key")
            yield f"CREATE INDEX IF NOT EXISTS {index} ON {self._table} ({', '.join(map(_quoted, key))})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _tuples(rows: pa.Table) -> list[tuple[object, ...]]:
    columns = [one.cast(pa.int64()) if pa.types.is_timestamp(one.type) else one for one in rows.columns]
    return list(zip(*(one.to_pylist() for one in columns), strict=True))
