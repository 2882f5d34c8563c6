"""Writes numbered steps to Kafka; with transactions, a step and its number are written exactly once or not at all.

The producer's transactional id belongs to the publisher's name. So the next publisher of that name fences the
previous one, and its uncommitted writes are aborted. The number is the offset that a consumer group of the same name
has committed for the first partition of a topic. It is sent in the transaction, and the offset's metadata is the step's
mark.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from typing import Any, TypeAlias, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from millpond.connections import connection
from millpond.errors import StoreError
from millpond.log.cursor import Cursor

T = TypeVar("T")

_PASSING = (
    KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)  # fmt: skip
"""Errors of a broker that is still looking for the coordinator of a group, as a new broker does at first."""

_PAUSE_SECONDS = 0.1

_UNKNOWN_TOPIC_MS = 10_000

SECONDS = 30.0
"""The longest time that Kafka may take to respond."""

_POLLED = 1000
"""The number of messages after which delivery reports are polled."""

ANY_PARTITION = -1
"""The partition of a message whose partition is determined by its key."""


Headers: TypeAlias = list[tuple[str, str | bytes | None]]

Message: TypeAlias = tuple[str, bytes | None, bytes | None, int, Headers]
"""A message to send: its topic, value, key, partition and headers; value None deletes the key in a compacted topic.

It is a plain tuple, because a named one takes a fifth of the time in which a message is made and queued.
"""


class Publisher:
    """Publishes under a `name`; the number of its last step is kept with `topic`.

    It connects in `connect`, so a pond can start while its broker is unavailable.
    """

    def __init__(self, name: str, topic: str, connection_name: str | None, transactions: bool = True) -> None:
        self.name, self._topic, self._connection = name, topic, connection_name
        self._transactions = transactions
        self._producer: Producer | None = None
        self._group: Consumer | None = None
        self._refused: list[KafkaError] = []
        self._down, self._trouble = False, ""  # what librdkafka reports: no broker can be reached, and why
        self._interrupted = threading.Event()

    @property
    def connected(self) -> bool:
        """Whether `connect` was called, and nothing has failed since."""
        return self._producer is not None

    def connect(self) -> Cursor:
        """Fence every other publisher of this name, and return number and mark of the last step; -1: none is known.

        Raises:
            StoreError: Kafka does not answer.
            SetupError: the connection does not exist.
        """
        self.close()
        self._down = False
        settings: dict[str, Any] = connection(self._connection).of_c() | {"log_level": 0}
        try:
            producer = self._producer = Producer(settings | self._manner())
            if not self._transactions:
                return Cursor()
            self._bounded(producer, lambda: producer.init_transactions(SECONDS))
            self._group = Consumer(settings | {"group.id": self.name, "isolation.level": "read_committed"})
            found = _committed(self._group, self._topic)
        except KafkaException as error:
            raise self._failed(error) from error
        return self._cursor(found)

    def reached(self) -> Cursor:
        """Number and mark of the last step, as `connect`, without fencing other publishers.

        Raises:
            StoreError, SetupError: as `connect`.
        """
        settings: dict[str, Any] = connection(self._connection).of_c() | {"log_level": 0, "group.id": self.name}
        try:
            group = Consumer(settings | {"isolation.level": "read_committed"})
            with closing(group):
                return self._cursor(_committed(group, self._topic))
        except KafkaException as error:
            raise self._failed(error) from error

    def _cursor(self, found: TopicPartition) -> Cursor:
        if found.error is not None:
            raise self._failed(KafkaException(found.error))
        return Cursor(found.offset - 1, found.metadata or "") if found.offset >= 0 else Cursor()

    def begin(self, messages: Iterable[Message]) -> None:
        """Send the messages of a step; in a transaction, they may arrive at the broker as late as in `commit`.

        Raises:
            StoreError: Kafka did not take them.
        """
        producer = self._producer
        assert producer is not None, "not connected"
        self._refused.clear()
        try:
            if self._transactions:
                producer.begin_transaction()
            produce = producer.produce
            for place, (topic, value, key, partition, headers) in enumerate(messages):
                try:  # this loop takes most of a sink's time, so it calls no further function in Python
                    produce(topic, value, key, partition, headers=headers)
                except BufferError:  # its queue is full
                    _produce_later(producer, (topic, value, key, partition, headers))
                if not place % _POLLED:
                    producer.poll(0)
            if not self._transactions:
                self._flush(producer)
        except KafkaException as error:
            raise self._failed(error) from error

    def commit(self, step: Cursor) -> None:
        """Make the messages of `begin` visible, together with number and mark of the step.

        The broker takes number and mark while messages are still being sent.

        Raises:
            StoreError: the commit failed, or its outcome is not known; call `connect`.
        """
        if not self._transactions:
            return
        assert self._producer is not None and self._group is not None, "not connected"
        try:
            place = TopicPartition(self._topic, 0, step.n + 1, step.mark)
            held, group = self._producer, self._group.consumer_group_metadata()
            self._bounded(held, lambda: held.send_offsets_to_transaction([place], group, SECONDS))
            self._flush(held)
            self._bounded(held, lambda: held.commit_transaction(SECONDS))
        except KafkaException as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the connection; an uncommitted transaction is aborted by the next publisher."""
        group, self._group = self._group, None
        self._producer = None
        if group is not None:
            group.close()

    def interrupt(self) -> None:
        """See `Interruptible.interrupt`."""
        self._interrupted.set()

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._down = True
        else:
            self._trouble = error.str()

    def _bounded(self, producer: Producer, call: Callable[[], T]) -> T:
        """Call librdkafka with a time limit; a call that hangs is abandoned, together with its producer.

        `send_offsets_to_transaction` ignores its timeout (librdkafka issue 5456): after a restart of the broker it may
        wait without end. Whatever the abandoned call still does is refused, because the next producer of the name
        fences it. After `interrupt`, a call is also abandoned when no broker can be reached.
        """
        ended: Future[T] = Future()

        def run() -> None:
            try:
                ended.set_result(call())
            except Exception as error:
                ended.set_exception(error)

        threading.Thread(target=run, name="millpond-kafka", daemon=True).start()
        deadline = time.monotonic() + SECONDS
        while not wait((ended,), _PAUSE_SECONDS).done:
            if self._interrupted.is_set():
                producer.poll(0)  # calls `_on_error`
            if time.monotonic() > deadline or (self._down and self._interrupted.is_set()):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        found = ended.result()
        self._down = False
        self._interrupted.clear()
        return found

    def _flush(self, producer: Producer) -> None:
        left = self._bounded(producer, lambda: producer.flush(SECONDS))
        if self._refused or left:
            raise KafkaException(self._refused[0] if self._refused else KafkaError(KafkaError._TIMED_OUT))

    def _manner(self) -> dict[str, Any]:
        refused = self._refused = []  # of this producer: an abandoned one may still report errors

        def on_delivery(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                refused.append(error)

        # the partitioner of Java producers, so that equal keys of other producers are in the same partition
        common = {"enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random"}
        # a topic that is unknown for that long does not exist; by default, as long as the limit of a call
        common |= {"topic.metadata.propagation.max.ms": _UNKNOWN_TOPIC_MS}
        # a report for each message would cost as much as a fifth of its production
        common |= {"delivery.report.only.error": True, "on_delivery": on_delivery, "error_cb": self._on_error}
        return common | ({"transactional.id": self.name} if self._transactions else {})

    def _failed(self, error: KafkaException) -> StoreError:
        # whatever the outcome: the next call of `connect` begins a new transaction, and reads the number
        if self._producer is not None:
            with suppress(KafkaException):  # a fatal error is raised once more
                self._producer.poll(0)  # calls `_on_error`
        self.close()
        found = error.args[0] if error.args else None
        if isinstance(found, KafkaError) and found.code() == KafkaError._TIMED_OUT and self._refused:
            found = self._refused[0]  # the cause of the delay, such as a topic that does not exist
        reason = found.str() if isinstance(found, KafkaError) else str(error)
        if self._down:
            reason = f"no broker can be reached ({self._trouble})"
        return StoreError(
            f"Kafka did not take what is for the topic {self._topic}: {reason}.",
            "It is tried again; nothing is lost meanwhile.",
        )


def _produce_later(producer: Producer, message: Message) -> None:
    """Add a message to the full queue of a producer, as soon as it has room."""
    topic, value, key, partition, headers = message
    while True:
        producer.poll(1.0)
        with suppress(BufferError):
            producer.produce(topic, value, key, partition, headers=headers)
            return


def _committed(group: Consumer, topic: str) -> TopicPartition:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            (found,) = group.committed([TopicPartition(topic, 0)], SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in _PASSING or time.monotonic() > deadline:
                raise
        else:
            if found.error is None or found.error.code() not in _PASSING or time.monotonic() > deadline:
                return found
        time.sleep(_PAUSE_SECONDS)
