"""Waiting, in tests, for what other threads and processes do."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep

from millpond.clock import lap_us

_STEP_S = 0.1


def wait_for(true: Callable[[], bool], seconds: float = 60) -> None:
    """Return when it is true.

    Raises:
        AssertionError: it was not after so many seconds.
    """
    until_us = lap_us() + round(seconds * 1e6)
    while not true():
        assert lap_us() < until_us, "what is waited for has not come"
        sleep(_STEP_S)
