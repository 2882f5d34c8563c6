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


def first_window(query: AnyQuery, from_us: int | None) -> FirstWindow | None:
    """The first window of a query that is complete from a time on.

    None: the query has no windows of a fixed size, its rows are emitted before their windows close, or every window is
    answered.

    >>> from millpond.model.windows import Sliding
    >>> minute = 60_000_000
    >>> hourly = Query("q", "tx", "ts", 10 * minute, Sliding(60 * minute, 15 * minute), (), (), ())
    >>> [us // minute for us in first_window(hourly, 55 * minute)]
    [60, 120, 130]
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
    return FirstWindow(start, end, end + query.delay_us)
