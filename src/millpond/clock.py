"""The only module that reads the clock; other modules receive `now_us`, or another clock with the same signature."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

Clock = Callable[[], int]
"""Returns microseconds since 1970-01-01 UTC."""

_EPOCH = datetime.fromtimestamp(0, timezone.utc)


def now_us() -> int:
    """Return the wall clock in microseconds since 1970-01-01 UTC; informational, never part of a proof."""
    return time.time_ns() // 1_000


def lap_us() -> int:
    """Return the microseconds of a monotonic clock, for differences only."""
    return time.perf_counter_ns() // 1_000


class ForwardClock:
    """A wall clock that never goes back: while the wall clock is set back, it advances with the monotonic clock.

    A clock that was set forward and back stays ahead until the wall clock has reached it.
    """

    def __init__(self, wall: Clock = now_us, steady: Clock = lap_us) -> None:
        self._wall, self._steady = wall, steady
        self._now, self._lap = wall(), steady()

    def __call__(self) -> int:
        """Return microseconds since 1970-01-01 UTC, and never less than before."""
        lap = self._steady()
        self._now, self._lap = max(self._wall(), self._now + lap - self._lap), lap
        return self._now

    def at_least(self, us: int) -> int:
        """Return the time, and continue from `us` if that is later, such as the time that another clock has stored."""
        self._now = max(self(), us)
        return self._now


def cpu_us() -> int:
    """Return the CPU time of this thread in microseconds, for differences only."""
    return time.thread_time_ns() // 1_000


def moment_us(moment: datetime) -> int:
    """The microseconds since 1970-01-01 UTC of a time; one without an offset is in UTC.

    >>> moment_us(datetime.fromisoformat("1970-01-01 00:00:01"))
    1000000
    >>> moment_us(datetime.fromisoformat("1970-01-01T01:00+01:00"))
    0
    """
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def utc(us: int | None, digits: int | None = None) -> str:
    """Format a time in microseconds since 1970 for people, in UTC; `digits` is the number of decimals of a second.

    >>> utc(1_357_016_400_000_000), utc(1_357_016_400_048_340), utc(1_357_016_400_048_340, 3), utc(None)
    ('2013-01-01 05:00:00Z', '2013-01-01 05:00:00.04834Z', '2013-01-01 05:00:00.048Z', '-')
    """
    if us is None:
        return "-"
    text = datetime.fromtimestamp(us // 1_000_000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    part = f"{us % 1_000_000:06d}"
    shown = part.rstrip("0") if digits is None else part[:digits]
    return f"{text}.{shown}Z" if shown else f"{text}Z"
