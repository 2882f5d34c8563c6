"""Checks that the sources have anything to read before the first epoch; an empty folder is often the wrong one."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from millpond.errors import EmptyInputError
from millpond.local_path import local_path, scheme_of
from millpond.model.endpoints import Source
from millpond.model.stream import Stream

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
