"""Reads a source a second time, as batches, up to the position that epochs have reached.

The read is split into portions, and epochs run between the portions.

The stream's source makes the portions (`reading.event_source`). `runtime.inputs.backfill` explains against which
watermark each event is judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millpond.errors import UnsupportedQuery
from millpond.faults import reached
from millpond.model.stream import Field, Stream
from millpond.runtime.inputs.backfill import PastEpoch, RereadEvents, Staged, stage_events
from millpond.runtime.task.column_layout import ReadColumn
from millpond.runtime.task.file_sync import OpenFiles
from millpond.spark.reading.event_source import event_source
from millpond.spark.reading.read_frame import WantedStream, read
from millpond.spark.reading.source_progress import FILE, Portion, gone
from millpond.spark.session.failures import explained
from millpond.spark.session.worker import VersionChecked, worker_task

_GONE = re.compile(
    r"PATH_NOT_FOUND|FILE_NOT_EXIST|FileNotFoundException|KAFKA_DATA_LOSS|may have been lost|OffsetOutOfRange"
    r"|[Oo]ffsets? out of range"
)


class _StageEvents(VersionChecked):
    """A Spark task function that writes the rows of a source to files of events."""

    def __init__(self, events: RereadEvents, open_files: OpenFiles, prefix: str) -> None:
        self._events, self._open_files, self._prefix = events, open_files, prefix

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        attempt = 0 if context is None else context.taskAttemptId()
        with worker_task():
            for staged in stage_events(self._events, batches, self._open_files(), f"{self._prefix}-{attempt}"):
                column = pa.array([msgspec.json.encode(staged)], pa.binary())
                yield pa.RecordBatch.from_arrays([column], names=["staged"])


class SourceRereader:
    """Reads the source of `wanted`, the input of a query, a second time.

    `checkpoint` returns Spark's current checkpoint, which changes when another streaming query takes over. `columns`
    are the columns of the events; they are known once something has been read.

    Raises:
        UnsupportedQuery: this kind of source cannot be read a second time.
    """

    def __init__(
        self, spark: SparkSession, wanted: WantedStream, event_time: str, checkpoint: Callable[[], Path]
    ) -> None:  # fmt: skip
        if wanted.derived is not None or wanted.stream.source is None:
            raise UnsupportedQuery(
                f"{wanted.stream.label} is derived from others, and cannot be read again.", "Leave the backfill out."
            )
        self._source = event_source(wanted.stream)
        self._source.check_repeatable()
        self._spark, self._wanted, self._event_time = spark, wanted, event_time
        self._checkpoint = checkpoint
        self.columns: tuple[ReadColumn, ...] = ()

    @property
    def stream(self) -> Stream:
        """The stream whose source is read."""
        return self._wanted.stream

    @property
    def _folder(self) -> Path:
        return self._checkpoint() / "sources" / self.stream.name

    def price(self, epochs: Sequence[PastEpoch]) -> tuple[int, int]:
        """The bytes of files and the number of Kafka records that these epochs read.

        Raises:
            GoneError: files no longer exist. CorruptError: Spark's checkpoint is damaged.
        """
        with self._explaining():
            return self._source.price(self._spark, self._folder, epochs)

    def stage(
        self, epochs: Sequence[PastEpoch], open_files: OpenFiles, prefix: str, progress: Callable[[float], None]
    ) -> list[Staged]:
        """Write the events that these epochs read to files whose names begin with `prefix`.

        `progress` is called after each portion, with the share that has been read.

        Raises:
            GoneError: the source no longer has all of them. CorruptError: Spark's checkpoint does not say what was
            read. MillpondError: Spark failed.
        """
        staged, share = list[Staged](), 0.0
        with self._explaining():
            portions = self._source.portions(self._spark, self._folder, epochs)
            for number, portion in enumerate(portions):
                frame, events = self._read(portion)
                job = _StageEvents(events, open_files, f"{prefix}-{number}")
                # Only half of the task slots are used, because epochs run at the same time.
                tasks = max(1, self._spark.sparkContext.defaultParallelism // 2)
                table = frame.coalesce(tasks).mapInArrow(job, "staged binary").toArrow()
                staged += [msgspec.json.decode(one, type=Staged) for one in table.column(0).to_pylist()]
                share += portion.share
                progress(share)
                reached("backfill.portion")
        return staged

    def _read(self, portion: Portion) -> tuple[DataFrame, RereadEvents]:
        """The frame of a portion with the columns that the query needs, and how events are assigned to epochs."""
        wanted = self._wanted
        if portion.files:
            stream = msgspec.structs.replace(wanted.stream, columns=(*wanted.stream.columns, Field(FILE, "string")))
            wanted = wanted._replace(stream=stream, columns=(*wanted.columns, FILE))
        frame, layout = read(self._spark, [wanted], tick=False, given={wanted.stream.name: portion.frame})
        columns = layout.streams[0].columns
        self.columns = tuple(one for one in columns if one.name != FILE)
        file = next((one.position for one in columns if one.name == FILE), None)
        events = RereadEvents(layout.streams[0], self._event_time, portion.epochs, file, portion.files, portion.ends)
        return frame, events

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (PySparkException, Py4JError, ConnectionError) as error:
            failure = explained(error)
            if _GONE.search(f"{failure} {error}"):
                raise gone(self.stream, str(error).strip().splitlines()[0][:200]) from error
            raise failure from error
