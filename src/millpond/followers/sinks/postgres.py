"""PostgreSQL sink: the rows of a record and the cursor are one transaction.

A row replaces the row with the same key, and a deleted row deletes it. Rows without a key are appended. The cursor is
a row of the table `millpond_cursors` in the same schema, locked while a record is written: of two publishers one
waits and then finds nothing left to do. The record's mark is in a column beside it; a table that an older version made
gets the column, unless the user may not change the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import msgspec
import psycopg
import pyarrow as pa
from psycopg import sql

from millpond.connections import Secret, named
from millpond.errors import QueryTypeError, StoreError
from millpond.followers.cursors import is_next
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.context import SinkContext
from millpond.followers.sinks.delivery import Delivery
from millpond.followers.sinks.rows_table import RowsTable
from millpond.followers.sinks.text import as_lines, csv_lines
from millpond.log.cursor import NOTHING_APPLIED, Cursor, ahead, cursor_at
from millpond.log.records import Entry
from millpond.model.endpoints import Sink
from millpond.model.selection import AnyQuery
from millpond.model.types import is_decimal

SECONDS = 30
"""The longest time that the server may take to respond, and that a suspended publisher may hold a lock."""

CURSORS = "millpond_cursors"
_STAGED = sql.Identifier("millpond_staged")
_PLACE = sql.Identifier("#")
"""The column of staged rows with their order in the record."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")
_TYPES = {
    "tinyint": "smallint", "smallint": "smallint", "int": "integer", "bigint": "bigint", "float": "real",
    "double": "double precision", "boolean": "boolean", "string": "text", "date": "date", "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}  # fmt: skip


class Database(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A PostgreSQL database as a named connection; `ca`: a PEM file, otherwise the system's authorities are trusted.

    `tables`: those that queries received over the network may write to, as names or patterns (`shop.*`).
    """

    kind: Literal["postgres"]
    host: str
    database: str
    user: str
    port: int = 5432
    password: Secret | None = None
    security: Literal["plaintext", "ssl"] = "plaintext"
    ca: str | None = None
    tables: tuple[str, ...] = ()

    def of_client(self) -> dict[str, Any]:
        """The settings of a libpq client.

        Raises:
            SetupError: the secret does not exist.
        """
        milliseconds = SECONDS * 1000
        timeouts = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        found: dict[str, Any] = {
            "host": self.host, "port": self.port, "dbname": self.database, "user": self.user,
            "connect_timeout": SECONDS, "tcp_user_timeout": milliseconds, "application_name": "millpond",
            "options": " ".join(f"-c {timeout}={milliseconds}" for timeout in timeouts), "sslmode": "disable",
        }  # fmt: skip
        if self.security == "ssl":
            found |= {"sslmode": "verify-full", "sslrootcert": self.ca or "system"}
        return found | ({} if self.password is None else {"password": self.password.value()})


class Table(NamedTuple):
    """A sink's table: its schema, if one is named, its name, its columns and key, and the named connection."""

    schema: str | None
    name: str
    rows: RowsTable
    connection: str | None

    @classmethod
    def of(cls, query: AnyQuery, sink: Sink) -> Table:
        """The table of a sink for the rows of a query.

        Raises:
            QueryTypeError: an option is invalid.
            UnsupportedQuery: a column has no PostgreSQL type, or no columns identify a row.
        """
        options, name = dict(sink.options), query.name
        if not (1 <= len(parts := options.get("table", "").split(".")) <= 2 and all(map(_NAME.fullmatch, parts))):
            what = f"the table {options['table']!r}" if options.get("table") else "no table"
            raise QueryTypeError(f"The postgres sink of {name} has {what}.", "Write 'table' = 'schema.table'.")
        if parts[-1] == CURSORS:
            raise QueryTypeError(f"The postgres sink of {name} writes to the table of cursors.", "Name another table.")
        rows = RowsTable.of(query, "postgres", _type_of, options.get("key"))
        return cls(parts[0] if len(parts) == 2 else None, parts[-1], rows, options.get("connection"))

    @property
    def identifier(self) -> sql.Identifier:
        """The quoted name of the table."""
        return sql.Identifier(*((self.schema,) if self.schema else ()), self.name)

    @property
    def cursors(self) -> sql.Identifier:
        """The name of the table of cursors in the same schema."""
        return sql.Identifier(*((self.schema,) if self.schema else ()), CURSORS)


class PostgresSink(Delivery):
    """Writes rows to a table; starts after record `since` if no cursor is stored.

    It connects at the first use. A missing table is created, with a unique index over the key.
    """

    def __init__(self, query: AnyQuery, pond_id: str, rows: RowsReader, since: int = NOTHING_APPLIED) -> None:
        self._table = Table.of(query, query.sink)
        self._whose, self._since = (pond_id, query.name), since
        self._connection: psycopg.Connection[Any] | None = None
        self._marked = True
        super().__init__(
            query.name, rows, f"The table {self._table.name}", f"set `n` of the query in {CURSORS} to the record"
        )

    @classmethod
    def open(cls, context: SinkContext) -> PostgresSink:
        """Open the sink of a query.

        Raises:
            QueryTypeError, UnsupportedQuery: see `Table.of`.
        """
        return cls(context.query, context.pond, context.rows, context.since)

    def close(self) -> None:
        """Close the connection to the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def known(self) -> Cursor:
        """See `Remote.known`: nothing."""
        return Cursor()

    def rewind(self, to: Cursor) -> str:
        """See `Reversible.rewind`: rows with a key are written over the existing rows.

        Raises:
            StoreError: the server does not answer.
        """
        by_hand = f"UPDATE {CURSORS} SET n = {to.n} WHERE query = '{self._query}'"
        if not self._table.rows.key:
            raise ahead(
                self.name, self.cursor(), to.n,
                f"Rows of the table {self._table.name} have no key, so those after record {to.n} cannot be "
                "found. Restore the folder `log` from a newer copy; or delete them yourself, if you can, run "
                f"`{by_hand}`, and repair again.",
            )  # fmt: skip
        with self._explained():
            connection = self._connected()
            with connection.transaction():
                before = self._at(connection, " FOR UPDATE")
                self._store(connection, to)
        return f"was set back from record {before.n} to {to.n}: later rows are written again, over those of their keys"

    def cursor(self) -> Cursor:
        """See `Follower.cursor`.

        Raises:
            StoreError: the server does not answer.
        """
        with self._explained():
            connection = self._connected()
            with connection.transaction():
                return self._at(connection, "")

    @contextmanager
    def _delivering(self, record: Entry, table: pa.Table | None) -> Iterator[None]:
        with self._explained():
            connection = self._connected()
            with connection.transaction():
                if is_next(self.name, self._at(connection, " FOR UPDATE"), record):
                    if table is not None:
                        self._write(connection, table)
                    self._store(connection, cursor_at(record))
                yield

    def _at(self, connection: psycopg.Connection[Any], lock: Literal["", " FOR UPDATE"]) -> Cursor:
        statement = sql.SQL("SELECT n{} FROM {} WHERE pond = %s AND query = %s" + lock).format(
            sql.SQL(", mark" if self._marked else ""), self._table.cursors
        )
        found = connection.execute(statement, self._whose).fetchone()
        if found is None:
            raise psycopg.OperationalError(f"the row of {self._query} in {CURSORS} is gone")
        return max(Cursor(self._since), Cursor(int(found[0]), (found[1] or "") if self._marked else ""))

    def _store(self, connection: psycopg.Connection[Any], cursor: Cursor) -> None:
        marked = sql.SQL(", mark = %s" if self._marked else "")
        text = sql.SQL("UPDATE {} SET n = %s{} WHERE pond = %s AND query = %s").format(self._table.cursors, marked)
        connection.execute(text, (*(cursor if self._marked else cursor[:1]), *self._whose))

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            settings = named(self._table.connection, "postgres", Database).of_client()
            # prepared statements of a session do not work with a connection pooler
            connection = psycopg.connect(**settings, autocommit=True, prepare_threshold=None)
            self._connection = connection
            self._make(connection)
        return self._connection

    def _make(self, connection: psycopg.Connection[Any]) -> None:
        """Create the table and that of cursors if they are missing; checks first, as creating needs more rights."""
        whose = "pond text NOT NULL, query text NOT NULL"
        cursors = f"{{}} ({whose}, n bigint NOT NULL, mark text, PRIMARY KEY (pond, query))"
        with connection.transaction():
            if not self._is_there(connection, self._table.cursors):
                connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS " + cursors).format(self._table.cursors))
            if not self._is_there(connection, self._table.identifier):
                columns = [_column(name, kind) for name, kind in self._table.rows.columns.items()]
                if self._table.rows.key:
                    columns.append(sql.SQL("UNIQUE NULLS NOT DISTINCT ({})").format(_names(self._table.rows.key)))
                made = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")
                connection.execute(made.format(self._table.identifier, sql.SQL(", ").join(columns)))
            self._marked = self._has_marks(connection)
            first = sql.SQL("INSERT INTO {} (pond, query, n) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING").format(
                self._table.cursors
            )
            connection.execute(first, (*self._whose, self._since))

    def _has_marks(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the table of cursors has a column for marks; adds the column if the user may."""
        known = "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'mark' AND NOT attisdropped"
        if connection.execute(known, (self._table.cursors.as_string(connection),)).fetchone() is not None:
            return True
        try:
            with connection.transaction():
                connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN mark text").format(self._table.cursors))
        except psycopg.errors.InsufficientPrivilege:
            return False
        return True

    def _is_there(self, connection: psycopg.Connection[Any], name: sql.Identifier) -> bool:
        found = connection.execute("SELECT to_regclass(%s)", (name.as_string(connection),)).fetchone()
        return found is not None and found[0] is not None

    def _write(self, connection: psycopg.Connection[Any], table: pa.Table) -> None:
        rows, changes = self._table.rows, self._table.rows.last(table)
        if not rows.key:
            self._stage(connection, changes.upserts)
            self._run(connection, "INSERT INTO {table} ({columns}) SELECT {columns} FROM {staged} ORDER BY {place}")
            return
        if len(changes.deletes):
            self._stage(connection, changes.deletes)
            self._delete(connection, changes.deletes)
            self._run(connection, "DELETE FROM {staged}")
        self._stage(connection, changes.upserts)
        others = [name for name in rows.columns if name not in rows.key]
        sets = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others)
        kept = sql.SQL("DO UPDATE SET {}").format(sets) if others else sql.SQL("DO NOTHING")
        text = "INSERT INTO {table} ({columns}) SELECT {columns} FROM {staged} ON CONFLICT ({key}) {kept}"
        self._run(connection, text, kept=kept)

    def _stage(self, connection: psycopg.Connection[Any], rows: pa.Table) -> None:
        """Copy rows with their positions into the temporary table."""
        columns = [("#", "bigint"), *self._table.rows.columns.items()]
        made = sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS {} ({}) ON COMMIT DELETE ROWS")
        connection.execute(made.format(_STAGED, sql.SQL(", ").join(_column(*column) for column in columns)))
        lines = csv_lines(rows.add_column(0, "#", pa.array(range(len(rows)), pa.int64())))
        copying = sql.SQL("COPY {} FROM STDIN (FORMAT csv, ESCAPE '\\')").format(_STAGED)
        with connection.cursor() as cursor, cursor.copy(copying) as copy:
            copy.write(as_lines(lines))

    def _delete(self, connection: psycopg.Connection[Any], rows: pa.Table) -> None:
        """Delete the rows with the staged keys; NULL keys need a second comparison, which uses no index."""
        key = self._table.rows.key
        nulls = any(rows[name].null_count for name in key)
        for how in ("t.{0} = s.{0}", *(["t.{0} IS NOT DISTINCT FROM s.{0}"] if nulls else [])):
            same = sql.SQL(" AND ").join(sql.SQL(how).format(sql.Identifier(name)) for name in key)
            self._run(connection, "DELETE FROM {table} AS t USING {staged} AS s WHERE {same}", same=same)

    def _run(self, connection: psycopg.Connection[Any], text: Any, **more: sql.Composable) -> None:
        names = {
            "table": self._table.identifier, "columns": _names(tuple(self._table.rows.columns)), "staged": _STAGED,
            "place": _PLACE, "key": _names(self._table.rows.key), **more,
        }  # fmt: skip
        connection.execute(sql.SQL(text).format(**names))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            lost = isinstance(error, psycopg.OperationalError)
            self.close()
            raise StoreError(
                f"PostgreSQL did not take what is for the table {self._table.name}: {' '.join(str(error).split())}.",
                "It is tried again; nothing is lost meanwhile." if lost
                else "Mend the table or its rights; it is tried again, and no later row is written before.",
            ) from error  # fmt: skip


def _type_of(kind: str) -> str | None:
    return kind.replace("decimal", "numeric") if is_decimal(kind) else _TYPES.get(kind)


def _column(name: str, kind: str) -> sql.Composable:
    return sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))


def _names(names: tuple[str, ...]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))
