"""Partitions of topics for which the watermark of a stream waits, also of streams that Spark computes."""

from __future__ import annotations

from millpond.model.stream import LABELLED_PARTITION, Derivation, Order, Stream
from millpond.runtime.scheduling.kafka_partitions import with_partitions

OFFSETS = {"tx": '{"a":{"0":7,"1":3}}', "taps": '{"b":{"0":2}}'}
BY_RECORD = Order("_source", "_offset")


def test_a_watermark_waits_for_the_partitions_by_the_names_that_events_have() -> None:
    timed = Stream("tx_1", (), order=BY_RECORD, made_of=Derivation("tx WITH f(s) AS t", ("tx",), "1"))
    labelled = Order(LABELLED_PARTITION, "order.offset")
    joined = Stream("tx_2", (), order=labelled, made_of=Derivation("tx LEFT JOIN csv /d ON k", ("tx",), "2"))
    both = Stream("tx_taps_3", (), order=labelled, made_of=Derivation("tx UNION ALL taps", ("tx", "taps"), "3"))
    streams = Stream("tx", (), order=BY_RECORD), timed, joined, both, Stream("files", ())
    orders = [stream.order for stream in with_partitions(streams, OFFSETS)]
    assert [None if order is None else order.partitions for order in orders] == [
        ("a-0", "a-1"), ("a-0", "a-1"), ("tx:a-0", "tx:a-1"), ("tx:a-0", "tx:a-1", "taps:b-0"), None,
    ]  # fmt: skip
