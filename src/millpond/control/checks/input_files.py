"""Checks the input before the first epoch: that there is any, and that the newest files have the declared columns.

An empty folder is often the wrong one. How files of a format are inspected is in `spark.reading.file_schemas`.
"""

from __future__ import annotations

import fnmatch
import glob
import heapq
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from millpond.errors import EmptyInputError, LateSchemaError
from millpond.local_path import local_path, scheme_of
from millpond.model.endpoints import Source, source_kind
from millpond.model.stream import Stream
from millpond.plugins import imported
from millpond.spark.reading.columns_of_sources import ReadColumns
from millpond.spark.reading.file_schemas import Look

_HIDDEN = ("_", ".")


def empty_inputs(streams: Iterable[Stream]) -> list[EmptyInputError]:
    """A note for each stream whose local folder holds no file that Spark would read."""
    notes = []
    for stream in streams:
        path = _local(options_of(stream).get("path", ""))
        if path and next(files_of(stream), None) is None:
            notes.append(
                EmptyInputError(
                    f"The stream {stream.name} has nothing to read: {path} holds no file.",
                    "Check its path, or put files there.",
                )
            )
    return notes


def is_missing(source: Source) -> bool:
    """Whether the source is a local path that does not exist."""
    path = _local(_options(source).get("path", ""))
    return bool(path) and not glob.glob(path)


def options_of(stream: Stream) -> dict[str, str]:
    """The options of a stream's source, by lower-case name."""
    return {} if stream.source is None else _options(stream.source)


def _options(source: Source) -> dict[str, str]:
    return {name.lower(): value for name, value in source.options}


def files_of(stream: Stream) -> Iterator[Path]:
    """The files of a stream's local folder that Spark would read, in no order; none if it is not local."""
    path = _local(options_of(stream).get("path", ""))
    for found in glob.iglob(path) if path else ():
        if os.path.isfile(found):
            yield Path(found)
        for parent, folders, names in os.walk(found):
            folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
            yield from (Path(parent, name) for name in names if not name.startswith(_HIDDEN))


def _local(path: str) -> str:
    """The path on this machine; "" if it is not local."""
    scheme = scheme_of(path)
    return path if scheme is None else str(local_path(path, "The stream's path")) if scheme == "file" else ""


FILES = 20
"""The most files of a stream that are inspected, the newest first."""

LISTED = 10_000
"""The most files among which the newest are searched; any further files are ignored."""


def check_files(readings: Iterable[ReadColumns]) -> list[LateSchemaError]:
    """Inspect the newest files of each stream; returns notes on columns that Spark would read as NULL.

    Raises:
        LateSchemaError: a file has a column in a type that Spark cannot read as the declared one, has no event time,
            or has a header with the declared columns in another order.
        SetupError: the package of a source cannot be imported.
    """
    notes: list[LateSchemaError] = []
    for reading in readings:
        source = reading.stream.source
        kind = None if source is None else source_kind(source.format)
        if kind is not None and kind.look is not None:
            look: Look = imported(f"the source {kind.name}", kind.look, kind.extra)
            for path in _newest(reading.stream):
                notes.extend(look(reading, path, options_of(reading.stream)))
    return notes


def _newest(stream: Stream) -> list[Path]:
    pattern = options_of(stream).get("pathglobfilter", "*")
    found = [path for path in itertools.islice(files_of(stream), LISTED) if fnmatch.fnmatch(path.name, pattern)]
    return heapq.nlargest(FILES, found, key=_written)


def _written(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
