"""Accepts events over HTTP for a stream of JSON files: each request becomes one file, which the stream reads once.

The file is durable before the request is answered. Its name is a digest of the request's key, and it is created only if
the name is free, so a repeated request adds nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from millpond.errors import ChangeRefused, CorruptError, RequestError
from millpond.log.places.address import address_of
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.service.api.messages import PushDone
from millpond.spark.sources.declared_paths import at

_DIGITS = 40
_PATTERN = frozenset("*?[]{}")


def push(spec: PondSpec, name: str, key: str, events: Sequence[Mapping[str, Any]]) -> PushDone:
    """Write the events of a request to the folder of a stream.

    Raises:
        RequestError: the stream is unknown or does not read a folder of JSON files, or an event has an unknown column.
        ChangeRefused: the key was used for other events. PlaceError: the folder cannot be written.
    """
    stream = next((one for one in spec.streams if one.name == name), None)
    if stream is None:
        raise RequestError(f"There is no stream {name[:80]!r}.", "GET /v1/streams lists them.")
    _check_columns(stream, events)
    folder = address_of(at(_folder(stream), os.getcwd()), "The stream's folder").folder()
    file = f"pushed-{hashlib.sha256(key.encode()).hexdigest()[:_DIGITS]}.json"
    data = "".join(f"{json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n" for event in events).encode()
    created = folder.create(file, data)
    if not created and (stored := folder.read(file)) != data:
        if stored is None:
            raise CorruptError(f"{file} was removed from {folder.where} just now.", "Push the events again.")
        raise ChangeRefused(f"The key {key!r} was used for other events.", "Use a new key for other events.")
    return PushDone(name, len(events), not created)


def _folder(stream: Stream) -> str:
    source = stream.source
    path = None if source is None or source.format != "json" else dict(source.options).get("path")
    if path is None or _PATTERN.intersection(path):
        what = f"Events can be pushed only into a stream that reads one folder of JSON files, unlike {stream.name}."
        raise RequestError(what, "Declare it with USING json and OPTIONS (path '…').")
    return path


def _check_columns(stream: Stream, events: Sequence[Mapping[str, Any]]) -> None:
    known = {field.name.lower() for field in stream.columns}
    for event in events:
        unknown = next((column for column in event if column.lower() not in known), None)
        if unknown is not None:
            columns = ", ".join(field.name for field in stream.columns)
            raise RequestError(f"The stream {stream.name} has no column {unknown!r}.", f"Its columns are {columns}.")
