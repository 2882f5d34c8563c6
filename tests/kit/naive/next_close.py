"""The naive twin of `runtime.fold.next_due`: every window of every event, one by one."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.model.windows import Interval, Session, Window


def naive_due(times_us: Iterable[int], window: Window, mark_us: int | None) -> Interval | None:
    """The earliest window that holds one of the times, all of one key, and ends after the mark, or None.

    >>> from millpond.model.windows import Sliding
    >>> naive_due([1, 25], Sliding(10, 10), 10)
    Interval(start_us=20, end_us=30)
    """
    found = {interval for time in times_us for interval in window.assign(time)}
    if isinstance(window, Session):
        found = _merged(found)
    still_open = [interval for interval in found if mark_us is None or interval.end_us > mark_us]
    return min(still_open, default=None, key=lambda interval: interval.end_us)


def _merged(intervals: set[Interval]) -> set[Interval]:
    """The intervals, with those that overlap or touch merged."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1].end_us:
            merged[-1] = Interval(merged[-1].start_us, max(end, merged[-1].end_us))
        else:
            merged.append(Interval(start, end))
    return set(merged)
