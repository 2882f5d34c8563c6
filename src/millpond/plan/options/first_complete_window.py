"""Computes the first window that a query answers completely, and the event time at which its rows can be emitted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.stream import Stream
from millpond.model.windows import RUNNING, Sliced
from millpond.plan.options.complete_column import has_complete_column
from millpond.plan.upstream.rows_as_stream import bounds_of


class FirstWindow(NamedTuple):
    """A window [start, end); its rows can be emitted when event time reaches `due_us`: its end plus the delay."""

    start_us: int
    end_us: int
    due_us: int


def first_window(
    query: AnyQuery, from_us: int | None, closed_us: int | None = None, streams: Iterable[Stream] = ()
) -> FirstWindow | None:
    """The first window that a query emits, if it is complete from a time on.

    `closed_us`: the watermark; windows that end by then were closed before the query was added. None: all are open.
    `streams`: those that the query may read. If its text has several steps and the last one has no windows of its own,
    such as a rank in each window, the window is that of the step before.

    Returns None if the query has no windows of a fixed size, if its rows are emitted before their windows close, or if
    every window is answered.

    >>> from millpond.model.windows import Sliding
    >>> minute = 60_000_000
    >>> hourly = Query("q", "tx", "ts", 10 * minute, Sliding(60 * minute, 15 * minute), (), (), ())
    >>> [us // minute for us in first_window(hourly, 55 * minute)]
    [60, 120, 130]
    >>> [us // minute for us in first_window(hourly, 55 * minute, 140 * minute)]
    [90, 150, 160]
    >>> first_window(hourly, None) is None
    True
    """
    if from_us is None or not isinstance(query, Query):
        return None
    if not isinstance(query.window, Sliced):
        if closed_us is not None:
            from_us = max(from_us, closed_us + 1)  # rows of the step up to the watermark were processed before
        return None if query.updating else _first_of_step(query, from_us, streams)
    if query.window == RUNNING or query.updating or has_complete_column(query):
        return None
    window = query.window
    start = window.next_start(from_us)
    end = window.first_end(start)
    if closed_us is not None and end <= closed_us:
        start = max(start, window.first_open(closed_us))
        end = max(window.first_end(start), window.next_end(closed_us))
    return FirstWindow(start, end, end + query.delay_us)


def _first_of_step(query: Query, from_us: int, streams: Iterable[Stream]) -> FirstWindow | None:
    """The first window of the step before the last one; `from_us` is a bound of the windows: the last step's time."""
    steps = [step for stream in streams if stream.name == query.stream for step in stream.steps]
    step = steps[0] if len(steps) == 1 else None
    if not isinstance(step, Query) or step.updating or has_complete_column(step):
        return None
    window, bound = step.window, bounds_of(step).get(query.event_time)
    if bound is None or window == RUNNING or not isinstance(window, Sliced):
        return None
    if bound == "start":
        end = window.first_end(window.next_start(from_us))
    else:  # the time of a row is the microsecond before its window's end
        end = window.next_end(from_us - 1 if bound == "end" else from_us)
    return FirstWindow(window.start_of(end), end, end + step.delay_us + query.delay_us)
