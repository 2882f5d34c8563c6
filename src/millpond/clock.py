"""The one place that reads the time; everything else is handed `now_us`, or another clock of its shape."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns microseconds since 1970-01-01 UTC."""


def now_us() -> int:
    """Return the wall clock in microseconds since 1970-01-01 UTC; informational, never part of a proof."""
    return time.time_ns() // 1_000


def lap_us() -> int:
    """Microseconds of a clock that never jumps: for differences only."""
    return time.perf_counter_ns() // 1_000
