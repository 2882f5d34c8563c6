"""Computes the first window that a query answers completely, and the event time at which its rows can be emitted."""

from __future__ import annotations

from typing import NamedTuple

from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.windows import RUNNING, Sliced
from millpond.plan.options.complete_column import has_complete_column


class FirstWindow(NamedTuple):
    """A window [start, end); its rows can be emitted when event time reaches `due_us`: its end plus the delay."""

    start_us: int
    end_us: int
    due_us: int


def first_window(query: AnyQuery, from_us: int | None, closed_us: int | None = None) -> FirstWindow | None:
    """The first window that a query emits, if it is complete from a time on.

    `closed_us`: the watermark; windows that end by then were closed before the query was added. None: all are open.

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
    if from_us is None or not isinstance(query, Query) or not isinstance(query.window, Sliced):
        return None
    if query.window == RUNNING or query.updating or has_complete_column(query):
        return None
    window = query.window
    start = window.next_start(from_us)
    end = window.first_end(start)
    if closed_us is not None and end <= closed_us:
        start = max(start, window.first_open(closed_us))
        end = max(window.first_end(start), window.next_end(closed_us))
    return FirstWindow(start, end, end + query.delay_us)
