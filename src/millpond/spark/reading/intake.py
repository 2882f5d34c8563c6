"""Tracks what the sources hold that is not committed yet: records of Kafka, files of folders; and files that vanish.

The driver reports each batch that Spark has planned. How much is behind is computed on demand from the planned offsets,
from the newest offsets in Spark's progress and from the offsets of the log, so an epoch pays for nothing of it.
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

from millpond.errors import CorruptError
from millpond.log.protocol import TICK
from millpond.log.records import Offsets
from millpond.spark.catalyst.private_names import items
from millpond.spark.reading.source_progress import COMPACT, Ranges, batch_of, first_offsets, listed_in

_FILES = '{"logOffset"'
"""So begins the offset of a folder of files."""

_LOCAL = "file://"


class Behind(NamedTuple):
    """How far the pond is behind the source of a stream: so many of `unit` are `waiting`, not committed yet.

    `waiting` None: not known, for no batch has been planned since this process began. Of files only those of the batch
    at hand are known.
    """

    stream: str
    unit: str
    waiting: int | None


class Intake:
    """What Spark has planned to read; made anew with each driver."""

    def __init__(self) -> None:
        self._planned: Offsets = {}
        self._first: dict[str, Ranges] = {}
        self._files: dict[str, tuple[str, int]] = {}
        self._missing: dict[str, tuple[str, ...]] = {}

    def planned(self, checkpoint: Path, start: Offsets, end: Offsets) -> None:
        """Take note of a batch before it is read, and of its local files that are gone by now.

        Spark skips a file that was deleted after it was listed, and does not say so.
        """
        self._planned, self._files, self._missing = dict(end), {}, {}
        for stream, offset in end.items():
            if _ranges(offset) and stream not in start:
                with suppress(CorruptError):
                    self._first[stream] = first_offsets(checkpoint / "sources" / stream)
            if not offset.startswith(_FILES) or start.get(stream) == offset:
                continue
            paths = list(_files_of(checkpoint / "sources" / stream, start.get(stream, ""), offset))
            self._files[stream] = offset, len(paths)
            gone = tuple(path for path in paths if not os.path.exists(path))
            if gone:
                self._missing[stream] = gone

    def missing(self) -> dict[str, tuple[str, ...]]:
        """By stream: files of the planned batch that were gone before they were read; reported once."""
        missing, self._missing = self._missing, {}
        return missing

    def behind(self, streams: Iterable[str], committed: Offsets, query: StreamingQuery | None) -> list[Behind]:
        """How far each of the streams that have a source is behind, given the offsets of the log."""
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
        if planned.startswith(_FILES):
            offset, files = self._files.get(stream, (committed, 0))
            return Behind(stream, "files", 0 if committed == offset else files)
        read = _ranges(committed) or self._first.get(stream, {})
        waiting = 0
        for topic in _ranges(planned):
            for partition, last in newest.get(topic, {}).items():
                waiting += max(0, last - read.get(topic, {}).get(partition, 0))
        return Behind(stream, "records", waiting)


def _files_of(folder: Path, start: str, end: str) -> Iterable[str]:
    """The local files of the batches of a file source between two of its offsets."""
    for number in range(batch_of(start) + 1, batch_of(end) + 1):
        for name in (str(number), f"{number}{COMPACT}"):
            with suppress(FileNotFoundError):
                for path in listed_in(folder / name, number):
                    if path.startswith(_LOCAL):
                        yield path.removeprefix(_LOCAL)
                break


def _reported(query: StreamingQuery | None) -> Sequence[str]:
    """The newest offsets of the sources of a query: of its last batch from Spark's progress, and of the batch at hand
    from the sources themselves, since a limit may let it read a part only.
    """
    java: Any = getattr(query, "_jsq", None)
    found: list[str] = []
    if java is None:
        return found
    try:
        told = java.lastProgress()
        found += [] if told is None else [str(source.latestOffset()) for source in told.sources()]
        sources = java.streamingQuery().sources()
        for source in () if sources is None else items(sources):
            with suppress(Py4JError):  # not every source reports it
                latest = source.reportLatestOffset()
                found += [] if latest is None else [str(latest.json())]
    except (Py4JError, OSError):
        pass  # the JVM is ending: what is known by then is used
    return found


def _ranges(offsets: str) -> dict[str, dict[str, int]]:
    """Kafka's offsets in Spark's JSON; of any other source nothing.

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
