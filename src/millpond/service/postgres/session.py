"""The SQL session of one connection: transactions, settings, and statements over the tables of the pond.

A statement sees the pond as of one moment. In a transaction with the isolation level REPEATABLE READ or SERIALIZABLE,
all statements see that of the first one.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import NamedTuple

import pyarrow as pa

from millpond.control.wiring.pond_reader import SERVE_AGAIN
from millpond.service.postgres.client_catalog import SEARCH_PATH
from millpond.service.postgres.client_sql import Statement, adapted
from millpond.service.postgres.messages import ResultColumn
from millpond.service.postgres.pond_tables import CATALOG, PUBLIC, PondTables, Table
from millpond.service.postgres.result_format import TEXT, TEXT_OID, formats_of, parameter, projection
from millpond.service.postgres.sandbox import Checked, Sandbox, StatementError, with_values
from millpond.version import VERSION

SECONDS = 30.0
"""The longest that DuckDB works for a statement."""

_GRACE_SECONDS = 5.0
_UNSTOPPABLE = 75
"""The exit status of a process that ends itself because a statement does not stop."""

REPORTED = {
    "server_version": "14.0", "server_encoding": "UTF8", "client_encoding": "UTF8", "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres", "TimeZone": "UTC", "integer_datetimes": "on", "standard_conforming_strings": "on",
    "is_superuser": "off", "default_transaction_read_only": "on", "in_hot_standby": "off",
}  # fmt: skip
"""The settings that a client is sent when it connects."""

SETTINGS = {name.lower(): value for name, value in REPORTED.items()} | {
    "version": f"PostgreSQL 14.0 (Millpond {VERSION})", "server_version_num": "140000",
    "search_path": ", ".join(SEARCH_PATH),
    "transaction_read_only": "on", "max_identifier_length": "63", "statement_timeout": f"{SECONDS:.0f}s",
    "application_name": "", "extra_float_digits": "1", "bytea_output": "hex", "lc_collate": "C", "lc_ctype": "C",
    "transaction_isolation": "read committed", "default_transaction_isolation": "read committed", "row_security": "on",
    "max_index_keys": "32", "ssl": "off",
}  # fmt: skip

_LEVEL = re.compile(r"\bISOLATION\s+LEVEL\s+(REPEATABLE\s+READ|SERIALIZABLE|READ\s+(?:UN)?COMMITTED)", re.IGNORECASE)
_WITHOUT_EFFECT = {
    "SET": "SET", "RESET": "RESET", "DISCARD": "DISCARD ALL", "SAVEPOINT": "SAVEPOINT", "RELEASE": "RELEASE",
    "CLOSE": "CLOSE CURSOR", "DEALLOCATE": "DEALLOCATE", "UNLISTEN": "UNLISTEN", "LISTEN": "LISTEN",
}  # fmt: skip
_BEGIN, _END, _UNDO = ("BEGIN", "START"), ("COMMIT", "END"), ("ROLLBACK", "ABORT")
_TO_SAVEPOINT = ("ROLLBACK TO", "ROLLBACK TRANSACTION TO", "ROLLBACK WORK TO")
_TABLES = (
    "SELECT table_schema AS schema, table_name AS name FROM information_schema.tables "
    f"WHERE table_schema IN ('{PUBLIC}', '{CATALOG}') ORDER BY 1 DESC, 2"
)
_LISTS = {
    "ALL": "SELECT name, setting, short_desc AS description FROM client.pg_settings ORDER BY name",
    "QUERIES": "SELECT name, kind, state, version, sink FROM millpond.queries ORDER BY name",
    "STREAMS": "SELECT * FROM millpond.streams ORDER BY name",
    "PARAMETERS": "SELECT * FROM millpond.parameters ORDER BY name",
    "CHANGES": "SELECT * FROM millpond.changes ORDER BY record DESC",
    "TABLES": _TABLES, "ALL TABLES": _TABLES,
}


class Answer(NamedTuple):
    """The answer to a statement: its tag, and for a SELECT its columns, their formats and its rows.

    With `counted` the number of rows is added to the tag.
    """

    tag: str
    columns: Sequence[ResultColumn] = ()
    formats: Sequence[int] = ()
    batches: Iterator[pa.RecordBatch] = iter(())
    counted: bool = False


class Session:
    """The session of one connection; use it in one thread, except `interrupt`.

    Raises:
        MillpondError: a statement is refused or fails; by `run` and `columns`.
    """

    def __init__(self, tables: PondTables, seconds: float = SECONDS) -> None:
        self._tables, self._seconds = tables, seconds
        self._sandbox = Sandbox(SETTINGS)
        self._key: object = None
        self._known: frozenset[Table] = frozenset()
        self._unserved: frozenset[str] = frozenset()
        self._repeatable = self._default_repeatable = self._frozen = False
        self.transaction = "I"
        """`I`: no transaction; `T`: in a transaction; `E`: in a failed one."""

    def close(self) -> None:
        """Free the memory."""
        self._sandbox.close()

    def interrupt(self) -> None:
        """End the running statement; for any thread."""
        self._sandbox.interrupt()

    def failed(self) -> None:
        """A statement has failed: until its end, a transaction accepts no further ones."""
        if self.transaction == "T":
            self.transaction = "E"

    def check_transaction(self) -> None:
        """Raise an error if the transaction has failed."""
        if self.transaction == "E":
            raise StatementError("The transaction has failed.", "End it with ROLLBACK.", "25P02")

    def columns(
        self, statement: Statement, oids: Sequence[int], given: Sequence[str] = ()
    ) -> tuple[list[ResultColumn], int]:  # fmt: skip
        """The columns of a statement that is not run yet, none if it has no rows; and the number of its parameters.

        `oids`: the types of its parameters, as far as they are known. `given`: their values, as literals.
        """
        sql = self._select(statement)
        if isinstance(sql, list):
            return sql, 0
        if sql is None:
            return [], 0
        self._list()
        checked = self._sandbox.check(sql)
        number = max((one[2] for one in checked.parameters), default=0)
        values = given or [parameter(None, oid, TEXT) for oid in (*oids, *[0] * number)]
        with self._limited():
            return self._columns(with_values(sql, checked, values), checked), number

    def run(self, statement: Statement, values: Sequence[str] = (), formats: Sequence[int] = ()) -> Answer:
        """Run a statement; `values`: the literals of its parameters, `formats`: those of its columns."""
        done = self._transact(statement)
        if done is not None:
            return Answer(done)
        sql = self._select(statement)
        if isinstance(sql, list):
            content = self._value(_setting(statement.words))
            batch = pa.record_batch([pa.array([content])], names=[sql[0].name])
            return Answer("SHOW", sql, formats_of(formats, sql), iter([batch]))
        assert sql is not None
        self._list()
        checked = self._sandbox.check(sql)
        self._load(checked.tables)
        text = with_values(sql, checked, values)
        with self._limited():
            columns = self._columns(text, checked)
        wanted = formats_of(formats, columns)
        shown = projection(text, columns, wanted) if columns else text
        return Answer("SELECT", columns, wanted, self._batches(shown), counted=True)

    def _columns(self, sql: str, checked: Checked) -> list[ResultColumn]:
        """The columns of a checked statement; a query that is not served is named as such."""
        try:
            return self._sandbox.columns(sql, checked.unnamed)
        except StatementError as error:
            tables = {name.lower() for name in checked.tables}
            name = next((name for name in sorted(self._unserved) if name.lower() in tables), None)
            if name is None or error.state != "42P01":
                raise
            what = f"The query {name!r} is not served, so it has no table."
            raise StatementError(what, SERVE_AGAIN, error.state) from error

    def _value(self, setting: str) -> str:
        """The value of a setting, as SHOW returns it."""
        if setting.endswith("transaction_isolation"):
            default = setting.startswith("default") or self.transaction == "I"
            repeatable = self._default_repeatable if default else self._repeatable
            return "repeatable read" if repeatable else SETTINGS[setting]
        return SETTINGS[setting]

    def _batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """The rows of a statement; the time that the client takes between two batches does not count."""
        batches, left = self._sandbox.batches(sql), self._seconds
        while True:
            begun = monotonic()
            with self._limited(left):
                batch = next(batches, None)
            left -= monotonic() - begun
            if batch is None:
                return
            yield batch

    def _transact(self, statement: Statement) -> str | None:
        """The tag of a statement that only concerns the session; None: it is another one."""
        verb = statement.words.partition(" ")[0]
        if verb not in (*_END, *_UNDO):
            self.check_transaction()
        if verb in _BEGIN:
            self.transaction = "T"
            self._repeatable = self._level(statement, self._default_repeatable)
            return "BEGIN"
        if statement.words.startswith(_TO_SAVEPOINT):
            self.transaction = "T"
            return "ROLLBACK"
        if verb in (*_END, *_UNDO):
            undone = verb in _UNDO or self.transaction == "E"
            self.transaction, self._frozen, self._repeatable = "I", False, False
            return "ROLLBACK" if undone else "COMMIT"
        if statement.words.startswith("SET SESSION CHARACTERISTICS"):
            self._default_repeatable = self._level(statement, self._default_repeatable)
        elif statement.words.startswith("SET TRANSACTION"):
            self._repeatable = self._level(statement, self._repeatable)
        return _WITHOUT_EFFECT.get(verb)

    @staticmethod
    def _level(statement: Statement, default: bool) -> bool:
        found = _LEVEL.search(statement.text)
        return default if found is None else not found[1].upper().startswith("READ")

    def _select(self, statement: Statement) -> str | list[ResultColumn] | None:
        """The SELECT that answers a statement, or the column of a setting; None: it has no rows."""
        verb, _, rest = statement.words.partition(" ")
        if verb in (*_BEGIN, *_END, *_UNDO, *_WITHOUT_EFFECT):
            return None
        if verb == "SHOW" and rest in _LISTS:
            return _LISTS[rest]
        if verb == "SHOW" and _setting(statement.words) in SETTINGS:
            return [ResultColumn(_setting(statement.words), TEXT_OID)]
        return adapted(statement.text)

    def _list(self) -> None:
        """Give the sandbox the tables of the pond, without rows, if they have changed."""
        if self._frozen:
            return
        listing = self._tables.listing()
        if listing.key != self._key:
            for table in self._known - listing.schemas.keys():
                self._sandbox.hide(*table)
            for table, schema in listing.schemas.items():
                self._sandbox.show(*table, schema.empty_table())
            self._key, self._known = listing.key, frozenset(listing.schemas)
            self._unserved = listing.unserved

    def _load(self, names: frozenset[str]) -> None:
        """Give the sandbox the rows of the tables with these names, as of now."""
        if self._frozen:
            return
        freezes = self.transaction == "T" and self._repeatable
        lowered = {name.lower() for name in names}
        wanted = [table for table in self._known if freezes or table.name.lower() in lowered]
        for table, rows in self._tables.read(wanted).items():
            self._sandbox.show(*table, rows)
        self._frozen = freezes

    def _limited(self, seconds: float | None = None) -> AbstractContextManager[None]:
        return limited(self._seconds if seconds is None else seconds, self.interrupt)


@contextmanager
def limited(
    seconds: float, interrupt: Callable[[], object], end: Callable[[int], object] = os._exit
) -> Iterator[None]:  # fmt: skip
    """Interrupt what runs in this context after a time, and end the process if that has no effect.

    DuckDB does not interrupt a single call of a function, such as one that makes a text of a gigabyte.
    """
    timers = [
        threading.Timer(max(0.01, seconds), interrupt),
        threading.Timer(max(0.01, seconds) + _GRACE_SECONDS, end, (_UNSTOPPABLE,)),
    ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


def _setting(words: str) -> str:
    """The setting that a SHOW names.

    >>> _setting("SHOW TRANSACTION ISOLATION LEVEL"), _setting("SHOW SERVER_VERSION")
    ('transaction_isolation', 'server_version')
    """
    name = words.partition(" ")[2].lower()
    return {"transaction isolation level": "transaction_isolation", "time zone": "timezone"}.get(name, name)
