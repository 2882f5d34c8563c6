"""Accepts events over HTTP for a stream of JSON files: each request becomes one file, which the stream reads once.

The file is durable before the request is answered. Its name is a digest of the request's key, and it is created only if
the name is free, so a repeated request adds nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence

import msgspec

from millpond.errors import ChangeRefused, CorruptError, RequestError
from millpond.log.locations.address import address_of
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.service.api.messages import PushDone
from millpond.spark.sources.declared_paths import at

_DIGITS = 40
_OTHER_FILES = frozenset({"multiline", "linesep", "encoding", "charset", "pathglobfilter"})
_PATTERN = frozenset("*?[]{}")


def push(spec: PondSpec, name: str, key: str, events: Sequence[Mapping[str, msgspec.Raw]]) -> PushDone:
    """Write the events of a request to the folder of a stream.

    Raises:
        RequestError: the stream is unknown or does not read a folder of JSON files, or an event has an unknown column.
        ChangeRefused: the key was used for other events. PlaceError: the folder cannot be written.
    """
    stream = next((one for one in (*spec.sources, *spec.streams) if one.name == name), None)
    if stream is None:
        raise RequestError(f"There is no stream {name[:80]!r}.", "GET /v1/streams lists them.")
    _check_columns(stream, events)
    folder = address_of(at(_folder(stream), os.getcwd()), "The stream's folder").folder()
    file = f"pushed-{hashlib.sha256(key.encode()).hexdigest()[:_DIGITS]}.json"
    data = b"".join(map(_line, events))
    created = folder.create(file, data)
    if not created and (stored := folder.read(file)) != data:
        if stored is None:
            raise CorruptError(f"{file} was removed from {folder.where} just now.", "Push the events again.")
        raise ChangeRefused(f"The key {key!r} was used for other events.", "Use a new key for other events.")
    return PushDone(name, len(events), not created)


def _line(event: Mapping[str, msgspec.Raw]) -> bytes:
    """An event as a line of JSON; its values are written as they came, since a number may have more digits than fit."""
    members = ((msgspec.json.encode(name), msgspec.json.format(value, indent=-1)) for name, value in event.items())
    return b"{%s}\n" % b",".join(b"%s:%s" % member for member in members)


def _folder(stream: Stream) -> str:
    source = stream.source
    options = {} if source is None or source.format != "json" else dict(source.options)
    path = options.get("path")
    other = next((option for option in options if option.lower() in _OTHER_FILES), None)
    if other is not None:
        what = f"Events cannot be pushed into {stream.name}, which reads other files than lines of JSON: {other}."
        raise RequestError(what, "Leave the option out, or push into another stream.")
    if path is None or _PATTERN.intersection(path):
        what = f"Events can be pushed only into a stream that reads one folder of JSON files, unlike {stream.name}."
        raise RequestError(what, "Declare it with USING json and OPTIONS (path '…').")
    return path


def _check_columns(stream: Stream, events: Sequence[Mapping[str, msgspec.Raw]]) -> None:
    known = {field.name for field in stream.columns}  # Spark's JSON reader compares names with their case
    for event in events:
        unknown = next((column for column in event if column not in known), None)
        if unknown is not None:
            columns = ", ".join(field.name for field in stream.columns)
            raise RequestError(f"The stream {stream.name} has no column {unknown!r}.", f"Its columns are {columns}.")
