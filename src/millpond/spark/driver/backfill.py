"""Reads a source a second time, as batches, up to the position that epochs have reached.

The read is split into portions, and epochs run between the portions.

For files, the files listed in Spark's checkpoint are read with the stream's options. For Kafka, the offsets in the
log are read by the same connector. `runtime.inputs.backfill` explains against which watermark each event is judged.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.errors import GoneError, MillpondError, UnsupportedQuery
from millpond.faults import reached
from millpond.model.stream import Field, Stream
from millpond.runtime.inputs.backfill import Again, PastEpoch, Staged, path_of, take
from millpond.runtime.task.column_layout import ReadColumn, StreamLayout
from millpond.runtime.task.file_sync import OpenFiles
from millpond.spark.reading.read_frame import Wanted, file_batch, read
from millpond.spark.reading.source_progress import SeenFile, batch_of, first_offsets, offsets_of, records_in, seen_files
from millpond.spark.session.failures import explained
from millpond.spark.session.worker import with_code
from millpond.spark.sources.kafka import KAFKA, kafka_batch

FORMATS = ("parquet", "json", "csv", "orc", "text", "avro")
"""File formats that a backfill can read."""

PORTION_BYTES = 256 << 20
PORTION_FILES = 2048
PORTION_RECORDS = 2_000_000
"""Upper limits of what one Spark job of a backfill reads; a single epoch that read more is not split."""

_FILE = "__file"
_GONE = re.compile(
    r"PATH_NOT_FOUND|FILE_NOT_EXIST|FileNotFoundException|KAFKA_DATA_LOSS|may have been lost|OffsetOutOfRange"
    r"|[Oo]ffsets? out of range"
)


class _Portion(NamedTuple):
    frame: DataFrame
    again: Again


class _Take:
    """A Spark task function that writes the rows of a source to files of events."""

    def __init__(self, again: Again, open_files: OpenFiles, prefix: str) -> None:
        self._again, self._open_files, self._prefix = again, open_files, prefix

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        attempt = 0 if context is None else context.taskAttemptId()
        with with_code():
            for staged in take(self._again, batches, self._open_files(), f"{self._prefix}-{attempt}"):
                told = pa.array([msgspec.json.encode(staged)], pa.binary())
                yield pa.RecordBatch.from_arrays([told], names=["staged"])


class SourceAgain:
    """Reads the source of `wanted`, the input of a query, a second time.

    `checkpoint` returns Spark's current checkpoint, which changes when another streaming query takes over. `columns`
    are the columns of the events; they are known once something has been read.

    Raises:
        UnsupportedQuery: this kind of source cannot be read a second time.
    """

    def __init__(
        self, spark: SparkSession, wanted: Wanted, event_time: str, checkpoint: Callable[[], Path]
    ) -> None:
        stream = wanted.stream
        source = stream.source
        self._kafka = source is not None and source.format == KAFKA
        if wanted.derived is not None or source is None or source.format not in (*FORMATS, KAFKA):
            made = source is None or wanted.derived is not None
            what = "made of others" if made or source is None else f"of the format {source.format}"
            raise UnsupportedQuery(f"{stream.name} is {what}, and is not read again.", "Leave the backfill out.")
        if stream.order is not None and not self._kafka:
            raise UnsupportedQuery(
                f"The files of {stream.name} have an order of their own, and are not read again.",
                "Leave the backfill out.",
            )
        self._spark, self._wanted, self._event_time = spark, wanted, event_time
        self._checkpoint = checkpoint
        self.columns: tuple[ReadColumn, ...] = ()

    @property
    def stream(self) -> Stream:
        """The stream whose source is read."""
        return self._wanted.stream

    @property
    def _sources(self) -> Path:
        return self._checkpoint() / "sources" / self.stream.name

    def price(self, epochs: Sequence[PastEpoch]) -> tuple[int, int]:
        """The bytes of files and the number of Kafka records that these epochs read.

        Raises:
            GoneError: files no longer exist. CorruptError: Spark's checkpoint is damaged.
        """
        if self._kafka:
            return 0, records_in(epochs, first_offsets(self._sources)) if epochs else 0
        files = self._files(epochs)
        return sum(size for part in _runs(files) for size in self._sizes(part)), 0

    def stage(self, epochs: Sequence[PastEpoch], open_files: OpenFiles, prefix: str) -> list[Staged]:
        """Write the events that these epochs read to files whose names begin with `prefix`.

        Raises:
            GoneError: the source no longer has all of them. CorruptError: Spark's checkpoint does not say what was
            read. MillpondError: Spark failed.
        """
        staged: list[Staged] = []
        portions = self._kafka_portions(epochs) if self._kafka else self._file_portions(epochs)
        for number, portion in enumerate(portions):
            job = _Take(portion.again, open_files, f"{prefix}-{number}")
            # Only half of the task slots are used, because epochs run at the same time.
            tasks = max(1, self._spark.sparkContext.defaultParallelism // 2)
            rows = portion.frame.coalesce(tasks).mapInArrow(job, "staged binary")
            table = self._attempt(rows.toArrow)
            staged += [msgspec.json.decode(one, type=Staged) for one in table.column(0).to_pylist()]
            reached("backfill.portion")
        return staged

    def _attempt(self, job: Callable[[], pa.Table]) -> pa.Table:
        try:
            return job()
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> MillpondError:
        found = explained(error)
        if _GONE.search(f"{found} {error}"):
            return _gone(self.stream, str(error).strip().splitlines()[0][:200])
        return found

    def _file_portions(self, epochs: Sequence[PastEpoch]) -> Iterator[_Portion]:
        ends = [batch_of(epoch.end) for epoch in epochs]
        for run in _runs(self._files(epochs)):
            for files in _portions(run, self._sizes(run)):
                places = [bisect_left(ends, one.batch) for one in files]  # batch numbers only grow
                mine = {path_of(one.path): at - places[0] for one, at in zip(files, places, strict=True)}
                given = Field(_FILE, "string")
                stream = msgspec.structs.replace(self.stream, columns=(*self.stream.columns, given))
                wanted = self._wanted._replace(stream=stream, columns=(*self._wanted.columns, _FILE))
                frame, layout = self._read(wanted, partial(self._opened, files))
                place = next(one.position for one in layout.columns if one.name == _FILE)
                some = tuple(epochs[places[0] : places[-1] + 1])
                yield _Portion(frame, Again(layout, self._event_time, some, place, mine))

    def _opened(self, files: Sequence[SeenFile]) -> DataFrame:
        frame = file_batch(self._spark, self.stream, [one.path for one in files])
        # Spark returns the path as an encoded URI.
        return frame.select("*", F.url_decode(F.replace("_metadata.file_path", F.lit("+"), F.lit("%2B"))).alias(_FILE))

    def _kafka_portions(self, epochs: Sequence[PastEpoch]) -> Iterator[_Portion]:
        first, held = first_offsets(self._sources), list[PastEpoch]()
        for place, epoch in enumerate(epochs):
            held.append(epoch)
            if records_in(held, first) < PORTION_RECORDS and place + 1 < len(epochs):
                continue
            start, last = offsets_of(held[0].start, first), offsets_of(held[-1].end, first)
            frame, layout = self._read(self._wanted, partial(kafka_batch, self._spark, self.stream, start, last))
            every = [offsets_of(epoch.end, first) for epoch in held]
            ends = {
                f"{topic}-{partition}": [one.get(topic, {}).get(partition, 0) for one in every]
                for topic, partitions in last.items() for partition in partitions
            }  # fmt: skip
            yield _Portion(frame, Again(layout, self._event_time, tuple(held), ends=ends))
            held = []

    def _read(self, wanted: Wanted, opened: Callable[[], DataFrame]) -> tuple[DataFrame, StreamLayout]:
        try:
            frame, layout = read(self._spark, [wanted], tick=False, given={wanted.stream.name: opened()})
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise self._explained(error) from error
        self.columns = tuple(one for one in layout.streams[0].columns if one.name != _FILE)
        return frame, layout.streams[0]

    def _files(self, epochs: Sequence[PastEpoch]) -> list[SeenFile]:
        if not epochs:
            return []
        after = batch_of(epochs[0].start)
        return [one for one in seen_files(self._sources, batch_of(epochs[-1].end)) if one.batch > after]

    def _sizes(self, files: Sequence[SeenFile]) -> list[int]:
        """The current sizes of files.

        Raises:
            GoneError: a file no longer exists, or was changed since it was read.
        """
        reader = self._spark.read.format("binaryFile").option("__globPaths__", "false")
        table = self._attempt(
            lambda: reader.load([one.path for one in files])
            .select("path", "length", F.unix_millis("modificationTime").alias("changed")).toArrow()
        )  # fmt: skip
        found = {path_of(row["path"]): row for row in table.to_pylist()}
        for one in files:
            row = found.get(path_of(one.path))
            if row is None:
                raise _gone(self.stream, f"{one.path} is not there.")
            if row["changed"] != one.changed_ms:
                raise _gone(self.stream, f"{one.path} was changed since it was read.")
        return [found[path_of(one.path)]["length"] for one in files]


def _runs(files: Sequence[SeenFile]) -> Iterator[Sequence[SeenFile]]:
    for first in range(0, len(files), PORTION_FILES):
        yield files[first : first + PORTION_FILES]


def _portions(files: Sequence[SeenFile], sizes: Sequence[int]) -> Iterator[Sequence[SeenFile]]:
    """Split files into runs of at most `PORTION_BYTES`; a larger file is a run of its own."""
    first, size = 0, 0
    for place, more in enumerate(sizes):
        if place > first and size + more > PORTION_BYTES:
            yield files[first:place]
            first, size = place, 0
        size += more
    yield files[first:]


def _gone(stream: Stream, what: str) -> GoneError:
    return GoneError(
        f"The source of {stream.name} has not all that was read of it any more: {what}",
        "Backfill from a later time, from which on all is there, or leave the backfill out.",
    )
