"""Finds which columns of each source are read, also of sources below joins, unions and functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millpond.model.join import Join
from millpond.model.selection import AnyQuery, Selection
from millpond.model.stream import Stream
from millpond.spark.analysis.derived_streams import read_by
from millpond.spark.reading.read_frame import WantedStream


class ReadColumns(NamedTuple):
    """The columns that are read of one source by name, and which of them are event times."""

    stream: Stream
    columns: frozenset[str]
    times: frozenset[str]


def columns_of_sources(wanted: Iterable[WantedStream], times: Mapping[str, set[str]]) -> list[ReadColumns]:
    """The sources of wanted streams with the columns that are read; `times`: the event times of each stream."""
    found: dict[str, ReadColumns] = {}
    for want in wanted:
        names = {*want.columns, *(name for foreign in want.foreigns for name in foreign.value.columns)}
        branches = [None] if want.derived is None else want.derived.branches
        for branch in branches:
            stream = want.stream if branch is None else branch.base
            known = found.get(stream.name, ReadColumns(stream, frozenset(), frozenset()))
            columns, moments = (
                frozenset(some) if branch is None else read_by(branch, some)
                for some in (names, times[want.stream.name])
            )
            found[stream.name] = ReadColumns(stream, known.columns | columns, known.times | moments)
    return list(found.values())


def times_of(queries: Iterable[AnyQuery]) -> dict[str, set[str]]:
    """The event-time columns by which the queries read each stream."""
    times: dict[str, set[str]] = {}
    for query in queries:
        for side in query.sides.values() if isinstance(query, Join) else (query,):
            own = times.setdefault(side.stream, set())
            if not isinstance(side, Selection) and side.event_time:
                own.add(side.event_time)
    return times
