"""Chooses the files of an epoch that gather tasks read into Arrow, and divides them among tasks.

Spark lists the files, limits an epoch and keeps the checkpoint, in which each epoch's files are found. Its frame for
the epoch is used only for other streams with new input.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millpond.local_path import local_path, scheme_of
from millpond.log.file_lists import files_in
from millpond.log.records import Offsets, SourceUpdate
from millpond.model.endpoints import Source
from millpond.model.expressions import columns_of
from millpond.plan.options.arrow_reading import CORRUPT, csv_form, why_spark
from millpond.runtime.inputs.file_parts import (
    NOWHERE,
    ComputedColumn,
    CsvForm,
    FileColumn,
    FilePart,
    FileRows,
    FileTask,
    FolderValue,
)
from millpond.runtime.inputs.partition_folders import folder_values
from millpond.runtime.inputs.text_files import GZIP
from millpond.runtime.scheduling.backoff import ArrowEpochs
from millpond.runtime.task.column_layout import ReadLayout
from millpond.runtime.task.obstacle import Obstacle
from millpond.spark.catalyst.private_names import Catalyst
from millpond.spark.reading.arrow_expressions import in_arrow
from millpond.spark.reading.file_source import whole_files
from millpond.spark.reading.read_frame import WantedStream, bases_of
from millpond.spark.reading.source_progress import batch_of
from millpond.spark.reading.source_updates import LOCAL
from millpond.spark.session.batch_limits import LIMIT
from millpond.spark.session.session import reading_session
from millpond.spark.sources.text_parsing_choice import parses_alike

LEAST_BYTES, MOST_BYTES = 1 << 20, 128 << 20
"""The least and the most bytes of files that a task reads, if there are enough, and if row groups allow it."""

MOST_DELIVERED = 16 << 20
"""The most bytes of a file that is not local. Spark copies the content, one value, several times in its heap: with two
tasks and 2 GB, contents of 60 MB did not fit.
"""

NO_MEMORY = "memory ran out while Spark held contents of files that are not local"
"""Why Spark reads such files until the process ends."""

_BATCH_BYTES = 32 << 20
"""Bytes of contents after which an Arrow batch ends; a larger content is a batch."""

_OF_TEXTS = {"spark.sql.columnNameOfCorruptRecord": CORRUPT, "spark.sql.files.ignoreCorruptFiles": "false"}
_SETTINGS = {
    "parquet": {
        "spark.sql.caseSensitive": "false",
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.int96TimestampConversion": "false",
        "spark.sql.parquet.fieldId.read.enabled": "false",
        "spark.sql.files.ignoreCorruptFiles": "false",
    },
    "json": _OF_TEXTS,
    "csv": _OF_TEXTS,
}
"""By format, the settings of Spark with which both readers agree; for JSON and CSV, see also `parses_alike`."""

Readers = Mapping[str, "FileRows | str"]
"""By source, in the order of the frame: how gather tasks read its files, or why Spark reads it."""

Without = Callable[[Sequence[str], Collection[str]], DataFrame | None]
"""The epoch's frame without some of its sources, see `partial_frame.without_sources`."""


class ChosenFiles(NamedTuple):
    """The files of an epoch that gather tasks read, and a frame of the other new input, if there is any.

    `contents`: frames of the paths and contents of files that are not local.
    """

    task: FileTask
    others: DataFrame | None
    contents: tuple[DataFrame, ...] = ()

    def reads(self, source: str) -> bool:
        """Whether files of a source are among them."""
        return any(rows.source == source for rows in self.task.sources)


def by_tasks(readers: Readers) -> list[str]:
    """The sources whose files gather tasks can read."""
    return [name for name, rows in readers.items() if isinstance(rows, FileRows)]


def readers_of(spark: SparkSession, wanted: Sequence[WantedStream], layout: ReadLayout) -> Readers:
    """How each source of an epoch's frame is read; `layout`: the frame's columns, in the order of `wanted`."""
    catalyst, streams = Catalyst(spark), [want.stream for want in wanted]
    width = 1 + sum(len(one.columns) for one in layout.streams)
    readers: dict[str, FileRows | str] = {
        base.name: "it is read only for derived streams" for want in wanted for base, _ in bases_of(want)
    }
    for position, (want, placed) in enumerate(zip(wanted, layout.streams, strict=True)):
        if want.stream.source is None:
            continue
        defaults = {
            one.name for one in want.stream.columns if not isinstance(one.default, msgspec.UnsetType)
        }  # fmt: skip
        types = {one.name: one.type for one in want.stream.columns}
        made = {
            one.value.name: expression for one in want.foreigns
            if (expression := in_arrow(catalyst, one.expression)) is not None and columns_of(expression) <= types.keys()
        }  # fmt: skip
        computed = tuple(ComputedColumn(one.position, made[one.name]) for one in placed.columns if one.name in made)
        places = {one.name: (one.type, one.position) for one in placed.columns if one.name not in made}
        for name in sorted(frozenset[str]().union(*map(columns_of, made.values())) - places.keys()):
            places[name] = types[name], NOWHERE
        columns = tuple(FileColumn(name, *place, name in defaults) for name, place in places.items())
        why = why_spark(want.stream, [one.name for one in columns], streams)
        why = why or _other_setting(spark, want.stream.source.format)
        zone = str(spark.conf.get("spark.sql.session.timeZone"))
        form = csv_form(want.stream) if want.stream.source.format == "csv" else None
        csv = None if form is None else CsvForm(tuple(field.name for field in want.stream.columns), *form)
        rows = FileRows(
            want.stream.name, position, columns, width, want.stream.source.format, zone, csv, computed,
            _folder(want.stream.source), tuple((one.name, one.type) for one in want.stream.columns),
        )  # fmt: skip
        readers[want.stream.name] = why or rows
    return readers


def _folder(source: Source) -> str:
    """The folder of a source, below which folders are partitions; empty if there may be none for Spark."""
    path = source.option("path") or ""
    if (source.option("recursiveFileLookup") or "false").lower() != "false":
        return ""  # Spark takes no columns from the names of folders
    return str(local_path(path, "The folder of the stream")) if scheme_of(path) in (None, "file") else path.rstrip("/")


def _other_setting(spark: SparkSession, form: str) -> str | None:
    """A setting of the session with which Spark may read files of a format in another way than gather tasks."""
    if form != "parquet" and not parses_alike(spark):
        return "the session parses texts as older versions of Spark did"
    other = next((name for name, value in _SETTINGS[form].items() if spark.conf.get(name) != value), None)
    return other and f"the session has another {other} than by default"


class _Piece(NamedTuple):
    size: int
    order: int
    part: FilePart


class _File(NamedTuple):
    """A new file; `size`: its bytes, None if it is not local."""

    path: str
    size: int | None
    values: tuple[FolderValue, ...]


class _Contents:
    """Makes frames of whole files of any file system of Hadoop, in a session that limits the bytes of Arrow batches."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._session: SparkSession | None = None

    def of(self, paths: Sequence[str]) -> DataFrame | str:
        """The frame of some files with the columns `path` and `content`; or why Spark must read their rows.

        Spark looks up each file once more. One of its tasks reads several small files.
        """
        if self._session is None:
            self._session = reading_session(self._spark)
            self._session.conf.set(LIMIT, str(_BATCH_BYTES))
        try:
            frame = whole_files(self._session, paths)
        except (PySparkException, Py4JError) as error:
            return str(error).splitlines()[0][:200]
        listed = frame._jdf.queryExecution().analyzed().relation().location()
        files = listed.allFiles()
        if files.size() != len(paths):
            return f"Spark lists {files.size()} of {len(paths)} files"
        for file in map(files.apply, range(files.size())) if listed.sizeInBytes() > MOST_DELIVERED else ():
            if file.getLen() > MOST_DELIVERED:
                return f"{file.getPath().toString()} is not local and has {file.getLen():,} bytes"
        return frame.select("path", "content")


class ArrowFiles:
    """Chooses the streams of which gather tasks read the files of an epoch."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._contents = _Contents(spark)
        self._why_no_contents = ""
        self._readers: Readers = {}
        self._states: dict[str, ArrowEpochs] = {}

    def reads(self, readers: Readers) -> None:
        """Note what a new streaming query reads."""
        self._readers = readers

    @property
    def notes(self) -> dict[str, str]:
        """By stream of files that can be read into Arrow: its reader, and the reason, as text."""
        return {name: state.note("read") for name, state in self._states.items()}

    @property
    def next_by_tasks(self) -> list[str]:
        """The sources whose files gather tasks are going to read in the next epoch, unless they meet an obstacle."""
        waiting = {name for name, state in self._states.items() if not state.backoff.is_next}
        return [name for name in by_tasks(self._readers) if name not in waiting]

    def choose(
        self, start: Offsets, end: Offsets, sources: Mapping[str, SourceUpdate], without: Without
    ) -> ChosenFiles | None:
        """The files between two offsets that gather tasks read; None if Spark reads all that is new.

        `sources`: what the epoch's record states about its sources. `without`: see `Without`.
        """
        new = [name for name in self._readers if name in end and start.get(name) != end[name]]
        files: dict[str, list[_File]] = {}
        contents: list[DataFrame] = []
        for name, rows in ((name, rows) for name in new if isinstance(rows := self._readers.get(name), FileRows)):
            state = self._states.setdefault(name, ArrowEpochs())
            state.epochs += 1
            if state.backoff.due():
                listed = _listed(rows, start, sources)
                if not isinstance(listed, str) and (remote := [file.path for file in listed if file.size is None]):
                    content = self._why_no_contents or self._contents.of(remote)
                    if isinstance(content, str):
                        listed = content
                    else:
                        contents.append(content)
                if not isinstance(listed, str):
                    files[name] = listed
                    continue
                state.backoff.why = listed
            state.of_spark += 1
        others, frame = [name for name in new if name not in files], None
        if files and others:
            frame = without(new, [*files])
            if frame is None:
                for state in (self._states[name] for name in files):
                    state.of_spark += 1
                    state.backoff.why = f"Spark's plan does not separate {others[0]}, which has new input too"
        if not files or (others and frame is None):
            return None
        read = tuple(one for name in files if isinstance(one := self._readers[name], FileRows))
        return ChosenFiles(self._divided(read, files), frame, (*contents,))

    def _divided(self, sources: tuple[FileRows, ...], files: Mapping[str, list[_File]]) -> FileTask:
        """Divide local files among tasks: large ones by row groups or bytes, small ones several to a task."""
        total = sum(file.size or 0 for group in files.values() for file in group)
        most = LEAST_BYTES
        if total > LEAST_BYTES:
            cores = int(self._spark.sparkContext.defaultParallelism)
            most = min(max(-(-total // cores), LEAST_BYTES), MOST_BYTES)
        pieces: list[_Piece] = []
        delivered: list[FilePart] = []
        for number, rows in enumerate(sources):
            for path, size, values in files[rows.source]:
                if size is None:
                    delivered.append(FilePart(number, path, values=values))
                    continue
                shares = 1 if path.endswith(GZIP) else max(1, -(-size // most))
                pieces += (
                    _Piece(size // shares, len(pieces) + share, FilePart(number, path, share, shares, size, values))
                    for share in range(shares)
                )
        bins: list[tuple[int, int, list[_Piece]]] = [(0, i, []) for i in range(max(1, -(-total // most)))]
        for piece in sorted(pieces, reverse=True):
            size, i, group = heapq.heappop(bins)
            heapq.heappush(bins, (size + piece.size, i, [*group, piece]))
        parts = (tuple(one.part for one in sorted(group, key=lambda one: one.order)) for _, _, group in sorted(bins))
        return FileTask(sources, tuple(part for part in parts if part), tuple(delivered))

    def note_obstacle(self, files: ChosenFiles, obstacle: Obstacle) -> None:
        """Note that gather tasks have met an obstacle in one of these files.

        Spark reads all streams in this epoch, and the stream of the obstacle in some later epochs.
        """
        for rows in files.task.sources:
            state = self._states[rows.source]
            state.of_spark += 1
            state.backoff.why = f"the stream {obstacle.source} could not be read with Arrow"
        self._states[obstacle.source].backoff.failed(obstacle.why)

    def read_remote_files_with_spark(self, files: ChosenFiles | None = None) -> None:
        """Let Spark read all files that are not local, as memory ran out; `files`: those of a failed attempt.

        Spark reads all streams in this epoch, and those with files that are not local in later epochs, too.
        """
        self._why_no_contents = NO_MEMORY
        if files is None:
            return
        remote = sorted({files.task.sources[part.rows].source for part in files.task.delivered})
        for rows in files.task.sources:
            state = self._states[rows.source]
            state.of_spark += 1
            others = f"memory ran out while Spark held contents of files of {', '.join(remote)}"
            state.backoff.why = NO_MEMORY if rows.source in remote else others

    def note_success(self, files: ChosenFiles) -> None:
        """Note that gather tasks have read these files."""
        for rows in files.task.sources:
            self._states[rows.source].backoff.succeeded()


def _listed(rows: FileRows, start: Offsets, sources: Mapping[str, SourceUpdate]) -> list[_File] | str:
    """The new files of a stream; or why Spark reads them."""
    found: list[_File] = []
    update, after = sources.get(rows.source, SourceUpdate()), batch_of(start.get(rows.source, ""))
    files = () if update.files is None else files_in(update.files)
    for uri in (one.decoded for one in files if one.batch > after):
        path = uri.removeprefix(LOCAL)
        values = folder_values(rows.folder, path, rows.declared)
        if isinstance(values, str):
            return values
        if found and len(values) != len(found[0].values):
            return f"{path} is in other folders than {found[0].path}"
        try:
            found.append(_File(path, os.path.getsize(path) if path != uri else None, values))
        except OSError as error:
            return f"{path}: {error.strerror}"
    return found or f"the list of new files of {rows.source} is empty"
