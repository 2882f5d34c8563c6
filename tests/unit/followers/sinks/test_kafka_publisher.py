"""What a publisher to Kafka waits for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from millpond.errors import StoreError
from millpond.followers.sinks import kafka_publisher
from millpond.followers.sinks.kafka_publisher import ANY_PARTITION, Message, Publisher, _committed
from millpond.log.cursor import Cursor


class Group:
    """A consumer group of which the broker says these things, one after another."""

    def __init__(self, *said: int) -> None:
        self.said = list(said)

    def committed(self, places: list[TopicPartition], _seconds: float) -> list[TopicPartition]:
        code = self.said.pop(0)
        if code:
            raise KafkaException(KafkaError(code))
        return places


def test_a_broker_without_a_coordinator_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_publisher, "_PAUSE_SECONDS", 0.0)
    group: Any = Group(KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, 0)
    assert _committed(group, "t").topic == "t" and not group.said


def test_other_errors_are_raised_at_once() -> None:
    group: Any = Group(KafkaError.GROUP_AUTHORIZATION_FAILED, 0)
    with pytest.raises(KafkaException):
        _committed(group, "t")
    assert group.said == [0]


class Stuck:
    """A producer whose library does not come back, as librdkafka may not after a restart of the broker."""

    def __init__(self) -> None:
        self.freed = threading.Event()
        self.committed = False

    def send_offsets_to_transaction(self, *_: Any) -> None:
        self.freed.wait(60)

    def poll(self, _seconds: float) -> None:
        pass

    def commit_transaction(self, _seconds: float) -> None:
        self.committed = True


def test_a_library_that_hangs_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_publisher, "SECONDS", 0.05)
    publisher, stuck, group = Publisher("p", "t", None), Stuck(), MagicMock()
    publisher._producer, publisher._group = stuck, group
    with pytest.raises(StoreError, match=r"did not take what is for the topic t: .*[Tt]imed out"):
        publisher.commit(Cursor(3))
    assert not publisher.connected and not stuck.committed
    group.close.assert_called_once_with()
    stuck.freed.set()


def test_a_wait_for_a_broker_that_is_down_ends_when_the_pond_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the interruption it would last `SECONDS`."""
    (tmp_path / "connections.json").write_text('{"local": {"servers": "127.0.0.1:9"}}')
    monkeypatch.setenv("MILLPOND_CONNECTIONS", str(tmp_path / "connections.json"))
    publisher = Publisher("p", "t", None)
    publisher.interrupt()
    with pytest.raises(StoreError, match=r"no broker can be reached \(127\.0\.0\.1:9.*refused"):
        publisher.connect()
    assert not publisher.connected


class FullQueue:
    """A producer whose queue is full until it has been polled twice."""

    def __init__(self) -> None:
        self.sent: list[tuple[object, ...]] = []
        self.polls = 0

    def begin_transaction(self) -> None:
        pass

    def poll(self, _seconds: float) -> int:
        self.polls += 1
        return 0

    def produce(self, *message: object, headers: object) -> None:
        if self.polls < 2:
            raise BufferError
        self.sent.append((*message, headers))


def test_messages_wait_for_room_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher, producer = Publisher("p", "t", None), FullQueue()
    monkeypatch.setattr(publisher, "_producer", producer)
    sent: list[Message] = [("t", b"value", b"key", 1, [("row", "0")]), ("t", None, None, ANY_PARTITION, [("row", "1")])]
    publisher.begin(sent)
    assert producer.sent == sent
