"""Defines what an event source must do, and finds the implementation for a stream.

    implementation    sources                                records that do not parse     read again by
    KafkaSource       topics                                 separated                     offsets
    FileSource        folders of files                       separated if they are dropped lists of files
    SparkSource       `rate`, and all others that Spark has  as Spark does                 not possible

What users may write about a source is in the table of kinds (`model.endpoints`). A derived stream has no source of its
own: it is made of the streams that its branches read. Rows of queries are read without Spark (`runtime.inputs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from millpond.errors import QueryTypeError
from millpond.model.endpoints import source_kind
from millpond.model.stream import Stream, check_partitioned, check_source
from millpond.runtime.inputs.backfill import PastEpoch
from millpond.spark.reading.file_source import FileSource
from millpond.spark.reading.kafka_source import KafkaSource
from millpond.spark.reading.source_progress import Portion
from millpond.spark.reading.spark_source import SparkSource


class EventSource(Protocol):
    """The source of one stream. An implementation is created with the stream, and does nothing before it is used."""

    def completed(self) -> Stream:
        """The stream with the columns and the order that its source defines.

        Raises:
            QueryError: a column or an option does not fit the source.
        """

    def stand_in(self) -> EventSource:
        """A source with the same columns for the analysis of texts, which needs neither a server nor a jar."""

    def frame(
        self, spark: SparkSession, name: str | None, limit: int | None, marks: Mapping[str, str]
    ) -> DataFrame:  # fmt: skip
        """The stream as a streaming DataFrame. If records are separated, it has the column `sources.kafka.DEAD` too.

        - `name`: the name of the source in Spark's checkpoint; None if the frame is only analysed.
        - `limit`: the most records that an epoch reads, unless the stream has a limit; only with `target_seconds`.
        - `marks`: options that Spark passes on, for `sources.declared_paths`.

        Raises:
            SourceError: Spark cannot open it. SetupError: a jar or another requirement is missing.
        """

    def malformed_policy(self) -> tuple[str, float | None] | None:
        """What happens to records that do not parse, and the ratio at which the stream stops; see `ReadLayout`.

        None if the source does not separate them.
        """

    def target_seconds(self) -> float | None:
        """The duration of epochs to which the number of records is fitted; None if the number is not limited."""

    def check_repeatable(self) -> None:
        """Check that epochs can be read again.

        Raises:
            UnsupportedQuery: they cannot.
        """

    def price(self, spark: SparkSession, folder: Path, epochs: Sequence[PastEpoch]) -> tuple[int, int]:
        """The bytes of files and the number of records that some consecutive epochs have read.

        `folder`: the folder of the source in Spark's checkpoint.

        Raises:
            GoneError: the source no longer has them. CorruptError: the checkpoint is damaged.
        """

    def portions(self, spark: SparkSession, folder: Path, epochs: Sequence[PastEpoch]) -> Iterator[Portion]:
        """What these epochs have read, as batches of bounded size; raises as `price`."""


def event_source(stream: Stream) -> EventSource:
    """The source of a stream.

    Raises:
        QueryTypeError: the stream has none.
    """
    if stream.source is None:
        raise QueryTypeError(f"The stream {stream.name} has no source.", "Declare it with a format and options.")
    if stream.source.has_topics:
        return KafkaSource(stream)
    return FileSource(stream) if source_kind(stream.source.format).files else SparkSource(stream)


def completed(stream: Stream) -> Stream:
    """The stream as its source completes it; see `EventSource.completed`.

    Raises:
        QueryError: as `EventSource.completed`. PlaceError: a Delta table is not local.
    """
    check_partitioned(stream)
    check_source(stream)
    return stream if stream.source is None else event_source(stream).completed()


def malformed_policy(stream: Stream) -> tuple[str, float | None] | None:
    """See `EventSource.malformed_policy`; None also for a stream without a source."""
    return None if stream.source is None else event_source(stream).malformed_policy()


def paced(streams: Iterable[Stream]) -> dict[str, float]:
    """The streams whose reads are limited by a target duration of epochs, and this duration in seconds."""
    found = ((one.name, event_source(one).target_seconds()) for one in streams if one.source is not None)
    return {name: seconds for name, seconds in found if seconds is not None}
