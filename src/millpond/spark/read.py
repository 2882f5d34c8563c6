"""The projection of the read: all streams as one streaming frame, pruned to what the queries need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from millpond.errors import QueryTypeError, SourceError
from millpond.log.protocol import TICK as TICK_STREAM
from millpond.model.stream import Stream
from millpond.runtime.layout import TICK, ReadColumn, ReadLayout, StreamLayout
from millpond.spark.catalyst import Catalyst, analysed, items
from millpond.spark.foreign import Projected

_OWN_SCHEMA = ("rate", "rate-micro-batch", "kafka")


class Watermark(NamedTuple):
    """An event-time column and how long its events may be late, in Spark's notation: `10 seconds`."""

    column: str
    delay: str


class Wanted(NamedTuple):
    """What to read of one stream: columns by name, and expressions that only Spark evaluates."""

    stream: Stream
    columns: tuple[str, ...]
    foreigns: tuple[Projected, ...] = ()


class _Part(NamedTuple):
    frame: DataFrame
    fields: list[StructField]
    columns: list[ReadColumn]


def load(spark: SparkSession, stream: Stream, *, named: bool = True) -> DataFrame:
    """The stream as a streaming DataFrame; `named` gives its source the stream's name in the checkpoint.

    Raises:
        QueryTypeError: the stream has no source.
        SourceError: Spark cannot open it.
    """
    source = stream.source
    if source is None:
        raise QueryTypeError(f"The stream {stream.name} has no source.", "Declare it with a format and options.")
    reader = spark.readStream.format(source.format).options(**dict(source.options))
    if named:
        reader = reader.name(stream.name)
    if source.format not in _OWN_SCHEMA:
        reader = reader.schema(", ".join(f"{quoted(field.name)} {field.type}" for field in stream.columns))
    try:
        return reader.load()
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise SourceError(
            f"The stream {stream.name} cannot be read: {reason}", "Check its path and options."
        ) from error


def register(spark: SparkSession, stream: Stream, watermark: Watermark | None = None) -> DataFrame:
    """Load the stream and make it a temporary view, so that texts over it can be analysed.

    Raises:
        QueryTypeError, SourceError: as `load`.
    """
    evolves = spark.conf.get("spark.sql.streaming.queryEvolution.enableSourceEvolution") == "true"
    frame = load(spark, stream, named=evolves)
    if watermark is not None:
        frame = frame.withWatermark(*watermark)
    frame.createOrReplaceTempView(stream.name)
    return frame


def read(spark: SparkSession, wanted: Sequence[Wanted], *, tick: bool = True) -> tuple[DataFrame, ReadLayout]:
    """One streaming frame over all streams and, with `tick`, one row a second; columns as in `ReadLayout`.

    `spark` is a session for reading alone: see `session.reading_session`.

    Raises:
        QueryTypeError: nothing is to be read, a column is unknown, or as `load`.
        SourceError: as `load`.
    """
    parts: list[_Part] = []
    position = 1
    for index, want in enumerate(wanted):
        part = _project(spark, want, index, position)
        parts.append(part)
        position += len(part.columns)
    frames = [_padded(part.frame, index, index, parts) for index, part in enumerate(parts)]
    if tick:
        rate = spark.readStream.name(TICK_STREAM).format("rate").option("rowsPerSecond", 1).option("numPartitions", 1)
        frames.append(_padded(rate.load(), TICK, None, parts))
    if not frames:
        raise QueryTypeError("There is nothing to read: no stream and no tick.", "Declare a stream.")
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.union(other)
    layout = ReadLayout(
        tuple(
            StreamLayout(want.stream.name, tuple(part.columns), *_order(want.stream))
            for want, part in zip(wanted, parts, strict=True)
        )
    )
    return frame, layout


def _order(stream: Stream) -> tuple[str | None, str | None]:
    return (None, None) if stream.order is None else (stream.order.partition, stream.order.offset)


def _project(spark: SparkSession, want: Wanted, index: int, position: int) -> _Part:
    """The columns of one stream, called `c{stream}_{number}`."""
    frame = load(spark, want.stream)
    catalyst = Catalyst(spark)
    attributes = {str(attribute.name()): attribute for attribute in items(analysed(frame).output())}
    types = {field.name: field.type for field in want.stream.columns}
    columns: list[ReadColumn] = []
    selected: list[Column] = []
    for name in want.columns:
        if name not in attributes:
            raise QueryTypeError(f"The stream {want.stream.name} has no column {name}.", "Check its declaration.")
        columns.append(ReadColumn(name, position + len(columns), types[name]))
        selected.append(F.col(quoted(name)))
    for value, expression in want.foreigns:
        # the expression was analysed over another load of the stream: same names, other ids
        names = [
            catalyst.alias(attributes[str(old.name())], str(old.name()), old)
            for old in items(expression.references().toSeq())
        ]
        selected.append(catalyst.attempt(catalyst.substitute(expression, names)))
        columns.append(ReadColumn(value.name, position + len(columns), value.type, foreign=True))
    called = [column.alias(f"c{index}_{number}") for number, column in enumerate(selected)]
    projected = frame.select(*called)
    return _Part(projected, list(projected.schema.fields), columns)


def _padded(frame: DataFrame, stream: int, own: int | None, parts: list[_Part]) -> DataFrame:
    """The frame with the columns of all parts, NULL where they are not its own."""
    columns: list[Column] = [F.lit(stream).alias("stream")]
    for index, part in enumerate(parts):
        for field in part.fields:
            column = F.col(field.name) if index == own else F.lit(None).cast(field.dataType)
            columns.append(column.alias(field.name))
    return frame.select(*columns)


def quoted(name: str) -> str:
    """The name as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
