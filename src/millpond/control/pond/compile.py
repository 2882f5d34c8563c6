"""Compiles a pond file or a pond's DataFrames to JSON that can be used without Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from millpond.control.checks.input_files import is_missing
from millpond.control.pond.function_file import load_functions
from millpond.control.wiring.latest_rows import own_tables
from millpond.errors import CorruptError, PlaceError, UnsupportedQuery
from millpond.local_path import local_path
from millpond.log.locations.local_folder import LocalFolder
from millpond.model.compiled_pond import Compiled, digest, from_json, to_json
from millpond.model.endpoints import Source
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec
from millpond.model.stream import Derivation, Stream
from millpond.plan.groups.build import build_plan, needed_foreign
from millpond.plan.upstream.rows_as_stream import stream_of_steps
from millpond.plan.upstream.steps import over, times_in, with_inner
from millpond.reconfigure.inner_reports import parameters_of_steps
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.session.session import Session, spark_session
from millpond.state.ports.private_folder import own_folder
from millpond.version import VERSION


def compile_text(spark: Session, text: str) -> Compiled:
    """The streams and queries of a pond file after Spark's analysis; nothing is read, so folders may be missing.

    Raises:
        QueryError: a statement is wrong; the message names its line.
    """
    stand_ins: dict[Source, Source] = {}

    def opened(source: Source) -> Source:
        if not is_missing(source):
            return source
        # numbered, so that two missing folders stay different
        found = _with_path(source, _empty_folder(len(stand_ins)))
        stand_ins[found] = source
        return found

    front = FrontEnd(spark, own_tables())
    load_functions(front)
    queries = front.load_file(text, opened)
    streams, steps = dict[str, Stream](), with_inner(queries, front.streams)
    for name, stream in front.streams.items():  # the rows of an inner query come after the streams that it reads
        time = next((time for query in steps for time in times_in(query, name)), "")
        streams[name] = _with_steps(stream, streams, time) if stream.steps else _as_declared(stream, stand_ins)
    queries = [_over(query, streams) for query in queries]
    return msgspec.structs.replace(compiled_of(streams.values(), queries), sql=digest(text))


def _over(query: AnyQuery, streams: Mapping[str, Stream]) -> AnyQuery:
    """The query with the names that its streams have in the compiled file."""
    return over(query, {name: streams[name].name for name in query.streams})


def _with_steps(stream: Stream, streams: Mapping[str, Stream], event_time: str) -> Stream:
    """The rows of inner queries over `streams`; where these have new names, the inner queries have new names, too."""
    steps = [_over(step, streams) for step in stream.steps]
    if tuple(steps) == stream.steps:
        return stream
    return stream_of_steps(steps, event_time)


def compiled_of(streams: Iterable[Stream], queries: Iterable[AnyQuery]) -> Compiled:
    """The compiled form of streams and queries that are analysed already; it contains no text to compare with.

    Raises:
        UnsupportedQuery: a query has live parameters, whose values a compiled file does not have.
    """
    queries, streams = tuple(queries), tuple(streams)
    for query in queries:
        if found := parameters_of_steps(query, {stream.name: stream for stream in streams}):
            raise UnsupportedQuery(
                f"{query.name} cannot be compiled: it names live parameters ({', '.join(sorted(found))}).",
                "Test it in a pond with Spark, or with the values themselves in its text.",
            )
    spec = PondSpec.of(streams, queries, 1)
    return Compiled(sql="", millpond=VERSION, spec=spec)


def write_compiled(path: Path, compiled: Compiled) -> None:
    """Write a compiled file atomically, replacing an older one.

    Raises:
        PlaceError: the existing file is something else, or the file cannot be written.
    """
    path = local_path(path, "The compiled file")
    folder = LocalFolder(path.parent)
    there = folder.read(path.name)
    if there:
        try:
            from_json(there)
        except CorruptError as error:
            raise PlaceError(f"{path} holds something else than a compiled file.", "Name another file.") from error
    folder.replace(path.name, to_json(compiled).encode())


def compile_to(path: Path, text: str, memory: str) -> Iterator[str]:
    """Analyse a pond file with Spark and write the compiled file; yields lines that report about it.

    Raises:
        QueryError: a statement is wrong. PlaceError: see `write_compiled`.
    """
    local_path(path, "The compiled file")
    compiled = compile_text(spark_session("local[1]", driver_memory=memory, mllib=False), text)
    write_compiled(path, compiled)
    yield f"{path} holds {', '.join(query.name for query in compiled.spec.all_queries)}."
    by_name = {stream.name: stream for stream in compiled.spec.streams}
    for query in compiled.spec.all_queries:
        plan = build_plan(with_inner([query], by_name))
        for foreign in (one for stream in plan.streams for one in needed_foreign(plan, stream)):
            yield f"Only Spark evaluates `{foreign.sql}` of {query.name}: a test must give its values."


def _as_declared(stream: Stream, stand_ins: Mapping[Source, Source]) -> Stream:
    """The stream without stand-ins for missing folders; a derived stream gets a name that is equal on all machines."""
    if stream.source is not None:
        return msgspec.structs.replace(stream, source=stand_ins.get(stream.source, stream.source))
    made = stream.derived
    if made is None or not stand_ins:
        return stream
    text = made.text
    for stand_in, source in stand_ins.items():
        text = text.replace(f"file:{stand_in.option('path')}", source.option("path") or "")
    shown = digest(msgspec.json.encode([text, stream.columns]).decode())
    made = Derivation(text, made.reads, shown[:16])
    return msgspec.structs.replace(stream, name=f"{'_'.join(made.reads)}_{shown[:8]}", made_of=made)


def _with_path(source: Source, path: Path) -> Source:
    options = ((name, str(path) if name.lower() == "path" else value) for name, value in source.options)
    return Source(source.format, tuple(options))


def _empty_folder(number: int) -> Path:
    """Create a stand-in for a folder that is not on this machine; Spark only checks that the folder exists."""
    path = own_folder(Path(tempfile.gettempdir())) / "nothing" / str(number)
    path.mkdir(parents=True, exist_ok=True)
    return path
