"""Finds which columns of which streams the queries of a pond need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from millpond.model.selection import AnyQuery
from millpond.model.stream import Stream
from millpond.plan.chains.late_sinks import late_columns_read
from millpond.plan.options.columns_read import columns_read


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
