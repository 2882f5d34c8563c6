"""Partitions that hold back the watermark: recently active ones, and those that could not be observed."""

from __future__ import annotations

from msgspec.structs import replace

from millpond.model.stream import Order, Stream
from millpond.runtime.scheduling.idle_partitions import IdleWatch

TOPIC = Stream("tx", (), order=Order("p", "o", (), idle_after_us=10))


def named(*partitions: str) -> Stream:
    return replace(TOPIC, order=replace(TOPIC.order, partitions=partitions))  # type: ignore[type-var]


def test_whoever_begins_to_read_again_waits_for_all_partitions() -> None:
    watch = IdleWatch([named("a", "b")], 0)
    assert watch.idle({}, 11)["tx"] == {"a", "b"}
    watch.begin(11)
    assert not watch.idle({}, 21)["tx"]
    assert watch.idle({}, 22)["tx"] == {"a", "b"}


def test_partitions_of_a_stream_that_comes_later_are_waited_for_from_then_on() -> None:
    watch = IdleWatch([], 0)
    watch.watch([TOPIC], 100)  # its partitions become known when it is read
    watch.expect([named("a", "b")], 101)
    assert not watch.idle({}, 110)["tx"]
    assert watch.idle({}, 111)["tx"] == {"a", "b"}
    watch.expect([named("a", "b", "c")], 115)
    assert watch.idle({}, 116)["tx"] == {"a", "b"}
