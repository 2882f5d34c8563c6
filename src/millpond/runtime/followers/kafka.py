"""Sinks that are topics of Kafka: the rows of a record of the log are one transaction, and the cursor is part of it.

The producer's transactional id is that of pond and query, so whoever takes over fences the one before it, and what that
had not committed is aborted. The cursor is the offset that a consumer group of the same name has committed for the
topic, sent in the transaction; a file in the pond repeats it, for Kafka forgets the groups that nobody uses. So a
consumer that reads committed records sees the rows of each record of the log once, or none of them.

Without transactions rows are flushed before the file is written: after a crash those of one record may come again, with
the same key and headers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from millpond.errors import QueryTypeError, StoreError, UnsupportedQuery
from millpond.faults import reached
from millpond.log.follower import NOTHING_APPLIED
from millpond.log.manifest import Manifest
from millpond.log.records import Entry
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.plan.modes import OP, REVISION
from millpond.runtime.changes import DELETE
from millpond.runtime.connections import connection
from millpond.runtime.followers.cursors import CursorFile, follower_name, is_next
from millpond.runtime.followers.rows import RowsGone, RowsReader
from millpond.runtime.followers.text import json_objects

SECONDS = 30.0
"""How long Kafka may take to answer."""

_TRUE = "true"


class Message(NamedTuple):
    """A row on its way: JSON, or None where the row is deleted; its key; its headers."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class Topic(NamedTuple):
    """A sink's topic, how it is reached, and whether rows are written in transactions."""

    name: str
    connection: str | None
    transactions: bool

    @classmethod
    def of(cls, query: str, sink: Sink) -> Topic:
        """What a sink says.

        Raises:
            QueryTypeError: its options do not fit.
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


def key_columns(query: AnyQuery) -> tuple[str, ...]:
    """The output columns that tell a row apart from others: its window, then its key; none for rows of events.

    Raises:
        UnsupportedQuery: the query does not put all of them out.
    """
    if not isinstance(query, Query) or query.of_event:
        return ()
    shown = {item.expression.name: item.name for item in query.output if isinstance(item.expression, Column)}
    windows = [shown[name] for name in ("window", "window.start", "window.end") if name in shown]
    keys = [shown.get(f"key:{place}") for place in range(len(query.keys))]
    if not windows or None in keys:
        lacking = "its window" if not windows else "all its key columns"
        raise UnsupportedQuery(
            f"Rows of {query.name} have no key in Kafka: it does not put out {lacking}.", "Add them to its SELECT."
        )
    return (*windows, *(key for key in keys if key is not None))


class KafkaSink:
    """Follows the log into a topic; starts after record `since` where no cursor is known.

    Nothing is connected before the first use, so a pond starts while its broker is away.
    """

    def __init__(
        self, query: AnyQuery, pond_id: str, rows: RowsReader, cursors: Path, since: int = NOTHING_APPLIED
    ) -> None:
        self.name = follower_name(query.name, False)
        self._query, self._rows, self._since = query.name, rows, since
        self._topic = Topic.of(query.name, query.sink)
        self._keys = key_columns(query)
        self._id = f"millpond-{pond_id}-{query.name}"
        self._file = CursorFile(cursors / f"{query.name}.kafka")
        self._folder = cursors
        self._producer: Producer | None = None
        self._group: Consumer | None = None
        self._reached = NOTHING_APPLIED

    def cursor(self) -> int:
        """See `Follower.cursor`; fences every other publisher of these rows.

        Raises:
            StoreError: Kafka does not answer.
        """
        self._forget()
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = connection(self._topic.connection).of_c() | {"log_level": 0}
        try:
            self._producer = Producer(settings | self._manner())
            committed = NOTHING_APPLIED
            if self._topic.transactions:
                self._producer.init_transactions(SECONDS)
                self._group = Consumer(settings | {"group.id": self._id, "isolation.level": "read_committed"})
                (found,) = self._group.committed([TopicPartition(self._topic.name, 0)], SECONDS)
                committed = found.offset - 1 if found.offset >= 0 else NOTHING_APPLIED
        except KafkaException as error:
            raise self._failed(error) from error
        self._reached = max(self._since, self._file.read(), committed)
        return self._reached

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`: rows and cursor are one transaction; a record without rows only moves the file."""
        if self._producer is None:
            self.cursor()
        if not is_next(self.name, self._reached, n):
            return
        try:
            table = self._rows.table(record, self._query)
        except RowsGone as error:
            raise StoreError(
                f"{error.what} The topic {self._topic.name} does not have them.", "Restore the pond's folder."
            ) from error
        if table is not None:
            try:
                self._publish(n, table)
            except (KafkaException, BufferError) as error:
                raise self._failed(error) from error
        reached("sink.after_link")
        self._file.write(n)
        reached("sink.after_cursor")
        self._reached = n

    def close(self) -> None:
        """Let go of the broker."""
        self._forget()

    def _publish(self, n: int, table: pa.Table) -> None:
        producer = self._producer
        assert producer is not None
        reached("sink.before_tmp")
        if self._topic.transactions:
            producer.begin_transaction()
        refused: list[Any] = []

        def told(error: Any, _: object) -> None:
            if error is not None:
                refused.append(error)

        for message in messages(self._query, n, table, self._keys):
            while True:
                try:
                    producer.produce(
                        self._topic.name, message.value, message.key, headers=message.headers, on_delivery=told
                    )
                    break
                except BufferError:  # its queue is full
                    producer.poll(1.0)
            producer.poll(0)
        left = producer.flush(SECONDS)
        if refused:
            raise KafkaException(refused[0])
        if left:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        reached("sink.after_tmp")
        if self._topic.transactions:
            assert self._group is not None
            place = TopicPartition(self._topic.name, 0, n + 1)
            producer.send_offsets_to_transaction([place], self._group.consumer_group_metadata(), SECONDS)
            producer.commit_transaction(SECONDS)

    def _manner(self) -> dict[str, Any]:
        common = {"enable.idempotence": True, "linger.ms": 5, "compression.type": "lz4"}
        return common | ({"transactional.id": self._id} if self._topic.transactions else {})

    def _failed(self, error: Exception) -> StoreError:
        # whatever became of the transaction: who asks for the cursor next begins a new one, and sees
        self._forget()
        reason = error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else str(error)
        return StoreError(
            f"Kafka did not take the rows of {self._query} for the topic {self._topic.name}: {reason}.",
            "It is tried again; rows stay in the log until it has them.",
        )

    def _forget(self) -> None:
        group, self._group = self._group, None
        self._producer = None
        if group is not None:
            group.close()


def messages(query: str, n: int, table: pa.Table, keys: Sequence[str]) -> Iterator[Message]:
    """The rows of record `n`, in the order of the log; `keys` are the columns whose values make the key."""
    values = json_objects(table, omit_nulls=False)
    # each is an object of one member, of which the value counts
    by_key = [
        [text[len(json.dumps(name, ensure_ascii=False)) + 2 : -1] for text in texts.to_pylist()]
        for name in keys
        for texts in [json_objects(table.select([name]), omit_nulls=False)]
    ]
    revisions = table[REVISION].to_pylist() if REVISION in table.column_names else None
    told = table[OP].to_pylist() if OP in table.column_names else None
    name = json.dumps(query, ensure_ascii=False)
    common = [("query", query.encode()), ("epoch", b"%d" % n)]
    for row, value in enumerate(values.to_pylist()):
        headers = [*common, ("row", b"%d" % row), ("revision", b"%d" % (revisions[row] if revisions else 0))]
        deleted = told is not None and told[row] == DELETE
        if told is not None:
            headers.append(("op", str(told[row]).encode()))
        key = f"[{','.join([name, *(of[row] for of in by_key)])}]".encode() if keys else None
        yield Message(key, None if deleted else value.encode(), headers)
