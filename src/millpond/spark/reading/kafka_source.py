"""Reads topics of Kafka, and reads the records of past epochs again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from millpond.model.stream import Stream
from millpond.runtime.inputs.backfill import PastEpoch
from millpond.spark.reading.source_progress import Portion, first_offsets, offsets_of, records_in
from millpond.spark.reading.spark_source import SparkSource, as_json
from millpond.spark.sources.kafka import declared, kafka_batch, kafka_frame, stand_in_path, target_seconds

PORTION_RECORDS = 500_000
"""Upper limit of the records that one portion reads; a single epoch that read more is not split."""


class KafkaSource:
    """Implements `EventSource` for topics of Kafka."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def completed(self) -> Stream:
        return declared(self._stream)

    def stand_in(self) -> SparkSource:
        path = stand_in_path(self._stream)
        assert path is not None
        return SparkSource(as_json(self._stream, path))

    def frame(
        self, spark: SparkSession, name: str | None, limit: int | None, marks: Mapping[str, str]
    ) -> DataFrame:  # fmt: skip
        return kafka_frame(spark, self._stream, name, limit)

    def malformed_policy(self) -> tuple[str, float | None] | None:
        return self._stream.on_malformed.policy, self._stream.on_malformed.ratio

    def target_seconds(self) -> float | None:
        return target_seconds(self._stream)

    def check_repeatable(self) -> None:
        """Offsets can always be read again."""

    def price(self, spark: SparkSession, folder: Path, epochs: Sequence[PastEpoch]) -> tuple[int, int]:
        return 0, records_in(epochs, first_offsets(folder)) if epochs else 0

    def portions(self, spark: SparkSession, folder: Path, epochs: Sequence[PastEpoch]) -> Iterator[Portion]:
        first, held = first_offsets(folder), list[PastEpoch]()
        whole = max(1, records_in(epochs, first))
        for place, epoch in enumerate(epochs):
            held.append(epoch)
            if records_in(held, first) < PORTION_RECORDS and place + 1 < len(epochs):
                continue
            start, last = offsets_of(held[0].start, first), offsets_of(held[-1].end, first)
            every = [offsets_of(epoch.end, first) for epoch in held]
            ends = {
                f"{topic}-{partition}": [one.get(topic, {}).get(partition, 0) for one in every]
                for topic, partitions in last.items() for partition in partitions
            }  # fmt: skip
            share = records_in(held, first) / whole
            yield Portion(kafka_batch(spark, self._stream, start, last), tuple(held), share, ends=ends)
            held = []
