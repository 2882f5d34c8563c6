"""Compiling: what Spark makes of a pond file, or of a pond's DataFrames, written down for use without Spark."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from millpond.control.inputs import is_missing
from millpond.errors import CorruptError, PlaceError
from millpond.log.local import LocalFolder
from millpond.model.compiled import Compiled, digest, from_json, to_json
from millpond.model.endpoints import Source
from millpond.model.query import Query
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.spark.frontend import FrontEnd
from millpond.spark.session import Session
from millpond.version import VERSION


def compile_text(spark: Session, text: str) -> Compiled:
    """The streams and queries of a pond file after Spark's analysis; nothing is read, so folders may be missing.

    Raises:
        QueryError: a statement is wrong; the message names its line.
    """
    sources: dict[str, Source | None] = {}

    def opened(stream: Stream) -> Stream:
        if not is_missing(stream):
            return stream
        sources[stream.name] = stream.source
        return _with_path(stream, _empty_folder())

    front = FrontEnd(spark)
    queries = front.load_file(text, opened)
    streams = [
        msgspec.structs.replace(stream, source=sources.get(stream.name, stream.source))
        for stream in front.streams.values()
    ]
    return msgspec.structs.replace(compiled_of(streams, queries), sql=digest(text))


def compiled_of(streams: Iterable[Stream], queries: Iterable[Query]) -> Compiled:
    """What was analysed already, without a text that it could be compared with."""
    spec = PondSpec(tuple(streams), tuple(sorted(queries, key=lambda query: query.name)), 1)
    return Compiled(sql="", millpond=VERSION, spec=spec)


def write_compiled(path: Path, compiled: Compiled) -> None:
    """Put a compiled file in its place in one step, over an older one.

    Raises:
        PlaceError: something else is there, or it cannot be written.
    """
    folder = LocalFolder(path.parent)
    there = folder.read(path.name)
    if there:
        try:
            from_json(there)
        except CorruptError as error:
            raise PlaceError(f"{path} holds something else than a compiled file.", "Name another file.") from error
    folder.replace(path.name, to_json(compiled).encode())


def _with_path(stream: Stream, path: Path) -> Stream:
    assert stream.source is not None
    options = ((name, str(path) if name.lower() == "path" else value) for name, value in stream.source.options)
    return msgspec.structs.replace(stream, source=Source(stream.source.format, tuple(options)))


def _empty_folder() -> Path:
    """Stands for folders that are not on this machine: Spark only wants to see that they are there."""
    path = Path(tempfile.gettempdir()) / f"millpond-nothing-{os.getuid()}"
    path.mkdir(exist_ok=True)
    return path
