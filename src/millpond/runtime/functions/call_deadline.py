"""Ends a call of a user's function that takes too long, in the Python worker of Spark that evaluates it.

A signal ends the call, so it has to run in the main thread, as Spark's workers do. Code that never returns to Python's
interpreter, such as a loop in a C extension, is not ended.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

AGAIN_SECONDS = 1.0
"""After its deadline a call is interrupted so often, as its code may catch the first exception."""


class CallLate(BaseException):
    """A call has passed its deadline; no `Exception`, so that the function's own handlers let it through."""


def within(seconds: float, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """The value of a call.

    Raises:
        CallLate: it has taken longer.
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
