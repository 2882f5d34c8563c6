"""Decides whether the gather or Spark parses JSON and CSV values of topics, and adds Spark's parser where it is needed.

Columns of a frame with such streams are described at `runtime.task.column_layout.ReadLayout`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.log.records import Offsets
from millpond.model.stream import DEAD_LETTER, Stream
from millpond.plan.options.kafka_parsers import csv_separator, declared_columns, why_spark_parses
from millpond.runtime.scheduling.backoff import ArrowEpochs
from millpond.runtime.task.column_layout import DEAD, LETTER_COLUMN, ReadLayout, TextStream, column_name
from millpond.runtime.task.obstacle import Obstacle
from millpond.runtime.task.task_values import GatherTask
from millpond.spark.session.arrow_rows import ArrowRows
from millpond.spark.session.batch_rows import BatchRows
from millpond.spark.sources.convert_values import is_strict
from millpond.spark.sources.value_formats import parsed
from millpond.spark.sources.value_schemas import VALUE

_SETTINGS = {
    "spark.sql.legacy.timeParserPolicy": "legacy",
    "spark.sql.legacy.json.allowEmptyString.enabled": "true",
}
"""Values of Spark's settings with which the parsers do not agree, in lower case."""

_STREAM, _REASON = "stream", "__reason"


def text_stream(
    spark: SparkSession, stream: Stream, position: int, names: Collection[str], streams: Iterable[Stream]
) -> TextStream | None:  # fmt: skip
    """How the gather parses the values of the stream at a position of the layout; None if Spark parses them.

    `names` and `streams`: see `why_spark_parses`.
    """
    if stream.source is None or not stream.source.has_topics or why_spark_parses(stream, names, streams):
        return None
    if not parses_alike(spark):
        return None
    columns = tuple((field.name, field.type) for field in declared_columns(stream))
    zone = spark.conf.get("spark.sql.session.timeZone") or ""
    keeps_bytes = stream.on_malformed.policy == DEAD_LETTER
    strict, separator = is_strict(dict(stream.source.options)), csv_separator(stream) or ""
    return TextStream(position, columns, zone, strict, keeps_bytes, separator)


def parses_alike(spark: SparkSession) -> bool:
    """Whether the session's settings make Spark parse texts as `formats.json_values` and `formats.csv_values` do."""
    return all((spark.conf.get(name) or "").lower() != value for name, value in _SETTINGS.items())


def parsed_by_spark(frame: DataFrame, layout: ReadLayout, streams: Sequence[Stream], names: Iterable[str]) -> DataFrame:
    """The frame of a layout with the texts of the named streams parsed by Spark.

    If no stream has texts any more, the frame has all columns of the layout at their positions.
    """
    left = {layout.streams[text.position].name: text for text in layout.texts}
    by_name = {stream.name: stream for stream in streams}
    for name in names:
        frame = _parsed(frame, layout, left.pop(name), by_name[name])
    if left:
        return frame
    every = [
        column_name(position, place)
        for position, stream in enumerate(layout.streams) if not stream.chained
        for place in range(len(stream.columns))
    ]  # fmt: skip
    return frame.select(_STREAM, *every, LETTER_COLUMN)


def _parsed(frame: DataFrame, layout: ReadLayout, text: TextStream, stream: Stream) -> DataFrame:
    assert stream.source is not None
    mine = F.col(_STREAM) == text.position
    letter = F.col(LETTER_COLUMN)
    others = [F.col(name) for name in frame.columns if name not in (_STREAM, LETTER_COLUMN)]
    records = frame.select("*", F.when(mine, letter.getField(VALUE)).alias(VALUE))
    fields = stream.columns[: len(text.columns)]
    made = parsed(records, stream, fields, dict(stream.source.options))
    values = dict(zip((field.name for field in fields), made.columns, strict=True))
    columns = [
        values[column.name].alias(column_name(text.position, i))
        for i, column in enumerate(layout.streams[text.position].columns) if column.name in values
    ]  # fmt: skip
    reason = F.when(mine, made.reason)
    whole = letter.withField("reason", reason)
    if not text.keeps_bytes:
        whole = whole.withField(VALUE, F.lit(None).cast("binary"))
    dead = F.when(mine, F.when(reason.isNotNull(), whole)).otherwise(letter)
    stream_column = F.when(reason.isNotNull(), F.lit(DEAD)).otherwise(F.col(_STREAM))
    return made.records.select(stream_column.alias(_STREAM), *others, *columns, dead.alias(LETTER_COLUMN))


class TextParsing:
    """Divides the texts of an epoch: Spark parses those of the streams `by_spark`, and the gather all others."""

    def __init__(self, task: GatherTask, streams: Sequence[Stream], by_spark: Collection[str]) -> None:
        self._layout, self._streams, self._by_spark = task.layout, streams, tuple(by_spark)
        texts = tuple(text for text in task.layout.texts if task.layout.streams[text.position].name not in by_spark)
        self.task = msgspec.structs.replace(task, layout=replace(task.layout, texts=texts)) if by_spark else task

    def frame(self, frame: DataFrame) -> DataFrame:
        """A frame of the epoch with fewer streams of texts."""
        return parsed_by_spark(frame, self._layout, self._streams, self._by_spark) if self._by_spark else frame

    def rows(self, batch: BatchRows) -> ArrowRows:
        """The rows of the epoch's batch, likewise."""
        return ArrowRows.of(self.frame(batch.frame)) if self._by_spark else batch.arrow_rows


class TextReading:
    """Decides, epoch by epoch, which streams' texts the gather parses, and which Spark."""

    def __init__(self) -> None:
        self._states: dict[str, ArrowEpochs] = {}
        self._tried: set[str] = set()

    @property
    def notes(self) -> dict[str, str]:
        """By stream of texts: who parses them, and why, for people."""
        return {name: state.note("parsed") for name, state in self._states.items()}

    def by_spark(self, layout: ReadLayout | None, start: Offsets, end: Offsets) -> list[str]:
        """The streams of texts that Spark parses in an epoch, because the gather met an obstacle not long ago."""
        names = [] if layout is None else [layout.streams[text.position].name for text in layout.texts]
        streams = []
        self._tried.clear()
        for name in names:
            if start.get(name) == end.get(name):
                continue
            state = self._states.setdefault(name, ArrowEpochs())
            state.epochs += 1
            if not state.backoff.due():
                state.of_spark += 1
                streams.append(name)
            else:
                self._tried.add(name)
        return streams

    def note_obstacle(self, obstacle: Obstacle) -> bool:
        """Note that the gather has met an obstacle in a stream, whose texts Spark parses in this epoch.

        Returns False if it has not tried to parse them.
        """
        if obstacle.source not in self._tried:
            return False
        state = self._states[obstacle.source]
        state.backoff.failed(obstacle.why)
        state.of_spark += 1
        self._tried.remove(obstacle.source)
        return True

    def note_success(self) -> None:
        """Note that the gather has parsed the texts of the epoch's other streams."""
        for name in self._tried:
            self._states[name].backoff.succeeded()
        self._tried.clear()
