"""What the rows of a query are as a stream: columns, event times, how far they have come, who stands before whom."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Session, Sliding
from millpond.plan.chain import (
    bounds_of,
    chained_stream,
    check_event_time,
    feeds,
    first_row_us,
    halted,
    levels,
    reached_us,
)

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
    assert made.upstream == made.name == "spend"
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
        (replace(SPEND, correct_us=5), "A row of spend is corrected after it has left"),
    ],
)
def test_rows_that_may_change_are_no_stream(upstream: Query, says: str) -> None:
    with pytest.raises(UnsupportedQuery, match=says) as refused:
        chained_stream(upstream)
    assert "a query like spend whose rows are final" in refused.value.cure


def test_only_bounds_of_the_window_tell_the_time() -> None:
    assert bounds_of(SPEND) == {"w.start": "start", "w.end": "end", "w.time": "time", "t": "time"}
    of_sessions = bounds_of(replace(SPEND, window=Session(5)))
    assert of_sessions == {"w.end": "end", "w.time": "time", "t": "time"}
    top = replace(SPEND, name="top", stream="spend", event_time="born")
    with pytest.raises(UnsupportedQuery, match="born does not tell when rows of spend are complete"):
        check_event_time(SPEND, top)
    check_event_time(SPEND, replace(top, event_time="t"))


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
        if isinstance(window, Session):  # any end may be that of a session
            every = {bounds._replace(end_us=end) for bounds in every for end in range(watermark - 60, watermark + 60)}
        times = {
            bounds.end_us: {"w.start": bounds.start_us, "w.end": bounds.end_us, "t": bounds.end_us - 1}[column]
            for bounds in every
        }
        reached = reached_us(query, column, watermark)
        assert reached + 1 == min(time for end, time in times.items() if end > watermark)
        assert all(time <= reached for end, time in times.items() if end <= watermark)


def test_rows_of_a_query_that_was_added_begin_with_its_first_whole_window() -> None:
    assert [first_row_us(SPEND, column, 13) for column in ("w.start", "w.end", "t")] == [13, 43, 42]


def test_levels_count_the_queries_before_a_stream() -> None:
    top = replace(SPEND, name="top", stream="spend", event_time="t")
    streams = [TX, chained_stream(SPEND), chained_stream(top)]
    assert levels(streams, [top, SPEND]) == {"tx": 0, "spend": 1, "top": 2}
    assert feeds(streams) == {"spend", "top"}
    assert halted(streams, [top, SPEND], {"spend"}) == {"spend", "top"}
    assert halted(streams, [top, SPEND], {"top"}) == {"top"}
    with pytest.raises(QueryTypeError, match="The query spend, whose rows others read, is missing"):
        levels(streams, [top])
    with pytest.raises(QueryTypeError, match="follows itself"):
        levels(streams, [top, replace(SPEND, stream="top")])
