"""Ctrl-C: the first stops a pond at the end of the epoch at hand, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from millpond.spark.session import end_java

INTERRUPTED = 130
"""Exit status of a process that Ctrl-C ended, as shells have it."""

_SHOW_CURSOR = b"\x1b[?25h"


@contextmanager
def stopping(stop: Callable[[], None], say: Callable[[str], None]) -> Iterator[None]:
    """Call `stop` at the first SIGINT or SIGTERM; at the second, end the process without cleaning up.

    Nothing is lost either way: what is not in the log was never true. Java and its Python workers are in a session
    of their own, so the terminal's signal does not reach them before the epoch is done.
    """
    asked = 0

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal asked
        asked += 1
        if asked > 1:
            _end()
        say("Stopping at the end of this epoch. Ctrl-C again stops at once; nothing is lost either way.")
        stop()

    old = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _end() -> None:
    end_java()
    # os.write, because this may interrupt a write of Python's own
    if sys.stderr.isatty():
        os.write(2, _SHOW_CURSOR)
    os.write(2, b"\nStopped at once; the next run goes on from the last epoch.\n")
    os._exit(INTERRUPTED)
