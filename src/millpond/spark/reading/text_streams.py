"""Chooses the streams whose JSON or CSV texts the gather parses."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from millpond.runtime.task.column_layout import TextStream
from millpond.spark.reading.read_frame import WantedStream
from millpond.spark.sources.text_parsing_choice import text_stream


def texts_of(spark: SparkSession, wanted: Sequence[WantedStream]) -> dict[str, TextStream]:
    """By name, the streams whose texts the gather parses."""
    streams = [want.stream for want in wanted]
    found = {}
    for position, want in enumerate(wanted):
        names = [*want.columns, *(foreign.value.name for foreign in want.foreigns)]
        text = None if want.derived is not None else text_stream(spark, want.stream, position, names, streams)
        if text is not None:
            found[want.stream.name] = text
    return found
