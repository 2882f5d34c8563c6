"""What is in force, as the log says: read by leader and standbys alike, in any thread, beside whoever writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from millpond.control.reader import read_truth
from millpond.control.wiring import IDENTITY, Truth
from millpond.errors import ForeignPondError
from millpond.log.manifest import Manifest, fold_all, load
from millpond.log.records import Entry, decode
from millpond.model.endpoints import Sink
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.reconfigure.catalog import history, in_force, seen
from millpond.reconfigure.changes import Add, Alter, Change, SetParameter, Shadow
from millpond.reconfigure.lifecycle import current
from millpond.runtime.epoch import watermarks
from millpond.service.wire import ColumnShown, Event, Parameter, QueryShown, StreamShown

_FAR = 256
"""So many records behind, a saved manifest is nearer."""

Counts = Callable[[str], dict[str, int]]


class Catalog:
    """The streams, queries, parameters and changes of the pond in a folder; empty while there is none.

    Raises:
        CorruptError, PlaceError: the log does not read; from every method.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._truth: Truth | None = None
        self._spec: tuple[str, int, PondSpec] | None = None

    def now(self) -> tuple[Truth, PondSpec] | None:
        """The log and its manifest as of its newest record, and what is in force then; None: no pond was run."""
        with self._lock:
            if self._truth is None:
                if not (self._folder / IDENTITY).is_file():
                    return None
                try:
                    self._truth, _ = read_truth(self._folder)
                except ForeignPondError:  # it is just being made
                    return None
            truth = self._truth = self._truth._replace(manifest=self._newest(self._truth))
            manifest = truth.manifest
            key = (manifest.spec, len(manifest.changes))
            if self._spec is None or self._spec[:2] != key:
                self._spec = (*key, in_force(manifest))
            return truth, self._spec[2]

    def _newest(self, truth: Truth) -> Manifest:
        head = truth.log.last(truth.manifest.n)
        if head is not None and head - truth.manifest.n > _FAR:
            return load(truth.log, truth.manifests)
        return fold_all(truth.manifest, _after(truth))

    def streams(self) -> list[StreamShown]:
        """The streams that queries in force read."""
        found = self.now()
        if found is None:
            return []
        truth, spec = found
        marks = watermarks(truth.manifest)
        newest = {name: mark.max_time_us for name, mark in marks.items()}
        return [_stream(stream, newest.get(stream.name)) for stream in seen(spec).streams]

    def queries(self, counts: Counts) -> list[QueryShown]:
        """The queries in force by name; `counts` tells what each has told."""
        found = self.now()
        if found is None:
            return []
        truth, spec = found
        queries = sorted(current(spec), key=lambda query: query.name)
        return [_query(spec, truth.manifest, query, counts(query.name)) for query in queries]

    def parameters(self) -> list[Parameter]:
        """The live parameters in force by name."""
        found = self.now()
        known = {} if found is None else found[1].left.parameters
        return [Parameter(name, _plain(known[name].value), known[name].type) for name in sorted(known)]

    def history(self, limit: int) -> list[Event]:
        """The newest changes of queries, the newest first."""
        found = self.now()
        if found is None:
            return []
        truth, _ = found
        return [_event(one.n, one.at_us, one.change) for one in islice(history(truth.log, truth.manifest), limit)]


def _after(truth: Truth) -> Iterator[Entry]:
    n = truth.manifest.n + 1
    while (data := truth.log.read(n)) is not None:
        yield decode(data)
        n += 1


def _stream(stream: Stream, newest_us: int | None) -> StreamShown:
    source = stream.source.format if stream.source is not None else "derived"
    source = source if stream.upstream is None else f"rows of {stream.upstream}"
    return StreamShown(
        stream.name, source, tuple(ColumnShown(field.name, field.type) for field in stream.columns), newest_us
    )


def _query(spec: PondSpec, manifest: Manifest, query: AnyQuery, counts: dict[str, int]) -> QueryShown:
    name, left = query.name, spec.left
    state = "paused" if name in left.paused else "shadowed" if name in left.shadows else "running"
    reason = manifest.quarantined.get(name)
    return QueryShown(
        name, "join" if isinstance(query, Join) else "windowed" if isinstance(query, Query) else "stateless",
        state if reason is None else "quarantined", left.versions.get(name, 1), query.text, query.streams,
        tuple(ColumnShown(item.name, item.expression.type) for item in query.output), _sink(query.sink), query.serve,
        spec.since.get(name), reason, counts,
    )  # fmt: skip


def _sink(sink: Sink) -> str:
    return sink.format if sink.path is None else f"{sink.format}:{sink.path}"


def _event(n: int, at_us: int, change: Change) -> Event:
    kind = str(type(change).__struct_config__.tag)
    if isinstance(change, SetParameter):
        return Event(n, at_us, kind, change.name, change.who, value=_plain(change.value.value))
    if isinstance(change, Add | Alter | Shadow):
        since = None if isinstance(change.since_us, msgspec.UnsetType) else change.since_us
        return Event(n, at_us, kind, change.name, change.who, change.asked.query.text, complete_from_us=since)
    return Event(n, at_us, kind, change.name, change.who)


def _plain(value: object) -> bool | int | float | str | None:
    return value if isinstance(value, bool | int | float | str | None) else str(value)


