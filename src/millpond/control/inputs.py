"""Whether there is anything to read at all: said before the first epoch, for an empty folder is mostly a wrong one."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable

from millpond.errors import EmptyInputError
from millpond.model.endpoints import Source
from millpond.model.stream import Stream

_HIDDEN = ("_", ".")


def empty_inputs(streams: Iterable[Stream]) -> list[EmptyInputError]:
    """A note for each stream whose local folder holds no file that Spark would read."""
    notes = []
    for stream in streams:
        path = _path(stream.source)
        if path and not any(_holds_a_file(found) for found in glob.glob(path)):
            notes.append(
                EmptyInputError(
                    f"The stream {stream.name} has nothing to read: {path} holds no file.",
                    "Check its path, or put files there.",
                )
            )
    return notes


def is_missing(source: Source) -> bool:
    """Whether this is a local folder that is not there."""
    path = _path(source)
    return bool(path) and not glob.glob(path)


def _path(source: Source | None) -> str:
    """The local folder of a source; "" without one."""
    options = {} if source is None else {name.lower(): value for name, value in source.options}
    return _local(options.get("path", ""))


def _local(path: str) -> str:
    """The path on this machine; "" for one elsewhere."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", path)
    if scheme is None:
        return path
    return re.sub(r"^file:/+", "/", path) if scheme[1].lower() == "file" else ""


def _holds_a_file(path: str) -> bool:
    if os.path.isfile(path):
        return True
    for _, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        if any(not name.startswith(_HIDDEN) for name in names):
            return True
    return False
