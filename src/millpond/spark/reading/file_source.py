"""Reads folders of files, and reads the files of past epochs again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.errors import UnsupportedQuery
from millpond.local_path import scheme_of
from millpond.log.file_lists import ListedFile
from millpond.model.endpoints import Source, source_kind
from millpond.model.stream import DROP, Stream
from millpond.runtime.inputs.backfill import PastEpoch, path_of
from millpond.spark.catalyst.data_types import schema_of
from millpond.spark.reading.source_progress import FILE, Portion, batch_of, gone, listed_files
from millpond.spark.reading.spark_source import SparkSource, prepare
from millpond.spark.sources.malformed_files import MarkedFiles, drops_malformed

PORTION_BYTES = 64 << 20
PORTION_FILES = 512
"""Upper limits of what one portion reads; a larger file is a portion of its own."""

_OF_STREAMS = frozenset(
    ("path", "cleansource", "sourcearchivedir", "latestfirst", "maxfileage", "maxfilespertrigger", "maxbytespertrigger")
)
"""Options of streaming file sources that a batch read does not have, in lower case; `path` is passed separately."""

_JOB_ABOVE = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_BY_DEFAULT, _NEVER = "32", str(2**31 - 1)


class FileSource(SparkSource):
    """Implements `EventSource` for folders of files; with `separates`, dropped records are separated and counted."""

    def __init__(self, stream: Stream, *, separates: bool = True) -> None:
        super().__init__(stream)
        self._separates = separates and drops_malformed(stream)

    def stand_in(self) -> SparkSource:
        return super().stand_in() if self.kind.prepare is not None else FileSource(self.stream, separates=False)

    def frame(
        self, spark: SparkSession, name: str | None, limit: int | None, marks: Mapping[str, str]
    ) -> DataFrame:  # fmt: skip
        if not self._separates:
            return super().frame(spark, name, limit, marks)
        marked = MarkedFiles(spark, self.stream)
        return marked.separated(self.opened(spark, name, {**marks, **marked.options}, marked.schema))

    def malformed_policy(self) -> tuple[str, float | None] | None:
        return (DROP, None) if self._separates else None

    def check_repeatable(self) -> None:
        if not self.kind.again:
            super().check_repeatable()
        if self.stream.order is not None:
            raise UnsupportedQuery(
                f"The stream {self.stream.name} declares an order of its files, which cannot be read again.",
                "Leave the backfill out.",
            )

    def price(self, spark: SparkSession, folder: Path, epochs: Sequence[PastEpoch]) -> tuple[int, int]:
        return sum(size for part in _runs(_files(folder, epochs)) for size in self._sizes(spark, part)), 0

    def portions(self, spark: SparkSession, folder: Path, epochs: Sequence[PastEpoch]) -> Iterator[Portion]:
        """The frames have the column `FILE`."""
        ends = [batch_of(epoch.end) for epoch in epochs]
        listed = _files(folder, epochs)
        for run in _runs(listed):
            sizes = self._sizes(spark, run)  # of a run at a time, so that the first portion does not wait for all
            bytes_of_run, share_of_run = sum(sizes), len(run) / len(listed)
            for files, size in _bounded(run, sizes):
                places = [bisect_left(ends, one.batch) for one in files]  # batch numbers only grow
                mine = {path_of(one.decoded): at - places[0] for one, at in zip(files, places, strict=True)}
                some = tuple(epochs[places[0] : places[-1] + 1])
                share = share_of_run * (size / bytes_of_run if bytes_of_run else len(files) / len(run))
                yield Portion(self._batch(spark, [one.decoded for one in files]), some, share, files=mine)

    def _batch(self, spark: SparkSession, files: Sequence[str]) -> DataFrame:
        """Some files as a batch, with the stream's options, as a streaming query reads them, and the column `FILE`."""
        prepare(spark, self.kind)
        options = {name: value for name, value in self.source.options if name.lower() not in _OF_STREAMS}
        base = self.source.option("path")
        if base and not {*base} & {*"{}[]*?\\"}:  # partition columns in names of folders
            options["basePath"] = base
        reader = spark.read.format(self.kind.spark_format).options(**options).option("__globPaths__", "false")
        if self._separates:
            marked = MarkedFiles(spark, self.stream)
            frame = marked.separated(reader.options(**marked.options).schema(marked.schema).load([*files]))
        else:
            frame = reader.schema(schema_of(self.stream.columns)).load([*files])
        # Spark returns the path as an encoded URI.
        return frame.select("*", F.url_decode(F.replace("_metadata.file_path", F.lit("+"), F.lit("%2B"))).alias(FILE))

    def _sizes(self, spark: SparkSession, files: Sequence[ListedFile]) -> list[int]:
        """The current sizes of files.

        Raises:
            GoneError: a file no longer exists, or was changed since it was read.
        """
        table = (
            whole_files(spark, [file.decoded for file in files])
            .select("path", "length", F.unix_millis("modificationTime").alias("changed")).toArrow()
        )  # fmt: skip
        found = {path_of(row["path"]): row for row in table.to_pylist()}
        for file in files:
            row = found.get(path_of(file.decoded))
            if row is None:
                raise gone(self.stream, f"{file.decoded} is not there.")
            if row["changed"] != file.timestamp:
                raise gone(self.stream, f"{file.decoded} was changed since it was read.")
        return [found[path_of(file.decoded)]["length"] for file in files]


def whole_files(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Files as a batch of `path`, `modificationTime`, `length` and `content`; names of folders are no columns.

    Raises:
        AnalysisException: a file does not exist.
    """
    reader = spark.read.format("binaryFile").options(__globPaths__="false", recursiveFileLookup="true")
    return reader.load([*paths])


def list_in_driver(spark: SparkSession, sources: Iterable[Source | None]) -> None:
    """Let Spark look at files without a job, if those of all sources are local and the user has set no other limit.

    Spark looks at more than 32 files of a batch with a job, and at as many folders of partitions each time that it
    lists them. That pays off where each look is a request over the network.
    """
    if spark.conf.get(_JOB_ABOVE) not in (_BY_DEFAULT, _NEVER):
        return
    paths = [source.option("path") or "" for source in sources if source and source_kind(source.format).files]
    java: Any = spark.sparkContext._jsc
    default = scheme_of(str(java.hadoopConfiguration().get("fs.defaultFS")))  # of paths without a scheme
    are_local = all((scheme_of(path) or default) == "file" for path in paths)
    spark.conf.set(_JOB_ABOVE, _NEVER if are_local else _BY_DEFAULT)


def _files(folder: Path, epochs: Sequence[PastEpoch]) -> list[ListedFile]:
    if not epochs:
        return []
    after = batch_of(epochs[0].start)
    return listed_files(folder, after, batch_of(epochs[-1].end))


def _runs(files: Sequence[ListedFile]) -> Iterator[Sequence[ListedFile]]:
    for first in range(0, len(files), PORTION_FILES):
        yield files[first : first + PORTION_FILES]


def _bounded(files: Sequence[ListedFile], sizes: Sequence[int]) -> Iterator[tuple[Sequence[ListedFile], int]]:
    """Split files into runs of at most `PORTION_BYTES`, with their sizes; a larger file is a run of its own."""
    first, size = 0, 0
    for place, more in enumerate(sizes):
        if place > first and size + more > PORTION_BYTES:
            yield files[first:place], size
            first, size = place, 0
        size += more
    yield files[first:], size
