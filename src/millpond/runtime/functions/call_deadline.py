"""Ends a call of a user's function that takes too long, in the Python worker of Spark that evaluates it.

A signal ends the call, so the call must run in the main thread, as it does in Spark's workers. Code that never returns
to the Python interpreter, such as a loop in a C extension, is not ended.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

AGAIN_SECONDS = 1.0
"""The interval of further interrupts after the deadline, as the function may catch the first exception."""


class CallLate(BaseException):
    """A call has exceeded its deadline; not an `Exception`, so that the function's own handlers do not catch it."""


def within(seconds: float, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Calls a function and ends the call after `seconds`; outside the main thread there is no limit.

    Raises:
        CallLate: the call took longer.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(*arguments)
    before = signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _late(_number: int, _frame: FrameType | None) -> None:
    raise CallLate
