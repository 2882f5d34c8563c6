"""Writes numbered steps to Kafka: with transactions, each step and its number are there once or not at all.

The producer's transactional id belongs to the publisher's name. So the next publisher of that name fences the
previous one, and its uncommitted writes are aborted. The number is the offset that a consumer group of the same name
has committed for the first partition of a topic; it is sent in the transaction, and the
offset's metadata is the step's mark.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from millpond.connections import connection
from millpond.errors import StoreError
from millpond.log.cursor import Cursor

_PASSING = (
    KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)  # fmt: skip
"""What a broker says while it finds out who keeps the offsets of a group, as a new one does at first."""

_PAUSE_SECONDS = 0.1

SECONDS = 30.0
"""How long Kafka may take to answer."""

_POLLED = 1000
"""What became of messages is asked for after so many."""

ANY_PARTITION = -1
"""The partition of a message that goes where its key says."""


class Message(NamedTuple):
    """A record on its way; `value` None deletes what a compacted topic has of the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]
    partition: int = ANY_PARTITION


class Publisher:
    """Publishes under a `name`; the number of its last step is kept with `topic`.

    Nothing is connected before `reached`, so a pond starts while its broker is away.
    """

    def __init__(self, name: str, topic: str, connection_name: str | None, transactions: bool = True) -> None:
        self.name, self._topic, self._connection = name, topic, connection_name
        self._transactions = transactions
        self._producer: Producer | None = None
        self._group: Consumer | None = None

    @property
    def connected(self) -> bool:
        """Whether `reached` was asked, and nothing has failed since."""
        return self._producer is not None

    def reached(self) -> Cursor:
        """Fence every other publisher of this name, and return number and mark of the last step; -1: none is known.

        Raises:
            StoreError: Kafka does not answer.
            SetupError: there is no such connection.
        """
        self.close()
        settings: dict[str, Any] = connection(self._connection).of_c() | {"log_level": 0}
        try:
            self._producer = Producer(settings | self._manner())
            if not self._transactions:
                return Cursor()
            self._producer.init_transactions(SECONDS)
            self._group = Consumer(settings | {"group.id": self.name, "isolation.level": "read_committed"})
            found = _committed(self._group, self._topic)
        except KafkaException as error:
            raise self._failed(error) from error
        if found.error is not None:
            raise self._failed(KafkaException(found.error))
        return Cursor(found.offset - 1, found.metadata or "") if found.offset >= 0 else Cursor()

    def begin(self, messages: Iterable[Message]) -> None:
        """Hand over the messages of a step; readers of committed records do not see them yet.

        Raises:
            StoreError: Kafka did not take them.
        """
        producer = self._producer
        assert producer is not None, "not connected"
        refused: list[Any] = []

        def told(error: Any, _: object) -> None:
            if error is not None:
                refused.append(error)

        try:
            if self._transactions:
                producer.begin_transaction()
            for place, message in enumerate(messages):
                self._produce(producer, message, told)
                if not place % _POLLED:
                    producer.poll(0)
            left = producer.flush(SECONDS)
            if refused or left:
                raise KafkaException(refused[0] if refused else KafkaError(KafkaError._TIMED_OUT))
        except KafkaException as error:
            raise self._failed(error) from error

    def commit(self, step: Cursor) -> None:
        """Make what `begin` handed over visible, together with number and mark of the step.

        Raises:
            StoreError: it is not, or it is not known whether it is; ask for `reached`.
        """
        if not self._transactions:
            return
        assert self._producer is not None and self._group is not None, "not connected"
        try:
            place = TopicPartition(self._topic, 0, step.n + 1, step.mark)
            held, group = self._producer, self._group.consumer_group_metadata()
            _bounded(lambda: held.send_offsets_to_transaction([place], group, SECONDS))
            held.commit_transaction(SECONDS)
        except KafkaException as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Let go of the broker; a transaction that was not committed is aborted by whoever comes next."""
        group, self._group = self._group, None
        self._producer = None
        if group is not None:
            group.close()

    def _produce(self, producer: Producer, message: Message, told: Any) -> None:
        while True:
            try:
                producer.produce(
                    message.topic, message.value, message.key, message.partition, on_delivery=told,
                    headers=message.headers,
                )  # fmt: skip
                break
            except BufferError:  # its queue is full
                producer.poll(1.0)

    def _manner(self) -> dict[str, Any]:
        # the partitioner of Java's producers, so that keys meet those of others
        common = {"enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random"}
        return common | ({"transactional.id": self.name} if self._transactions else {})

    def _failed(self, error: KafkaException) -> StoreError:
        # whatever became of the transaction: who asks for the number next begins a new one, and sees
        self.close()
        reason = error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else str(error)
        return StoreError(
            f"Kafka did not take what is for the topic {self._topic}: {reason}.",
            "It is tried again; nothing is lost meanwhile.",
        )


def _bounded(call: Callable[[], object]) -> None:
    """Call librdkafka, and wait no longer than it should take; one that hangs is left to itself, with its producer.

    `send_offsets_to_transaction` heeds no timeout (librdkafka issue 5456): after a restart of the broker it may wait
    for ever. What it still does then is refused, for the next producer of the name fences the one that was left.
    """
    ended: list[KafkaException | None] = []

    def run() -> None:
        try:
            call()
            ended.append(None)
        except KafkaException as error:
            ended.append(error)

    thread = threading.Thread(target=run, name="millpond-kafka", daemon=True)
    thread.start()
    thread.join(SECONDS)
    error = ended[0] if ended else KafkaException(KafkaError(KafkaError._TIMED_OUT))
    if error is not None:
        raise error


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
