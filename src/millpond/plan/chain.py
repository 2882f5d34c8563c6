"""Queries over queries: the rows of one, its *upstream*, are the events of a stream that others read, an epoch later.

An event time of such a stream is a bound of the upstream's windows, so the upstream's watermark says how far the
stream has come: no row yet to come is of a window that has closed. Hence no row is ever late for a query over it,
whatever its delay, unless a drain closed windows before their time. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.expressions import Column
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Session, Sliding

_BOUNDS = ("start", "end", "time")
_TOLD: dict[type, tuple[str, ...]] = {Sliding: _BOUNDS, Session: ("end", "time")}
"""By kind of window, the bounds of which the watermark tells the least that is yet to come."""


def chained_stream(upstream: AnyQuery) -> Stream:
    """The rows of a query as a stream of its name; a window `w` is also the columns `w.start`, `w.end` and `w.time`,
    its last microsecond.

    Raises:
        UnsupportedQuery: the query has no windows, or its rows may change.
    """
    if not isinstance(upstream, Query):
        raise UnsupportedQuery(
            f"{upstream.name} has no window, so its rows are events as they come.",
            "Make its text a view (CREATE TEMPORARY VIEW), and read that.",
        )
    if upstream.changing:
        how = "changes with each epoch" if upstream.updating else "is corrected after it has left"
        raise UnsupportedQuery(
            f"A row of {upstream.name} {how}, and what was made of it cannot be taken back.",
            f"Read a query like {upstream.name} whose rows are final: without 'emit' and 'correct.for'.",
        )
    fields = []
    for item in upstream.output:
        fields.append(Field(item.name, item.expression.type))
        if item.expression.type == WINDOW:
            fields += [Field(f"{item.name}.{part}", "timestamp") for part in _BOUNDS]
    return Stream(upstream.name, tuple(fields), max_ahead_us=None, rows_of=upstream.name)


def bounds_of(upstream: Query) -> dict[str, str]:
    """Which columns of the rows can tell their time: those that are the window's `start`, `end` or `time`.

    Of a session the start is none: one that is still open may have begun at any time.
    """
    found: dict[str, str] = {}
    told = _TOLD.get(type(upstream.window), ())
    for item in upstream.output:
        if not isinstance(item.expression, Column):
            continue
        if item.expression.type == WINDOW:
            found |= {f"{item.name}.{part}": part for part in told}
        elif item.expression.name in [f"window.{part}" for part in told]:
            found[item.name] = item.expression.name.removeprefix("window.")
    return found


def check_event_time(upstream: Query, query: Query) -> None:
    """Refuse an event time that says nothing of the rows yet to come.

    Raises:
        UnsupportedQuery: the column is no bound of the upstream's window.
    """
    bounds = bounds_of(upstream)
    if query.event_time not in bounds:
        known = f"Use {' or '.join(bounds)}." if bounds else f"Let {upstream.name} show its window."
        raise UnsupportedQuery(
            f"{query.event_time} does not tell when rows of {upstream.name} are complete: it bounds no window.",
            known,
        )


def reached_us(upstream: Query, event_time: str, watermark_us: int) -> int:
    """When the upstream's windows have closed up to its watermark, every row yet to come is later than this.

    >>> from millpond.model.query import Named
    >>> from millpond.model.windows import Sliding
    >>> hourly = Query("q", "s", "ts", 0, Sliding(60, 60), (), (), (Named("t", Column("window.time", "timestamp")),))
    >>> reached_us(hourly, "t", 60), reached_us(hourly, "t", 119)
    (118, 118)
    """
    window, part = upstream.window, bounds_of(upstream)[event_time]
    if not isinstance(window, Sliding):
        end, size = watermark_us + 1, 0
    else:
        size, slide = window.size_us, window.slide_us
        end = watermark_us + slide - (watermark_us - window.offset_us - size) % slide
    return {"start": end - size, "end": end, "time": end - 1}[part] - 1


def first_row_us(upstream: Query, event_time: str, since_us: int) -> int:
    """The earliest time of rows whose windows start at or after `since_us`; of sessions that time itself."""
    if not isinstance(upstream.window, Sliding):
        return since_us
    size = upstream.window.size_us
    return since_us + {"start": 0, "end": size, "time": size - 1}[bounds_of(upstream)[event_time]]


def levels(streams: Sequence[Stream], queries: Iterable[AnyQuery]) -> dict[str, int]:
    """How many queries stand before each stream: 0 of those that are read, and one more behind each query.

    Raises:
        QueryTypeError: a query is missing, or follows itself.
    """
    by_name, of_stream = {query.name: query for query in queries}, {stream.name: stream for stream in streams}
    found: dict[str, int] = {}

    def level(name: str, behind: tuple[str, ...]) -> int:
        upstream = of_stream[name].upstream if name in of_stream else None
        if upstream is None:
            return 0
        if upstream not in by_name or name in behind:
            what = "follows itself" if upstream in by_name else "is missing"
            raise QueryTypeError(f"The query {upstream}, whose rows others read, {what}.", "Add it first.")
        if name not in found:
            found[name] = max(level(one, (*behind, name)) for one in by_name[upstream].streams) + 1
        return found[name]

    return {stream.name: level(stream.name, ()) for stream in streams}


def halted(streams: Sequence[Stream], queries: Iterable[AnyQuery], stopped: Collection[str]) -> frozenset[str]:
    """The streams that miss the rows of a query that has stopped, however far before them."""
    by_name, of_stream = {query.name: query for query in queries}, {stream.name: stream for stream in streams}
    return frozenset(name for name in of_stream if not {*before(name, of_stream, by_name)}.isdisjoint(stopped))


def feeds(streams: Iterable[Stream]) -> frozenset[str]:
    """The queries whose rows others read."""
    return frozenset(stream.upstream for stream in streams if stream.upstream is not None)


def before(stream: str, streams: Mapping[str, Stream], queries: Mapping[str, AnyQuery]) -> tuple[str, ...]:
    """The queries that stand before a stream, the nearest first."""
    upstream = streams[stream].upstream
    if upstream is None:
        return ()
    behind = (one for name in queries[upstream].streams for one in before(name, streams, queries))
    return (upstream, *dict.fromkeys(behind))
