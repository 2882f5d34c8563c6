"""The naive twin of `runtime.due`: every window of every event, one by one."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.model.windows import Interval, Sliding


def naive_due(times_us: Iterable[int], window: Sliding, mark_us: int | None) -> Interval | None:
    """The earliest window that holds one of the times and ends after the mark, or None.

    >>> naive_due([1, 25], Sliding(10, 10), 10)
    Interval(start_us=20, end_us=30)
    """
    found = {interval for time in times_us for interval in window.assign(time)}
    still_open = [interval for interval in found if mark_us is None or interval.end_us > mark_us]
    return min(still_open, default=None, key=lambda interval: interval.end_us)
