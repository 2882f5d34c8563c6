"""Finds which columns of which streams the queries of a pond need, and which are read of each source.

The sources include those below joins, unions and functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from millpond.model.join import Join
from millpond.model.selection import AnyQuery, Selection
from millpond.model.stream import Stream
from millpond.plan.groups.columns_read import columns_read
from millpond.plan.upstream.late_sinks import late_columns_read
from millpond.spark.analysis.derived_streams import read_by
from millpond.spark.reading.read_frame import WantedStream


class ReadColumns(NamedTuple):
    """The columns that are read of one source by name, and which of them are event times."""

    stream: Stream
    columns: frozenset[str]
    times: frozenset[str]


def columns_of_sources(wanted: Iterable[WantedStream], times: Mapping[str, set[str]]) -> list[ReadColumns]:
    """The sources of wanted streams with the columns that are read; `times`: the event times of each stream."""
    by_source: dict[str, ReadColumns] = {}
    for want in wanted:
        names = {*want.columns, *(name for foreign in want.foreigns for name in foreign.value.columns)}
        branches = [None] if want.derived is None else want.derived.branches
        for branch in branches:
            stream = want.stream if branch is None else branch.base
            known = by_source.get(stream.name, ReadColumns(stream, frozenset(), frozenset()))
            columns, moments = (
                frozenset(some) if branch is None else read_by(branch, some)
                for some in (names, times[want.stream.name])
            )
            by_source[stream.name] = ReadColumns(stream, known.columns | columns, known.times | moments)
    return list(by_source.values())


def times_of(queries: Iterable[AnyQuery]) -> dict[str, set[str]]:
    """The event-time columns by which the queries read each stream."""
    times: dict[str, set[str]] = {}
    for query in queries:
        for side in query.sides.values() if isinstance(query, Join) else (query,):
            own = times.setdefault(side.stream, set())
            if not isinstance(side, Selection) and side.event_time:
                own.add(side.event_time)
    return times


def needed_columns(
    queries: Sequence[AnyQuery], streams: Mapping[str, Stream], kept_streams: Iterable[str], times: Mapping[str, str],
    halted: Collection[str],
) -> tuple[dict[str, set[str]], set[str]]:  # fmt: skip
    """The needed columns of each stream that is read, and the streams that are read by queries that are not `halted`.

    `kept_streams` are those that are read whether or not a query needs them. `times` gives the event-time column of
    each stream whose time is observed. A halted query needs no columns, but its streams are still read.
    """
    read = {stream for query in queries for stream in query.streams}
    answered = {stream for query in queries if query.name not in halted for stream in query.streams}
    bases = {base for name in read if (made := streams[name].derived) is not None for base in made.reads}
    needed: dict[str, set[str]] = {name: set() for name in kept_streams if name in read or name not in bases}
    needed |= {name: set() for name in read - answered}
    for watched, time in times.items():
        needed.setdefault(watched, set()).add(time)
    computed = [query for query in queries if query.name not in halted]
    for query in computed:
        for name in query.streams:
            needed.setdefault(name, set()).update(columns_read(query, streams[name]))
    for name, columns in late_columns_read(computed, streams).items():
        needed.setdefault(name, set()).update(columns)
    for name, columns in needed.items():
        columns.update(streams[name].retention.columns)
        if order := streams[name].order:
            columns |= set(order.columns)
    return needed, answered
