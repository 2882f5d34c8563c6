"""Queries over queries: the rows of an *upstream* query are the events of a stream that others read, one epoch later.

An event time of such a stream is a bound of the upstream's windows, so the upstream's watermark says how far the
stream has advanced: no future row belongs to a window that has closed (for joins see `plan.upstream.upstream_joins`).
Hence no row is late for a query over it, whatever its delay, unless a drain closed windows early.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.change_history import StoredQuery
from millpond.model.expressions import Call, Column
from millpond.model.join import Join
from millpond.model.query import Named, Query
from millpond.model.selection import AnyQuery, Selection, is_inner
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import (
    Calendar,
    Counted,
    Cumulating,
    Distinct,
    Pattern,
    Processed,
    Range,
    Session,
    Sliced,
    Sliding,
    Window,
)
from millpond.plan.groups.ranked_rows import counted_rows
from millpond.plan.upstream.steps import step_name, united_names
from millpond.plan.upstream.upstream_joins import WINDOW_OF, join_first_us, join_reached_us, join_times

_BOUNDS = ("start", "end", "time")
_BOUNDS_SHOWN: dict[type, tuple[str, ...]] = {
    Sliding: _BOUNDS, Calendar: _BOUNDS, Cumulating: _BOUNDS, Session: ("end", "time"), Distinct: ("time",),
    Pattern: ("start", "end"), Processed: ("time",), Range: ("end", "time"), Counted: ("time",),
}  # fmt: skip
"""By kind of window, the bounds for which the watermark gives a lower limit of all future rows."""


def chained_stream(upstream: AnyQuery) -> Stream:
    """The rows of a query as a stream with the query's name.

    A window column `w` adds the columns `w.start`, `w.end` and `w.time`, the last microsecond of the window.

    Raises:
        UnsupportedQuery: the query is stateless, or emits updating results.
    """
    if isinstance(upstream, Selection):
        raise UnsupportedQuery(
            f"{upstream.name} has no window, so its rows are events as they come.",
            "Make its text a view (CREATE TEMPORARY VIEW), and read that.",
        )
    if isinstance(upstream, Query) and upstream.changing:
        how = "changes with each epoch" if upstream.updating else "may be corrected after it was emitted"
        raise UnsupportedQuery(
            f"A row of {upstream.name} {how}, and results that used it cannot be retracted.",
            f"Read a query like {upstream.name} whose rows are final: without 'emit' and 'correct.for'.",
        )
    return Stream(upstream.name, _columns(upstream), max_ahead_us=None, rows_of=upstream.name)


def _columns(upstream: AnyQuery) -> tuple[Field, ...]:
    fields = []
    for item in upstream.output:
        fields.append(Field(item.name, item.expression.type))
        if item.expression.type == WINDOW:
            fields += [Field(f"{item.name}.{part}", "timestamp") for part in _BOUNDS]
    return tuple(fields)


def inner_stream(query: AnyQuery) -> Stream:
    """The rows of an inner query as a stream that contains the query; see `plan.upstream.steps`.

    Raises:
        UnsupportedQuery: see `chained_stream`.
    """
    return msgspec.structs.replace(chained_stream(query), inner=StoredQuery.of(query))


def stream_of_steps(queries: Sequence[AnyQuery], event_time: str) -> Stream:
    """The rows of inner queries as one stream; several are the branches of a UNION ALL. All get their final names.

    Raises:
        UnsupportedQuery: see `inner_stream` and `united_stream`.
    """
    if len(queries) == 1:
        return inner_stream(msgspec.structs.replace(queries[0], name=step_name(queries[0], event_time)))
    name, names = united_names(queries, event_time)
    return united_stream(name, [msgspec.structs.replace(one, name=of) for one, of in zip(queries, names, strict=True)])


def united_stream(name: str, branches: Sequence[AnyQuery]) -> Stream:
    """The rows of the branches of a UNION ALL as one stream; the branches emit columns of equal names and types.

    Raises:
        UnsupportedQuery: the rows of a branch are not final.
    """
    columns = {_columns(branch): None for branch in branches}
    for branch in branches:
        if not isinstance(branch, Selection):
            chained_stream(branch)
    if len(columns) > 1:
        raise UnsupportedQuery("The branches of the UNION ALL have columns of different types.", "Cast them.")
    stored = tuple(map(StoredQuery.of, branches))
    return Stream(name, next(iter(columns)), max_ahead_us=None, united=stored)


def bounds_of(upstream: Query) -> dict[str, str]:
    """The columns of the rows that can be their event time, each with the window bound it is: `start`, `end` or `time`.

    The start of a session cannot, because a session that is still open may have begun at any time. No time of the first
    n rows can, because they are emitted in the order in which they arrive; nor that of rows which wait for a later
    event of their key.
    """
    columns: dict[str, str] = {}
    waiting = counted_rows(upstream.window) is not None or _waits(upstream.window)
    parts = () if waiting else _BOUNDS_SHOWN.get(type(upstream.window), ())
    own = Column(upstream.event_time, "timestamp")
    of_event = upstream.of_event if isinstance(upstream.window, Counted) and upstream.window.once is True else ()
    times = {f"event:{place}" for place, value in enumerate(of_event) if value == own}
    for item in upstream.output:
        if isinstance(upstream.window, Range):
            columns |= _bounds_of_row(upstream, item)
        if not isinstance(item.expression, Column):
            continue
        if item.expression.type == WINDOW:
            columns |= {f"{item.name}.{part}": part for part in parts}
        elif item.expression.name in [f"window.{part}" for part in parts]:
            columns[item.name] = item.expression.name.removeprefix("window.")
        elif item.expression.name in times:
            columns[item.name] = "time"
    return columns


def _waits(window: Window) -> bool:
    return isinstance(window, Counted) and bool(window.following)


def _bounds_of_row(upstream: Query, item: Named) -> dict[str, str]:
    """The columns in an output of an `OVER` query that are bounds of the window to which the row it reads belongs."""
    window = upstream.event_time.removesuffix(".time")
    end = next((i for i, value in enumerate(upstream.of_event) if value == Column(f"{window}.end", "timestamp")), None)
    if end is None or window == upstream.event_time:
        return {}
    shown = Column(f"event:{end}", "timestamp")
    if item.expression == shown:
        return {item.name: "end"}
    made = isinstance(item.expression, Call) and item.expression.op == WINDOW_OF and item.expression.args[1] == shown
    return {f"{item.name}.end": "end", f"{item.name}.time": "time"} if made else {}


def times_of(upstream: AnyQuery) -> tuple[str, ...]:
    """The columns that can be the event time of the upstream's rows."""
    if isinstance(upstream, Selection):
        times = ((name, passed_column(upstream, name)) for name in (field.name for field in _columns(upstream)))
        return tuple(name for name, time in times if time is not None and time == upstream.event_time)
    return tuple(join_times(upstream) if isinstance(upstream, Join) else bounds_of(_windowed(upstream)))


def passed_column(selection: Selection, name: str) -> str | None:
    """The column of a stateless query's input that it emits unchanged as `name`, which may be a bound of a window."""
    whole, _, part = name.rpartition(".")
    for item in selection.output:
        if isinstance(item.expression, Column) and item.name == name:
            return item.expression.name
        if isinstance(item.expression, Column) and item.name == whole and item.expression.type == WINDOW:
            return f"{item.expression.name}.{part}"
    return None


def after_us(upstream: AnyQuery, column: str, other: str) -> int | None:
    """How many microseconds `column` is after `other` in the same row; None if this differs between rows."""
    if isinstance(upstream, Join):
        time, other_time = (join_times(upstream)[name] for name in (column, other))
        return time.after_us - other_time.after_us if time.sides == other_time.sides else None
    if isinstance(upstream, Selection):
        return 0  # all of them are the same event time
    (window, part), (_, of_other) = _window_and_bound(upstream, column), _window_and_bound(upstream, other)
    if isinstance(window, Pattern):
        return 0 if part == of_other else None
    if isinstance(window, Sliced) and not isinstance(window, Sliding) and (part == "start") != (of_other == "start"):
        return None  # windows differ in length
    size = window.size_us if isinstance(window, Sliding) else 0  # for sessions only `end` and `time` are allowed
    return _bound(part, 0, size) - _bound(of_other, 0, size)


def check_event_time(upstream: AnyQuery, event_time: str) -> None:
    """Refuses an event-time column that gives no lower limit of future rows.

    Raises:
        UnsupportedQuery: the column is not a bound of the upstream's window, or not an event time of the join.
    """
    times = times_of(upstream)
    if event_time not in times:
        what = "the event times of its sides" if isinstance(upstream, Join) else "its window"
        says = "it is not an event time of its sides" if isinstance(upstream, Join) else "it is not a bound of a window"
        name = "the inner query" if is_inner(upstream.name) else upstream.name
        raise UnsupportedQuery(
            f"{event_time} does not show when rows of {name} are complete: {says}.",
            f"Use {' or '.join(times)}." if times else f"Let {name} show {what}.",
        )


def reached_us(upstream: AnyQuery, event_time: str, watermark_us: int) -> int:
    """The time that all future rows of the upstream are later than, given its watermark.

    For a join, `watermark_us` is the lesser watermark of its sides.

    >>> from millpond.model.query import Named
    >>> from millpond.model.windows import Sliding
    >>> hourly = Query("q", "s", "ts", 0, Sliding(60, 60), (), (), (Named("t", Column("window.time", "timestamp")),))
    >>> reached_us(hourly, "t", 60), reached_us(hourly, "t", 119)
    (118, 118)
    """
    if isinstance(upstream, Join):
        return join_reached_us(upstream, join_times(upstream)[event_time], watermark_us)
    if isinstance(upstream, Selection):
        return watermark_us
    window, part = _window_and_bound(upstream, event_time)
    if isinstance(window, Pattern):  # a match that is not decided began later than this
        return watermark_us - window.within_us
    if isinstance(window, Distinct | Processed | Range | Counted):  # of events that are not late, in any of these
        start = window.begin_of_unit(watermark_us + 1) if isinstance(window, Range) else watermark_us + 1
        end = start + 1
    elif not isinstance(window, Sliced):
        start, end = watermark_us, watermark_us + 1
    else:
        start, end = window.first_open(watermark_us), window.next_end(watermark_us)
    return _bound(part, start, end) - 1


def first_row_us(upstream: AnyQuery, event_time: str, since_us: int) -> int:
    """The time such that rows at or after it need no event before `since_us`; for sessions, `since_us` itself."""
    if isinstance(upstream, Join):
        return join_first_us(upstream, join_times(upstream)[event_time], since_us)
    if isinstance(upstream, Selection):
        return since_us
    window, part = _window_and_bound(upstream, event_time)
    if isinstance(window, Pattern):
        return _bound(part, since_us, since_us + window.within_us)
    if isinstance(window, Range):
        return _bound(part, since_us + window.preceding_us, since_us + window.preceding_us + 1)
    if not isinstance(window, Sliced):
        return since_us
    # windows that start earlier end at the next start or before
    later = since_us + window.size_us if isinstance(window, Sliding) else window.next_start(since_us) + 1
    return _bound(part, since_us, later)


def last_row_us(upstream: AnyQuery, event_time: str, newest_us: Mapping[str, int]) -> int | None:
    """The latest event time of rows from events up to `newest_us`, by stream; None if no limit is known."""
    newest = [newest_us[stream] for stream in upstream.streams if stream in newest_us]
    if not newest:
        return None
    if isinstance(upstream, Join):
        join_time = join_times(upstream)[event_time]
        window = upstream.when
        first = max(newest)
        if isinstance(window, Sliding) and not join_time.sides:
            first = window.assign(first)[-1].start_us
        return first + join_time.after_us
    if isinstance(upstream, Selection):
        return newest[0]
    last, part = _window_and_bound(upstream, event_time)
    if isinstance(last, Sliced):
        return _bound(part, *last.assign(newest[0])[-1])
    if isinstance(last, Distinct | Pattern | Processed | Counted):
        return newest[0]
    if isinstance(last, Range):
        return _bound(part, newest[0], newest[0] + 1)
    if isinstance(last, Session) and last.own_end is None:
        return _bound(part, newest[0], newest[0] + last.gap_us)
    return None


def _window_and_bound(upstream: AnyQuery, event_time: str) -> tuple[Window, str]:
    """The window of a query, and which of its bounds the column `event_time` is."""
    query = _windowed(upstream)
    return query.window, bounds_of(query)[event_time]


def _bound(part: str, start_us: int, end_us: int) -> int:
    return {"start": start_us, "end": end_us, "time": end_us - 1}[part]


def _windowed(upstream: AnyQuery) -> Query:
    assert isinstance(upstream, Query)  # `chained_stream` refuses others
    return upstream


def drained_at(query: AnyQuery, at: Mapping[str, int]) -> int:
    """The level at which a drain closes the open windows of a query: the highest level of its streams."""
    return max(at.get(stream, 0) for stream in query.streams)


def levels(streams: Sequence[Stream], queries: Iterable[AnyQuery]) -> dict[str, int]:
    """The level of each stream: the number of queries between it and the source, 0 for streams that are read.

    Raises:
        QueryTypeError: a query is missing, or reads its own rows through other queries.
    """
    by_name, of_stream = {query.name: query for query in queries}, {stream.name: stream for stream in streams}
    level_of: dict[str, int] = {}

    def level(name: str, behind: tuple[str, ...]) -> int:
        upstreams = of_stream[name].upstreams if name in of_stream else ()
        for upstream in upstreams:
            if upstream not in by_name or name in behind:
                what = "follows itself" if upstream in by_name else "is missing"
                raise QueryTypeError(f"The query {upstream}, whose rows others read, {what}.", "Add it first.")
        if name not in level_of:
            below = (one for upstream in upstreams for one in by_name[upstream].streams)
            level_of[name] = max((level(one, (*behind, name)) + 1 for one in below), default=0)
        return level_of[name]

    return {stream.name: level(stream.name, ()) for stream in streams}


def halted(streams: Sequence[Stream], queries: Iterable[AnyQuery], stopped: Collection[str]) -> frozenset[str]:
    """The streams that lack the rows of a stopped query, directly or through other queries."""
    by_name, of_stream = {query.name: query for query in queries}, {stream.name: stream for stream in streams}
    return frozenset(name for name in of_stream if not {*before(name, of_stream, by_name)}.isdisjoint(stopped))


def upstream_queries(streams: Iterable[Stream]) -> frozenset[str]:
    """The queries whose rows are read by other queries."""
    return frozenset(name for stream in streams for name in stream.upstreams)


def before(stream: str, streams: Mapping[str, Stream], queries: Mapping[str, AnyQuery]) -> tuple[str, ...]:
    """All queries upstream of a stream, the nearest first."""
    upstreams = streams[stream].upstreams
    read = (name for upstream in upstreams for name in queries[upstream].streams)
    behind = (one for name in read for one in before(name, streams, queries))
    return (*upstreams, *dict.fromkeys(behind))
