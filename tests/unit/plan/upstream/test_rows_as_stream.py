"""The rows of a query as a stream: columns, event times, progress, and upstream queries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from msgspec.structs import replace

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, call, literal
from millpond.model.join import Join, Side, Within
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Counted, Range, Session, Sliding
from millpond.plan.upstream.rows_as_stream import (
    after_us,
    bounds_of,
    chained_stream,
    check_event_time,
    drained_at,
    first_row_us,
    halted,
    levels,
    reached_us,
    times_of,
    upstream_queries,
)
from millpond.plan.upstream.upstream_joins import made_window

COUNT = Aggregate("count", None, None, "bigint")
OUTPUT = (
    Named("k", Column("key:0", "string")),
    Named("w", Column("window", WINDOW)),
    Named("t", Column("window.time", "timestamp")),
    Named("born", Column("key:1", "timestamp")),
    Named("n", Column("agg:0", "bigint")),
    Named("all", Column("agg:1", "array<string>")),
)
SPEND = Query("spend", "tx", "ts", 5, Sliding(30, 10, 3), (Column("k", "string"),), (COUNT,), OUTPUT)
TX = Stream("tx", ())


def test_rows_are_a_stream_with_the_bounds_of_windows_as_columns() -> None:
    made = chained_stream(SPEND)
    assert made.upstreams == (made.name,) == ("spend",)
    assert made.max_ahead_us is None
    assert made.columns == (
        Field("k", "string"), Field("w", WINDOW), Field("w.start", "timestamp"), Field("w.end", "timestamp"),
        Field("w.time", "timestamp"), Field("t", "timestamp"), Field("born", "timestamp"), Field("n", "bigint"),
        Field("all", "array<string>"),
    )  # fmt: skip


def test_rows_without_a_window_are_no_stream() -> None:
    with pytest.raises(UnsupportedQuery, match="big has no window"):
        chained_stream(Selection("big", "tx", ()))


@pytest.mark.parametrize(
    ("upstream", "says"),
    [
        (replace(SPEND, emit="update"), "A row of spend changes with each epoch"),
        (replace(SPEND, correct_us=5), "A row of spend may be corrected after it was emitted"),
    ],
)
def test_rows_that_may_change_are_no_stream(upstream: Query, says: str) -> None:
    with pytest.raises(UnsupportedQuery, match=says) as refused:
        chained_stream(upstream)
    assert "a query like spend whose rows are final" in refused.value.cure


def test_only_bounds_of_the_window_are_event_times() -> None:
    assert bounds_of(SPEND) == {"w.start": "start", "w.end": "end", "w.time": "time", "t": "time"}
    of_sessions = bounds_of(replace(SPEND, window=Session(5)))
    assert of_sessions == {"w.end": "end", "w.time": "time", "t": "time"}
    top = replace(SPEND, name="top", stream="spend", event_time="born")
    with pytest.raises(UnsupportedQuery, match="born does not show when rows of spend are complete"):
        check_event_time(SPEND, top.event_time)
    check_event_time(SPEND, "t")


@pytest.mark.parametrize("window", [Sliding(30, 10, 3), Sliding(10, 10), Sliding(7, 3, 2), Session(5)])
@pytest.mark.parametrize("column", ["w.start", "w.end", "t"])
def test_no_row_yet_to_come_is_as_early_as_what_was_reached_and_no_later_bound_holds(
    window: Sliding | Session, column: str
) -> None:
    query = replace(SPEND, window=window)
    if column not in bounds_of(query):
        return
    for watermark in range(-40, 40):
        every = {bounds for time in range(watermark - 60, watermark + 60) for bounds in window.assign(time)}
        if isinstance(window, Session):  # any end may be that of a session, wherever that begins
            every = {min(every)._replace(end_us=end) for end in range(watermark - 60, watermark + 60)}
        times = {
            bounds.end_us: {"w.start": bounds.start_us, "w.end": bounds.end_us, "t": bounds.end_us - 1}[column]
            for bounds in every
        }
        reached = reached_us(query, column, watermark)
        assert reached + 1 == min(time for end, time in times.items() if end > watermark)
        assert all(time <= reached for end, time in times.items() if end <= watermark)


def test_a_row_of_over_has_the_time_of_its_event_or_of_the_window_that_it_reads() -> None:
    ts, end = Column("ts", "timestamp"), Column("w.end", "timestamp")
    frames = replace(SPEND, window=Range(20), event=(ts,), output=(OUTPUT[2], Named("at", Column("event:0", ts.type))))
    assert bounds_of(frames) == {"t": "time"}
    assert bounds_of(replace(frames, window=Counted(3, 1))) == {"t": "time"}
    assert [reached_us(one, "t", 7) for one in (frames, replace(frames, window=Counted(3, 1)))] == [7, 7]
    assert first_row_us(frames, "t", 13) == 33
    start = Column("w.start", "timestamp")
    made = made_window(Column("event:0", "timestamp"), Column("event:1", "timestamp"))
    shown = (Named("w", made), Named("e", Column("event:1", "timestamp")))
    ranks = replace(frames, stream="spend", event_time="w.time", window=Range(0), event=(start, end), output=shown)
    assert bounds_of(ranks) == {"w.end": "end", "w.time": "time", "e": "end"}
    assert (after_us(ranks, "e", "w.time"), reached_us(ranks, "e", 7), reached_us(ranks, "w.time", 7)) == (1, 8, 7)
    assert bounds_of(replace(ranks, event=(start, start))) == {}


def test_rows_of_a_query_that_was_added_begin_with_its_first_whole_window() -> None:
    assert [first_row_us(SPEND, column, 13) for column in ("w.start", "w.end", "t")] == [13, 43, 42]


def test_levels_count_the_queries_before_a_stream() -> None:
    top = replace(SPEND, name="top", stream="spend", event_time="t")
    streams = [TX, chained_stream(SPEND), chained_stream(top)]
    assert levels(streams, [top, SPEND]) == {"tx": 0, "spend": 1, "top": 2}
    assert upstream_queries(streams) == {"spend", "top"}
    assert halted(streams, [top, SPEND], {"spend"}) == {"spend", "top"}
    assert halted(streams, [top, SPEND], {"top"}) == {"top"}
    with pytest.raises(QueryTypeError, match="The query spend, whose rows others read, is missing"):
        levels(streams, [top])
    with pytest.raises(QueryTypeError, match="follows itself"):
        levels(streams, [top, replace(SPEND, stream="top")])
    joined = Join("j", side("spend", "t"), side("tx", "ts"), "inner", Within(0, 0), ())
    last = replace(top, name="last", stream="j", event_time="lt")
    streams += [Stream("j", (), rows_of="j")]
    at = levels(streams, [joined, top, SPEND, last])
    assert at == {"tx": 0, "spend": 1, "top": 2, "j": 2}
    assert [drained_at(query, at) for query in (SPEND, joined, last)] == [0, 1, 2]


def side(stream: str, event_time: str) -> Side:
    bounds = (Column("w.start", "timestamp"), Column("w.end", "timestamp"))
    return Side(stream, event_time, 0, (), (Column(event_time, "timestamp"), *bounds))


def join_of(kind: str, when: Within | Sliding) -> Join:
    lt, rt = (Column(f"{name}:0", "timestamp") for name in ("left", "right"))
    start, end = (Column(f"left:{i}", "timestamp") for i in (1, 2))
    output = [Named("lt", lt), Named("rt", rt), Named("et", call("coalesce", (rt, lt), "timestamp")),
              Named("lw", made_window(start, end)), Named("n", literal(1, "int"))]  # fmt: skip
    if isinstance(when, Sliding):
        output += [Named("w", Column("window", WINDOW)), Named("s", Column("right:window.start", "timestamp"))]
    return Join("j", side("spend", "w.time"), side("tx", "ts"), kind, when, tuple(output))


def finals(join: Join) -> Iterator[tuple[int, dict[str, int]]]:
    """Every possible row around 0, with its final time and the times in its columns."""
    span = range(-25, 26)
    for left, right in [*product(span, span), *((time, None) for time in span), *((None, time) for time in span)]:
        times = {"lt": left, "rt": right, "et": left if right is None else right,
                 "lw.time": left, "lw.end": None if left is None else left + 1}  # fmt: skip
        known = {name: time for name, time in times.items() if time is not None}
        there = [time for time in (left, right) if time is not None]
        if isinstance(join.when, Sliding):
            for window in set.intersection(*({*join.when.assign(time)} for time in there)):
                bounds = {"w.start": window.start_us, "s": window.start_us, "w.end": window.end_us}
                yield window.end_us, known | bounds | {"w.time": window.end_us - 1}
        elif left is None or right is None:
            alone = max(left, left + join.when.upper_us) if left is not None else max(right, right - join.when.lower_us)
            yield alone, known
        elif join.when.lower_us <= right - left <= join.when.upper_us:
            yield max(left, right), known


@pytest.mark.parametrize(
    "when", [Within(0, 0), Within(-3, 4), Within(2, 5), Within(-6, -2), Sliding(6, 6, 1), Sliding(6, 4)]
)
def test_no_row_of_a_join_yet_to_come_is_as_early_as_what_was_reached(when: Within | Sliding) -> None:
    join = join_of("full", when)
    names = {"lt", "rt", "et", "lw.end", "lw.time"}
    windows = {"w.start", "w.end", "w.time", "s"} if isinstance(when, Sliding) else set()
    assert {*times_of(join)} == names | windows
    for mark in range(-4, 5):
        left = [times for final, times in finals(join) if final > mark]
        for name in times_of(join):
            least = min(times[name] for times in left if name in times)
            if isinstance(when, Sliding) and name in names:  # an event may be anywhere in its window
                assert reached_us(join, name, mark) < least
            else:
                assert reached_us(join, name, mark) + 1 == least


def test_times_of_rows_of_a_join_that_are_alike() -> None:
    join = join_of("inner", Within(-3, 4))
    assert after_us(join, "lw.end", "lt") == 1
    assert after_us(join, "lt", "rt") is None
    assert [first_row_us(join, name, 10) for name in ("lt", "rt", "lw.end", "et")] == [13, 14, 14, 14]
    assert first_row_us(join_of("inner", Sliding(6, 6)), "w.end", 10) == 16
    assert after_us(SPEND, "w.start", "t") == -29
    with pytest.raises(UnsupportedQuery, match="n does not show when rows of j are complete") as refused:
        check_event_time(join, "n")
    assert "Use lt or rt or et or lw.end or lw.time." in refused.value.cure
