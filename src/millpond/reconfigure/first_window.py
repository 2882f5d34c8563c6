"""Computes the first window of a query that is added later: windows with missed events are not emitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from millpond.errors import ChangeRefused
from millpond.log.manifest import Manifest
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream, inner_queries
from millpond.model.types import FARTHEST_US
from millpond.model.windows import RUNNING, Session
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.plan import Plan
from millpond.plan.upstream.rows_as_stream import first_row_us, levels
from millpond.plan.upstream.steps import streams_of, times_in
from millpond.reconfigure.backward_coverage import covered_from
from millpond.reconfigure.catalog import event_times_of, is_read
from millpond.runtime.epoch import watermarks
from millpond.runtime.inputs.upstream_rows import chained_lines
from millpond.runtime.task.task_values import Watermark

TimeSources: TypeAlias = Mapping[str, Mapping[str, str]]
"""For derived streams: by base stream, its column that is the event time of the derived stream's events."""


def beginnings(
    known: PondSpec, manifest: Manifest, streams: Sequence[Stream], queries: Sequence[AnyQuery]
) -> dict[str, int]:
    """The earliest start of windows of each query; queries that miss no event are left out.

    Queries of `known` keep their time. The windows of a new query begin after every event that was read, and after
    every row that its upstream query will not emit. The sessions of a new query begin a gap later, because a missed
    event could belong to an earlier session. A query that leaves out repeated events begins later by the time for
    which it does so, because an event could repeat a missed one.
    """
    by_name = {query.name: query for query in queries}
    since = {query.name: known.since[query.name] for query in queries if query.name in known.since}
    order, upstreams = levels(streams, queries), {stream.name: stream.upstreams for stream in streams}
    chained = any(upstreams.values())  # otherwise no time line depends on the plan
    lines = chained_lines(build_plan(queries), streams, manifest, watermarks(manifest)) if chained else {}
    new = set(queries) - set(known.computed)
    for query in sorted(new, key=lambda query: max(order[stream] for stream in query.streams)):
        starts = []
        for name in query.streams:
            seen = [*manifest.max_time.get(name, {}).values()]
            line = lines.get(name)
            seen += [] if line is None or line.reaches_us is None else [line.reaches_us]
            starts += [max(seen) + 1] if seen else []
            before = [by_name[one] for one in upstreams[name] if one in since]
            starts += [first_row_us(one, time, since[one.name]) for one in before for time in times_in(query, name)]
        if not starts and isinstance(query, Query) and not query.event_time and manifest.epoch_n >= 0:
            starts = [manifest.epoch_n]  # not a time, but it says that there are earlier events
        if starts:
            since[query.name] = max(starts) + (_reach_us(query) if isinstance(query, Query) else 0)
    return since


def _reach_us(query: Query) -> int:
    """How long after an event, in microseconds, other events may depend on it by a session gap or as repetitions."""
    gap_us = query.window.gap_us if isinstance(query.window, Session) else 0
    return gap_us + (0 if query.deduplicated is None else query.deduplicated.within_us)


def beginning(
    known: PondSpec, plan: Plan, manifest: Manifest, query: AnyQuery, streams: Sequence[Stream] = (),
    time_sources: TimeSources | None = None, now_us: int | None = None,
) -> int | msgspec.UnsetType:  # fmt: skip
    """The earliest start of windows of a query that is added to the pond `known` with `plan`; UNSET: it misses nothing.

    `streams`: the streams that are new with the query. `time_sources`: those of the derived streams that it reads. The
    times of their events are known as far as those of the base streams are. `now_us`: the driver's clock, which limits
    the times of earlier events that no query observed; None: they have no limit.

    Raises:
        ChangeRefused: events of a stream were read while no query observed their times, so the start is unknown.
    """
    every = (*known.streams, *streams)
    if isinstance(query, Selection):
        return msgspec.UNSET
    begun = _beginnings_with(known, manifest, query, every, time_sources, now_us).get(query.name)
    if begun is None:
        return msgspec.UNSET
    if isinstance(query, Query):
        if isinstance(query.window, Session) and query.window.own_end is not None:
            raise ChangeRefused(
                f"Each event of {query.name} has its own session gap, so an open session may continue for any time.",
                "Add it to a new pond, or use one gap.",
            )
        mark = watermarks(manifest).get(query.stream, Watermark())
        covered = covered_from(plan, query, mark)
        if covered is not None and query.window != RUNNING:
            begun = min(begun, covered)
    return begun if begun > -(1 << 63) else msgspec.UNSET


def _beginnings_with(
    known: PondSpec, manifest: Manifest, query: AnyQuery, every: Sequence[Stream],
    time_sources: TimeSources | None, now_us: int | None,
) -> dict[str, int]:  # fmt: skip
    queries = (*inner_queries(every), *(one for one in known.all_queries if one.name != query.name), query)
    return beginnings(known, _with_missed(known, manifest, query, every, time_sources or {}, now_us), every, queries)


def steps_begin(
    known: PondSpec, manifest: Manifest, query: AnyQuery, streams: Sequence[Stream],
    time_sources: TimeSources | None = None, now_us: int | None = None,
) -> dict[str, int]:  # fmt: skip
    """The earliest start of windows of each inner query that is new with `query`; see `beginning`."""
    new = {step.name for step in inner_queries(streams)}
    if not new:
        return {}
    begun = _beginnings_with(known, manifest, query, (*known.streams, *streams), time_sources, now_us)
    return {name: since for name, since in begun.items() if name in new}


def _with_missed(
    known: PondSpec, manifest: Manifest, query: AnyQuery, every: Sequence[Stream], time_sources: TimeSources,
    now_us: int | None,
) -> Manifest:  # fmt: skip
    """The manifest in which each new stream has the largest event time that an event may have that the query misses.

    This is the newest event time of the streams that it is derived from.

    Raises:
        ChangeRefused: see `_unobserved_until`.
    """
    times = dict(manifest.max_time)
    for name, bases in time_sources.items():
        seen = [time for base in bases for time in times.get(base, {}).values()]
        if seen and name not in times:
            times[name] = {"*": max(seen)}
    by_name = {stream.name: stream for stream in every}
    untimed = isinstance(query, Query) and not query.event_time
    for name in () if untimed else streams_of(query, by_name):
        unobserved = _unobserved(known, manifest, by_name[name], time_sources)
        if unobserved:
            times[name] = {"*": _unobserved_until(known, manifest, by_name[name], unobserved, now_us)}
    return msgspec.structs.replace(manifest, max_time=times)


def _unobserved(known: PondSpec, manifest: Manifest, stream: Stream, time_sources: TimeSources) -> list[str]:
    """The streams of which events were read while no query observed the times that they have in `stream`."""
    observed = event_times_of(known.computed) | known.effects.times
    if stream.name in observed or stream.upstreams:
        return []
    sources = (stream.name,) if is_read(stream) else () if stream.derived is None else stream.derived.reads
    bases = time_sources.get(stream.name, {})
    read = [source for source in sources if source in manifest.offsets]
    equal = bases.keys() - {*sources}  # derived streams with the same times
    unobserved = [source for source in equal or read if observed.get(source) != bases.get(source)]
    if not read or (bases and not unobserved):
        return []
    return unobserved or [*sources]


def _unobserved_until(
    known: PondSpec, manifest: Manifest, stream: Stream, unobserved: Sequence[str], now_us: int | None
) -> int:
    """The largest time that events had which no query observed: later ones are too far ahead of the clock, and dead.

    Raises:
        ChangeRefused: there is no such limit, or it is far ahead of the events, as those of a backlog are not near the
            clock.
    """
    derived = (one.name for one in known.streams if one.derived and not {*one.derived.reads}.isdisjoint(unobserved))
    newest = [time for name in (*unobserved, *derived) for time in manifest.max_time.get(name, {}).values()]
    ahead_us = stream.max_ahead_us
    if ahead_us is not None and now_us is not None and max(newest, default=-FARTHEST_US) >= now_us - ahead_us:
        return now_us + ahead_us
    raise ChangeRefused(
        f"Events of {', '.join(unobserved)} were read before any query needed their times, so it is not known from "
        f"when on windows over {stream.label} would be complete.",
        "Declare the stream a second time under another name, which is then read from its beginning.",
    )
