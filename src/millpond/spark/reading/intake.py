"""Computes the backlog of sources, and finds new files that have vanished or are dated ahead.

The driver reports each batch that Spark has planned. The backlog is computed on demand from the planned offsets, from
the newest offsets in Spark's progress and from the offsets of the log, so it costs an epoch nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from millpond.clock import Clock, now_us
from millpond.errors import CorruptError
from millpond.log.protocol import TICK
from millpond.log.records import Offsets, SourceUpdate
from millpond.spark.catalyst.private_names import items
from millpond.spark.reading.source_progress import Ranges, batch_of, first_offsets, has_list
from millpond.spark.reading.source_updates import local_paths

AGE_SECONDS = 7 * 24 * 3600.0
"""Spark's `maxFileAge`: a file that is older than the newest one by more than this is never read."""


class PartitionBehind(NamedTuple):
    """The offsets of a partition of a topic: `committed` is the next one to read, `end` follows the newest record."""

    topic: str
    partition: str
    committed: int
    end: int


class Behind(NamedTuple):
    """The backlog of a stream's source: the number of uncommitted records or files (`unit`) that are `waiting`.

    `waiting` is None if it is unknown because this process has not planned a batch yet. For files, only those of the
    current batch are known. `partitions`: of a topic.
    """

    stream: str
    unit: str
    waiting: int | None
    partitions: tuple[PartitionBehind, ...] = ()


class Intake:
    """What Spark has planned to read since a driver began; each driver creates its own."""

    def __init__(self, clock: Clock = now_us) -> None:
        self._clock = clock
        self._planned: Offsets = {}
        self._first: dict[str, Ranges] = {}
        self._files: dict[str, tuple[str, int]] = {}
        self._missing: dict[str, tuple[str, ...]] = {}
        self._ahead: dict[str, tuple[str, ...]] = {}

    def note_batch(
        self, checkpoint: Path, start: Offsets, end: Offsets, updates: Mapping[str, SourceUpdate]
    ) -> None:  # fmt: skip
        """Record a batch of Spark before it is read, and which of its local files are missing or dated ahead.

        `updates`: what the batch's record says about its sources. Spark silently skips a file that was deleted after it
        was listed, and a file that is much older than the newest file that it has read.
        """
        self._planned, self._files, self._missing, self._ahead = dict(end), {}, {}, {}
        latest = self._clock() / 1e6 + AGE_SECONDS
        for stream, offset in end.items():
            if _ranges(offset) and stream not in start:
                with suppress(CorruptError):
                    self._first[stream] = first_offsets(checkpoint / "sources" / stream)
            if not has_list(offset) or start.get(stream) == offset:
                continue
            files = updates[stream].files if stream in updates else None
            paths = local_paths(files, batch_of(start.get(stream, "")))
            self._files[stream] = offset, len(paths)
            dates = {path: _date_of(path) for path in paths}
            if gone := tuple(path for path, date in dates.items() if date is None):
                self._missing[stream] = gone
            if ahead := tuple(path for path, date in dates.items() if date is not None and date > latest):
                self._ahead[stream] = ahead

    def take_missing(self) -> dict[str, tuple[str, ...]]:
        """By stream, the files of the planned batch that were deleted before they were read; each is returned once."""
        missing, self._missing = self._missing, {}
        return missing

    def take_dated_ahead(self) -> dict[str, tuple[str, ...]]:
        """By stream, the files of the planned batch that are dated more than `AGE_SECONDS` ahead; each once."""
        ahead, self._ahead = self._ahead, {}
        return ahead

    def behind(self, streams: Iterable[str], committed: Offsets, query: StreamingQuery | None) -> list[Behind]:
        """The backlog of each stream that has a source, given the offsets of the log."""
        newest: dict[str, dict[str, int]] = {}
        for text in (*_reported(query), *self._planned.values()):
            for topic, partitions in _ranges(text).items():
                mine = newest.setdefault(topic, {})
                for partition, offset in partitions.items():
                    mine[partition] = max(offset, mine.get(partition, offset))
        return [self._behind(stream, committed.get(stream, ""), newest) for stream in streams if stream != TICK]

    def _behind(self, stream: str, committed: str, newest: Mapping[str, Mapping[str, int]]) -> Behind:
        planned = self._planned.get(stream)
        if planned is None:
            return Behind(stream, "records", None)
        if has_list(planned):
            offset, files = self._files.get(stream, (committed, 0))
            return Behind(stream, "files", 0 if committed == offset else files)
        read = _ranges(committed) or self._first.get(stream, {})
        partitions = tuple(
            PartitionBehind(topic, partition, done := read.get(topic, {}).get(partition, 0), max(done, end))
            for topic in _ranges(planned) for partition, end in newest.get(topic, {}).items()
        )  # fmt: skip
        return Behind(stream, "records", sum(one.end - one.committed for one in partitions), partitions)


def _date_of(path: str) -> float | None:
    """The modification time of a file, in seconds since 1970; None if it does not exist."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _reported(query: StreamingQuery | None) -> Sequence[str]:
    """The newest offsets of a query's sources.

    They are read from Spark's progress for the last batch, and from the sources themselves for the current batch,
    because a limit may allow a batch to read only a part.
    """
    java: Any = getattr(query, "_jsq", None)
    offsets: list[str] = []
    if java is None:
        return offsets
    try:
        progress = java.lastProgress()
        offsets += [] if progress is None else [str(source.latestOffset()) for source in progress.sources()]
        sources = java.streamingQuery().sources()
        for source in () if sources is None else items(sources):
            with suppress(Py4JError):  # not every source reports it
                latest = source.reportLatestOffset()
                offsets += [] if latest is None else [str(latest.json())]
    except (Py4JError, OSError):
        pass  # the JVM is ending, so the values known until now are used
    return offsets


def _ranges(offsets: str) -> dict[str, dict[str, int]]:
    """Kafka's offsets from Spark's JSON; empty for any other source.

    >>> _ranges('{"tx":{"0":7}}'), _ranges('{"logOffset":3}'), _ranges("5"), _ranges("null"), _ranges("")
    ({'tx': {'0': 7}}, {}, {}, {}, {})
    """
    try:
        found = json.loads(offsets or "{}")
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {topic: partitions for topic, partitions in found.items() if isinstance(partitions, dict)}
