"""Kafka sink: each record's rows are one transaction, which also commits the cursor as the offset of a consumer group.

A consumer with `read_committed` sees the rows of each record once, or none of them. Kafka deletes the offsets of groups
that are not used, so a file in the pond holds a second copy of the cursor. Both contain the record's mark
(`log.cursor`).

Without transactions, rows are flushed before the file is written: after a crash the rows of one record may be sent
again, with the same key and headers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from millpond.errors import QueryTypeError
from millpond.faults import reached
from millpond.followers.cursors import CursorFile, CursorPath, cursor_path, follower_name, is_next, make_folder
from millpond.followers.record_rows import RowsReader, key_columns
from millpond.followers.sinks.context import SinkContext
from millpond.followers.sinks.kafka_publisher import ANY_PARTITION, Headers, Message, Publisher
from millpond.followers.sinks.text import json_objects
from millpond.log.cursor import NOTHING_APPLIED, Cursor, ahead, cursor_at
from millpond.log.manifest import Manifest
from millpond.log.records import Entry
from millpond.model.endpoints import Sink
from millpond.model.selection import AnyQuery
from millpond.plan.options.output_modes import OP, REVISION
from millpond.runtime.rows.window_updates import DELETE

_TRUE = "true"


class Topic(NamedTuple):
    """A sink's topic, its connection, and whether rows are written in transactions."""

    name: str
    connection: str | None
    transactions: bool

    @classmethod
    def of(cls, query: str, sink: Sink) -> Topic:
        """The topic in the options of a sink.

        Raises:
            QueryTypeError: an option is invalid.
        """
        options = dict(sink.options)
        unknown = sorted(options.keys() - {"topic", "connection", "transactions"})
        if unknown:
            raise QueryTypeError(
                f"The Kafka sink of {query} has the option {unknown[0]}.", "Use topic, connection and transactions."
            )
        if not options.get("topic"):
            raise QueryTypeError(f"The Kafka sink of {query} has no topic.", "Add TBLPROPERTIES ('topic' = '…').")
        transactions = options.get("transactions", _TRUE).lower()
        if transactions not in (_TRUE, "false"):
            raise QueryTypeError(f"'transactions' of {query} is {transactions!r}.", "Write 'true' or 'false'.")
        return cls(options["topic"], options.get("connection"), transactions == _TRUE)


class KafkaSink:
    """Writes rows to a topic; starts after record `since` if no cursor is known.

    It connects at the first use, so a pond can start while its broker is unavailable.
    """

    def __init__(
        self, query: AnyQuery, pond_id: str, rows: RowsReader, cursors: CursorPath, since: int = NOTHING_APPLIED
    ) -> None:
        self.name = follower_name(query.name, False)
        self._query, self._rows, self._since = query.name, rows, since
        self._topic = Topic.of(query.name, query.sink)
        self._keys = key_columns(query)
        self._publisher = Publisher(
            f"millpond-{pond_id}-{query.name}", self._topic.name, self._topic.connection, self._topic.transactions
        )
        path = cursor_path(cursors, query.name, "kafka")
        self._file = CursorFile(path, lasting=not self._topic.transactions)
        self._folder = cursors
        self._cursor = Cursor()

    @classmethod
    def open(cls, context: SinkContext) -> KafkaSink:
        """Open the sink of a query.

        Raises:
            QueryTypeError: an option is invalid.
            UnsupportedQuery: see `key_columns`.
        """
        return cls(context.query, context.pond, context.rows, context.cursors, context.since)

    def known(self) -> Cursor:
        """See `Remote.known`: the cursor in the file."""
        return max(Cursor(self._since), self._file.read())

    def rewind(self, to: Cursor) -> str:
        """See `Reversible.rewind`: rows in a topic cannot be removed."""
        what = f"Rows after record {to.n} cannot be taken back from the topic {self._topic.name}."
        group = (
            f"set the offset of the group {self._publisher.name} for partition 0 of the topic to {to.n + 1} and "
            if self._topic.transactions else ""
        )  # fmt: skip
        raise ahead(
            self.name, self._cursor, to.n,
            f"{what} Restore the folder `log` from a newer copy; or, if readers may see those rows twice, {group}"
            f"write {{\"n\": {to.n}}} into {self._file.path}, and repair again.",
        )  # fmt: skip

    def cursor(self) -> Cursor:
        """See `Follower.cursor`; fences every other publisher of these rows.

        Raises:
            StoreError: Kafka does not answer.
        """
        make_folder(self._folder)
        self._cursor = max(self._publisher.connect(), self.known())
        return self._cursor

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`: rows and cursor are one transaction; a record without rows only advances the file."""
        if not self._publisher.connected:
            self.cursor()
        if not is_next(self.name, self._cursor, record):
            return
        cursor = cursor_at(record)
        cure = f'Restore the pond\'s folder, or skip them: write {{"n": <record>}} into {self._file.path}.'
        table = self._rows.needed(record, self._query, f"The topic {self._topic.name}", cure)
        if table is not None:
            reached("topic.before_begin")
            self._publisher.begin(messages(self._query, self._topic.name, n, table, self._keys))
            reached("topic.after_begin")
            self._publisher.commit(cursor)
        reached("topic.after_commit")
        self._file.write(cursor)
        reached("topic.after_cursor")
        self._cursor = cursor

    def interrupt(self) -> None:
        """See `Interruptible.interrupt`."""
        self._publisher.interrupt()

    def close(self) -> None:
        """Close the connection to the broker."""
        self._publisher.close()


def messages(query: str, topic: str, n: int, table: pa.Table, keys: Sequence[str]) -> Iterator[Message]:
    """The rows of record `n` as messages, in the order of the log; `keys`: the columns that form the message key.

    The value is JSON, or None if the row is deleted.
    """
    values = json_objects(table, omit_nulls=False).cast(pa.large_binary()).to_pylist()
    by_key = [_members(table, name) for name in keys]
    revisions = table[REVISION].to_pylist() if REVISION in table.column_names else None
    ops = table[OP].to_pylist() if OP in table.column_names else None
    name = json.dumps(query, ensure_ascii=False)
    of_query, of_epoch, unrevised = ("query", query), ("epoch", str(n)), ("revision", "0")
    for row, value in enumerate(values):
        revision = ("revision", str(revisions[row])) if revisions else unrevised
        headers: Headers = [of_query, of_epoch, ("row", str(row)), revision]
        deleted = ops is not None and ops[row] == DELETE
        if ops is not None:
            headers.append(("op", str(ops[row])))
        key = f"[{','.join([name, *(of[row] for of in by_key)])}]".encode() if keys else None
        yield topic, None if deleted else value, key, ANY_PARTITION, headers


def _members(table: pa.Table, name: str) -> list[str]:
    """The values of a column as JSON, each taken from a JSON object with the column as its only member."""
    begin = len(json.dumps(name, ensure_ascii=False)) + 2
    return [text[begin:-1] for text in json_objects(table.select([name]), omit_nulls=False).to_pylist()]
