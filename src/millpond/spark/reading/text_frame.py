"""Chooses the streams whose JSON or CSV texts the gather parses, and reads their records between two offsets."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from millpond.log.records import Offsets
from millpond.runtime.task.column_layout import ReadLayout, TextStream
from millpond.spark.reading.read_frame import WantedStream, read
from millpond.spark.sources.kafka import kafka_batch
from millpond.spark.sources.record_texts import text_stream


def read_between(
    spark: SparkSession, wanted: Sequence[WantedStream], start: Offsets, end: Offsets
) -> tuple[DataFrame, ReadLayout]:
    """The records of Kafka streams between two offsets, as a batch with the same columns and without a tick.

    Raises:
        SetupError: as `load`.
    """
    bases = {
        base.name: base for want in wanted
        for base in ([want.stream] if want.derived is None else [branch.base for branch in want.derived.branches])
    }  # fmt: skip
    texts = texts_of(spark, wanted)
    return read(spark, wanted, tick=False, texts=texts, given={
        name: kafka_batch(spark, base, json.loads(start[name]), json.loads(end[name]), texts=name in texts)
        for name, base in bases.items()
    })  # fmt: skip


def texts_of(spark: SparkSession, wanted: Sequence[WantedStream]) -> dict[str, TextStream]:
    """By name, the streams whose texts the gather parses."""
    streams = [want.stream for want in wanted]
    found = {}
    for position, want in enumerate(wanted):
        names = [*want.columns, *(value.name for value, _ in want.foreigns)]
        text = None if want.derived is not None else text_stream(spark, want.stream, position, names, streams)
        if text is not None:
            found[want.stream.name] = text
    return found
