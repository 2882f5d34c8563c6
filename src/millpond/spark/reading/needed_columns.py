"""Finds which columns of which streams the queries of a pond need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from millpond.model.expressions import columns_of
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, expressions_of
from millpond.model.stream import Stream
from millpond.plan.options.late_rows import late_columns


def needed_columns(
    queries: Sequence[AnyQuery], streams: Mapping[str, Stream], kept: Iterable[str], times: Mapping[str, str],
    halted: Collection[str],
) -> tuple[dict[str, set[str]], set[str]]:  # fmt: skip
    """The needed columns of each stream that is read, and the streams that are read by queries that are not `halted`.

    `kept` are streams that are read whether or not a query needs them. `times` gives the event-time column of each
    stream whose time is observed. A halted query needs no columns, but its streams are still read.
    """
    read = {stream for query in queries for stream in query.streams}
    answered = {stream for query in queries if query.name not in halted for stream in query.streams}
    bases = {base for name in read if (made := streams[name].derived) is not None for base in made.reads}
    needed: dict[str, set[str]] = {name: set() for name in kept if name in read or name not in bases}
    needed |= {name: set() for name in read - answered}
    for watched, time in times.items():
        needed.setdefault(watched, set()).add(time)
    for query in queries:
        if query.name not in halted:
            _add(query, streams, needed)
    for name, columns in needed.items():
        columns.update(streams[name].retention.columns)
        if order := streams[name].order:
            columns |= set(order.columns)
    return needed, answered


def _add(query: AnyQuery, streams: Mapping[str, Stream], needed: dict[str, set[str]]) -> None:
    if isinstance(query, Join):
        for side in query.sides.values():
            needed.setdefault(side.stream, set()).update(
                [side.event_time], *map(columns_of, side.expressions)
            )
        return
    names = needed.setdefault(query.stream, set())
    for part in expressions_of(query):
        names |= columns_of(part)
    if isinstance(query, Query):
        names.add(query.event_time)
        if query.late_sink is not None:
            names.update(late_columns(query, streams[query.stream]))
