"""What a publisher to Kafka waits for."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from millpond.runtime.followers import kafka_publisher
from millpond.runtime.followers.kafka_publisher import _committed


class Group:
    """A consumer group of which the broker says these things, one after another."""

    def __init__(self, *said: int) -> None:
        self.said = list(said)

    def committed(self, places: list[TopicPartition], _seconds: float) -> list[TopicPartition]:
        code = self.said.pop(0)
        if code:
            raise KafkaException(KafkaError(code))
        return places


def test_a_broker_that_is_finding_its_coordinator_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_publisher, "_PAUSE_SECONDS", 0.0)
    group: Any = Group(KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, 0)
    assert _committed(group, "t").topic == "t" and not group.said


def test_anything_else_is_told_at_once() -> None:
    group: Any = Group(KafkaError.GROUP_AUTHORIZATION_FAILED, 0)
    with pytest.raises(KafkaException):
        _committed(group, "t")
    assert group.said == [0]
