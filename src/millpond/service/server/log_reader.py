"""Reads the current state of a pond from its log, on leader and standby, in any thread, beside the writer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from millpond.control.wiring.pond_reader import read_truth
from millpond.control.wiring.truth import Truth, cache_truth, holds_pond
from millpond.errors import ForeignPondError
from millpond.log.locations.address import Given, address_of
from millpond.log.manifest import Manifest, fold_all, load
from millpond.log.records import Entry, decode
from millpond.model.change_json import Move, Resharded, Scale
from millpond.model.endpoints import Sink
from millpond.model.expressions import plain_of
from millpond.model.functions import UserFunction
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, query_name, zone_of
from millpond.model.spec import PondSpec
from millpond.model.stream import Retention, Stream
from millpond.plan.options.first_complete_window import first_window
from millpond.plan.upstream.parameter_feeds import feeds_of
from millpond.plan.upstream.steps import inner_of, inputs_of
from millpond.reconfigure.catalog import complete_from, history, in_force, visible
from millpond.reconfigure.changes import Add, Alter, Change, End, Feed, Halt, SetParameter, Shadow, kind_name
from millpond.reconfigure.hand_over import hand_over_text
from millpond.reconfigure.inner_reports import stream_labels, visible_quarantine
from millpond.reconfigure.lifecycle import HALTED, current, state_in
from millpond.runtime.epoch import closed_until, watermarks
from millpond.runtime.inputs.parameter_feeds import fed_values
from millpond.service.api.messages import (
    ColumnShown,
    Event,
    First,
    FunctionShown,
    Parameter,
    QueryShown,
    Retained,
    StreamShown,
)

_FAR = 256
"""From this many records behind on, loading a saved manifest is faster than reading the records."""

_MOST_CHANGES = 1000
"""The number of newest changes among which those that set parameters are searched."""

Counts = Callable[[str], dict[str, int]]


class LogReader:
    """The streams, queries, parameters and changes of the pond in a folder; empty while the folder has no pond.

    Raises:
        CorruptError, PlaceError: the log cannot be read; raised by every method.
    """

    def __init__(self, given: Given) -> None:
        self._address = address_of(given)
        self._lock = threading.Lock()
        self._truth: Truth | None = None
        self._spec: tuple[str, int, PondSpec] | None = None
        self._shown: tuple[PondSpec, list[QueryShown]] | None = None
        self._settings = _Settings()

    def now(self) -> tuple[Truth, PondSpec] | None:
        """The log with the manifest at its newest record, and the spec in force there; None: no pond was run."""
        with self._lock:
            if self._truth is None:
                if not holds_pond(self._address):
                    return None
                try:
                    self._truth, _ = read_truth(self._address)
                except ForeignPondError:  # the pond is just being created
                    return None
            truth = self._truth = cache_truth(self._truth._replace(manifest=self._newest(self._truth)))
            manifest = truth.manifest
            key = (manifest.spec, len(manifest.changes))
            if self._spec is None or self._spec[:2] != key:
                self._spec = (*key, in_force(manifest))
            return truth, self._spec[2]

    def frozen(self) -> LogReader:
        """A reader whose methods all return the state as of now."""
        return _FrozenReader(self._address, self.now(), self._settings)

    def _newest(self, truth: Truth) -> Manifest:
        head = truth.log.last(truth.manifest.n)
        if head is not None and head - truth.manifest.n > _FAR:
            return load(truth.log, truth.manifests)
        return fold_all(truth.manifest, _after(truth))

    def streams(self) -> list[StreamShown]:
        """The streams that the queries in force read."""
        found = self.now()
        if found is None:
            return []
        truth, spec = found
        marks = watermarks(truth.manifest)
        newest = {name: mark.max_time_us for name, mark in marks.items()}
        return [_stream(one, label, newest.get(one.name)) for one, label in labelled_streams(spec)]

    def queries(self, counts: Counts) -> list[QueryShown]:
        """The queries in force by name; `counts` returns the counts of each."""
        found = self.now()
        if found is None:
            return []
        truth, spec = found
        reasons = visible_quarantine(truth.manifest.quarantined, spec) | spec.effects.halted
        return [
            msgspec.structs.replace(one, counts=counts(one.name)) if (reason := reasons.get(one.name)) is None
            else msgspec.structs.replace(one, counts=counts(one.name), state=HALTED, reason=reason)
            for one in self._shown_of(spec)
        ]  # fmt: skip

    def _shown_of(self, spec: PondSpec) -> list[QueryShown]:
        """What only a change of queries changes; it is kept, as a thousand queries take half of the time of a scrape.
        """
        shown = self._shown
        if shown is None or shown[0] is not spec:
            queries = sorted(current(spec), key=lambda query: query.name)
            streams = {stream.name: stream for stream in spec.streams}
            shown = self._shown = spec, [_query(spec, _inputs(query, streams), query) for query in queries]
        return shown[1]

    def parameters(self, *, with_records: bool = True) -> list[Parameter]:
        """The live parameters in force by name; `with_records`: with the newest change that set each one.

        These changes are searched in the log, so this takes long if there are many.
        """
        found = self.now()
        if found is None:
            return []
        truth, spec = found
        effects = spec.effects
        feeds = {fed.name: fed for fed in feeds_of(effects.feeds, effects.parameters, spec.all_queries)}
        given, records = fed_values(feeds.values(), truth.manifest), truth.manifest.fed
        set_by, shown = self._settings.records(truth, effects.parameters) if with_records else {}, []
        for name in sorted(effects.parameters):
            constant, fed = given.get(name, effects.parameters[name]), feeds.get(name)
            source = None if fed is None else f"{fed.query}.{fed.column}"
            record = set_by.get(name)
            if name in given and not isinstance(records, msgspec.UnsetType):
                record = records[name].n
            shown.append(Parameter(name, plain_of(constant), constant.type, source, record))
        return shown

    def first_window(self, name: str, complete_from_us: int | None, backfilled: bool = False) -> First | None:
        """The first complete window that a query in force, or its shadow, emits; None: see `messages.First`.

        `backfilled`: the query also emits windows that were closed when it was added.
        """
        found = self.now()
        if found is None:
            return None
        names = (found[1].effects.shadows.get(name, name), name)
        query = next((query for one in names for query in found[1].all_queries if query.name == one), None)
        if query is None:
            return None
        closed = None if backfilled else closed_until(query, found[0].manifest)
        first = first_window(query, complete_from_us, closed, found[1].streams)
        return None if first is None else First(*first)

    def functions(self, newest: Iterable[UserFunction]) -> list[FunctionShown]:
        """The `newest` version of each function, and the versions that queries in force call, by name and version."""
        callers: dict[UserFunction, set[str]] = {one: set() for one in newest}
        known, found = set(callers), self.now()
        streams = {stream.name: stream for stream in found[1].streams} if found is not None else {}
        for query in found[1].all_queries if found is not None else ():
            steps = (step for step in (*inner_of(query, streams), query) if isinstance(step, Query))
            for called in (called for step in steps for called in step.user_functions.values()):
                callers.setdefault(called, set()).add(query_name(query.name))
        return [
            FunctionShown(
                one.name, one.version, one.module, one.kind, one.takes, one.returns, one.digest, one in known,
                tuple(sorted(names)),
            ) for one, names in sorted(callers.items(), key=lambda item: item[0].label)
        ]  # fmt: skip

    def history(self, limit: int) -> list[Event]:
        """The newest changes of queries, the newest first."""
        found = self.now()
        if found is None:
            return []
        truth, _ = found
        return [_event(one.n, one.at_us, one.change) for one in islice(history(truth.log, truth.manifest), limit)]


class _Settings:
    """The newest change that set each live parameter; each change of the history is read once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, int] = {}
        self._newest = -1

    def records(self, truth: Truth, names: Iterable[str]) -> dict[str, int]:
        """The records of these changes, by the name of the parameter; they are read until each name is found."""
        missing = set(names)
        if not missing:
            return {}
        with self._lock:
            newest, found, earlier = self._newest, dict[str, int](), dict[str, int]()
            for one in islice(history(truth.log, truth.manifest), _MOST_CHANGES):
                if one.n <= newest:
                    earlier = self._found
                    break
                self._newest = max(self._newest, one.n)
                if isinstance(one.change, SetParameter):
                    found.setdefault(one.change.name, one.n)
                    missing.discard(one.change.name)
                    if not missing:
                        break
            # If changes were left out, an earlier record need not be the newest one that set its parameter.
            self._found = earlier | found
            return dict(self._found)


class _FrozenReader(LogReader):
    """A reader of one state of the log."""

    def __init__(self, given: Given, found: tuple[Truth, PondSpec] | None, settings: _Settings) -> None:
        super().__init__(given)
        self._found, self._settings = found, settings

    def now(self) -> tuple[Truth, PondSpec] | None:
        return self._found


def _after(truth: Truth) -> Iterator[Entry]:
    n = truth.manifest.n + 1
    while (data := truth.log.read(n)) is not None:
        yield decode(data, truth.log.describe(n))
        n += 1


def labelled_streams(spec: PondSpec) -> list[tuple[Stream, str]]:
    """The streams that the queries in force read, without rows of inner queries, and what users call them."""
    streams = [stream for stream in visible(spec).streams if not stream.steps]
    names = stream_labels(streams, spec.relations)
    return [(stream, names.get(stream.name, stream.name)) for stream in streams]


def _stream(stream: Stream, label: str, newest_us: int | None) -> StreamShown:
    derived = f"derived from {' and '.join(stream.declared_names)}"
    source = stream.source.format if stream.source is not None else derived
    source = f"rows of {stream.upstreams[0]}" if stream.upstreams else source
    kept = stream.retention
    retain = Retained(*msgspec.structs.astuple(kept)) if kept != Retention() else None
    columns = tuple(ColumnShown(field.name, field.type) for field in stream.columns)
    return StreamShown(label, source, columns, newest_us, retain)


def _inputs(query: AnyQuery, streams: Mapping[str, Stream]) -> tuple[str, ...]:
    """The declared streams and the queries whose events and rows a query reads."""
    return tuple(dict.fromkeys(name for one in inputs_of(query, streams) for name in streams[one].declared_names))


def _query(spec: PondSpec, streams: tuple[str, ...], query: AnyQuery) -> QueryShown:
    name, effects = query.name, spec.effects
    return QueryShown(
        name, "join" if isinstance(query, Join) else "windowed" if isinstance(query, Query) else "stateless",
        state_in(effects, name), effects.versions.get(name, 1) - effects.splits.get(name, 0), query.text, streams,
        tuple(ColumnShown(item.name, item.expression.type) for item in query.output), _sink(query.sink), query.serve,
        complete_from(spec, name), shadow=_shadow(spec, name), time_zone=zone_of(query),
        earlier_until_us=_earlier_until_us(spec, query),
    )  # fmt: skip


def _earlier_until_us(spec: PondSpec, query: AnyQuery) -> int | None:
    """The time before which windows start that earlier versions with another text still emit; None: there are none."""
    effects = spec.effects
    if not effects.until_us:
        return None
    older = (one for one in spec.all_queries if effects.replaced.get(one.name) == query.name and one.text != query.text)
    return max((effects.until_us[one.name] for one in older if one.name in effects.until_us), default=None)


def _shadow(spec: PondSpec, name: str) -> str | None:
    """The text of a query's shadow; None: the query has no shadow."""
    shadow = spec.effects.shadows.get(name)
    return next((query.text for query in spec.all_queries if query.name == shadow), None)


def _sink(sink: Sink) -> str:
    """The format, and where the rows go: a folder, topic or table."""
    options = dict(sink.options)
    where = sink.path or options.get("topic") or options.get("table")
    return sink.format if where is None else f"{sink.format}:{where}"


def _event(n: int, at_us: int, change: Change) -> Event:
    kind = kind_name(change)
    if isinstance(change, Scale):
        shards = ", ".join(dict.fromkeys(server for server, _ in change.shards))
        why = f"{change.why}; shards: {shards}" if shards else change.why
        return Event(n, at_us, kind, change.name, change.who, why, value=change.instances)
    if isinstance(change, Move | Resharded):
        return Event(n, at_us, kind, change.name, change.who, change.why)
    if isinstance(change, SetParameter):
        return Event(n, at_us, kind, change.name, change.who, value=plain_of(change.value))
    if isinstance(change, Feed):
        return Event(n, at_us, kind, change.name, change.who, f"{change.query}.{change.column}")
    if isinstance(change, Add | Alter | Shadow):
        whole = change.whole_us if isinstance(change, Add) else change.since_us
        since = None if isinstance(whole, msgspec.UnsetType) else whole
        query = change.stored.query
        called = query.user_functions.values() if isinstance(query, Query) else ()
        functions = {one.label: one.digest for one in sorted(called, key=lambda one: one.label)}
        return Event(n, at_us, kind, query.name, change.who, query.text, None, since, functions, hand_over_text(change))
    if isinstance(change, End):
        name, _, number = change.name.partition("@")
        before = "its first own one" if number == "0" else "a change (alter, shadow, promote or rollback)"
        text = f"the last window of {name} from before {before} was emitted; {name} continues"
        return Event(n, at_us, kind, change.name, change.who, text)
    return Event(n, at_us, kind, change.name, change.who, value=change.why if isinstance(change, Halt) else None)
