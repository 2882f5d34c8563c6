"""Reads source partitions from Kafka's offsets.

Adds them to streams (even partitions without events), and counts those with new records.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from millpond.log.records import Offsets
from millpond.model.stream import LABELLED_PARTITION, Stream


def with_partitions(streams: Sequence[Stream], offsets: Offsets) -> tuple[Stream, ...]:
    """Adds to each stream the source partitions in the end offsets of an epoch; its watermark waits for all of them.

    The record names the partitions, so the watermark waits for a partition before its first event: from the epoch in
    which Spark first listed it.
    """
    return tuple(_with_partitions(stream, offsets) for stream in streams)


def _with_partitions(stream: Stream, offsets: Offsets) -> Stream:
    if stream.order is None:
        return stream
    derived = stream.derived
    if derived is not None and stream.order.partition == LABELLED_PARTITION:
        found = [f"{base}:{name}" for base in derived.reads for name in partitions_of(offsets.get(base, ""))]
    else:
        found = partitions_of(offsets.get(stream.name if derived is None else derived.reads[0], ""))
    known = tuple(dict.fromkeys([*stream.order.partitions, *found]))
    if known == stream.order.partitions:
        return stream
    return msgspec.structs.replace(stream, order=msgspec.structs.replace(stream.order, partitions=known))


def partitions_of(offset: str) -> list[str]:
    """The source partitions in a Kafka offset; empty for offsets of another form.

    >>> partitions_of('{"tx":{"1":7,"0":3}}'), partitions_of('{"logOffset":3}'), partitions_of("17")
    (['tx-0', 'tx-1'], [], [])
    """
    try:
        topics = json.loads(offset)
    except ValueError:
        return []
    if not isinstance(topics, dict) or not all(isinstance(partitions, dict) for partitions in topics.values()):
        return []
    return sorted(f"{topic}-{partition}" for topic, partitions in topics.items() for partition in partitions)


def moved_partitions(start: str, end: str) -> int:
    """The number of source partitions that have records between two Kafka offsets.

    >>> moved_partitions('{"tx":{"0":3,"1":7}}', '{"tx":{"0":3,"1":9,"2":1}}'), moved_partitions("", '{"tx":{"0":3}}')
    (2, 1)
    """
    return len(moved_records(start, end))


def moved_records(start: str, end: str) -> list[int]:
    """The most records that each source partition with new ones has between two Kafka offsets.

    A partition that is not in `start` begins at 0.

    >>> moved_records('{"tx":{"0":3,"1":7}}', '{"tx":{"0":3,"1":9,"2":1}}'), moved_records("", '{"tx":{"0":3}}')
    ([2, 1], [3])
    """
    before = {} if not partitions_of(start) else json.loads(start)
    moved = (
        offset - before.get(topic, {}).get(partition, 0)
        for topic, partitions in json.loads(end).items()
        for partition, offset in partitions.items()
    )
    return [records for records in moved if records > 0]
