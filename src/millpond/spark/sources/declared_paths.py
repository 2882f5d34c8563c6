"""Resolves relative paths against the current folder of this process at the moment a stream is declared.

Streams and queries keep their paths as they were written, because a pond is compared by them when it is opened again.
Paths are made absolute only for reading and writing. Spark would resolve relative ones against the working folder of
its file system. Unless it is set, this is the folder in which the JVM was started, whatever the current folder is
later.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from millpond.errors import QueryTypeError
from millpond.followers.sinks.kinds import sink_path
from millpond.local_path import scheme_of
from millpond.model.endpoints import Sink, Source, source_kind
from millpond.model.stream import Stream
from millpond.spark.catalyst.private_names import JavaObject, kind_of, nodes_of, once, pairs

WRITTEN, HOME, DECLARED = "millpond.written", "millpond.home", "millpond.stream"
"""Reader options that store the relative path as written, its base folder, and the name of the declared stream.

Spark's sources do not use them.
"""

STREAMS = ("StreamingRelation", "StreamingRelationV2")
"""Kinds of plan nodes that read streams."""

_ROWS = "/millpond/rows/"


def located(stream: Stream, home: str | os.PathLike[str]) -> Stream:
    """The stream with relative paths of its source made absolute.

    A relative path of files gets the scheme `file:`, because Spark looks for a path without a scheme in the default
    file system of Hadoop, which is not local where Spark runs on YARN.
    """
    source = stream.source
    if source is None:
        return stream
    return msgspec.structs.replace(stream, source=Source(source.format, tuple(located_options(source, home).items())))


def located_options(source: Source, home: str | os.PathLike[str]) -> dict[str, str]:
    """The options of a stream or table with relative paths made absolute; see `located`."""
    kind = source_kind(source.format)
    scheme = "file:" if kind.files else ""

    def placed(name: str, value: str) -> str:
        absolute = at(value, home) if name.lower() in kind.paths else value
        return absolute if absolute == value else f"{scheme}{absolute}"

    return {name: placed(name, value) for name, value in source.options}


def at(path: str, home: str | os.PathLike[str]) -> str:
    """A path made absolute unless it has a scheme; it is not normalised otherwise, because it may be a pattern."""
    return path if not path or scheme_of(path) is not None else os.path.join(home, path)


def notes(stream: Stream, home: str | os.PathLike[str]) -> dict[str, str]:
    """Options that store the name of a stream in its frame, and its relative path, if it has one."""
    path = _path(dict(stream.source.options) if stream.source else {})
    relative = {} if at(path, home) == path else {WRITTEN: path, HOME: os.fspath(home)}
    return {DECLARED: stream.name, **relative}


def as_written(options: dict[str, str]) -> dict[str, str]:
    """The options of a reader with the path as it was written, and without the options of `notes`."""
    written = options.get(WRITTEN)
    kept = {name: value for name, value in options.items() if name not in (WRITTEN, HOME, DECLARED)}
    return kept if written is None else {name: written if name.lower() == "path" else kept[name] for name in kept}


def rows_path(query: str) -> str:
    """The path from which Spark would read the rows of a query.

    It is a pattern that matches nothing, because Spark requires that a folder exists, but not that a pattern matches.
    """
    return f"{_ROWS}{query}/*"


def reads_rows(leaf: JavaObject) -> bool:
    """Whether a plan node stands for the rows of a query."""
    if kind_of(leaf) not in STREAMS:
        return False
    return once(leaf, "reads_rows", lambda node: reader_of(node)[1].get("path", "").startswith(_ROWS))


def reader_of(leaf: JavaObject) -> tuple[str, dict[str, str]]:
    """Format and options of the reader that made a streaming relation."""
    if kind_of(leaf) == "StreamingRelation":
        source = leaf.dataSource()
        return str(source.className()), dict(pairs(source.options()))
    given = leaf.extraOptions()
    return str(leaf.sourceName()), {str(key): str(given.get(key)) for key in given.keySet()}


def check_sink(what: str, sink: Sink | None) -> None:
    """Refuse a sink folder that the sink cannot write; `what` names the sink in the message.

    Raises:
        PlaceError: the scheme of the folder's address is not supported.
    """
    if sink is not None and sink.path is not None:
        sink_path(sink, what)


def check_folder(spark: SparkSession, name: str, plan: JavaObject) -> None:
    """Refuse a frame whose relative path means another folder to Spark than to this process.

    Raises:
        QueryTypeError: the analysed plan has such a path.
    """
    home = os.getcwd()
    for leaf in (node for node in nodes_of(plan) if kind_of(node) in STREAMS):
        options = reader_of(leaf)[1]
        path = options.get(WRITTEN, _path(options))
        if at(path, home) == path:
            continue
        folder = options.get(HOME)
        if folder is None:
            folder = _working_folder(spark)
        if Path(folder).resolve() != Path(home).resolve():
            raise QueryTypeError(
                f"The frame of {name} reads the relative path {path}, which Spark looks for in {folder}; the current "
                f"folder is {home}.",
                f"Write the absolute path: {os.path.join(home, path)} or {os.path.join(folder, path)}.",
            )


def _working_folder(spark: SparkSession) -> str:
    """The folder from which Spark resolves relative paths of the local file system."""
    files = spark._jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark._jsc.hadoopConfiguration())  # type: ignore[union-attr]
    return str(files.getWorkingDirectory().toUri().getPath())


def _path(options: dict[str, str]) -> str:
    return next((value for name, value in options.items() if name.lower() == "path"), "")
