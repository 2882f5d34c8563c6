"""Handles Ctrl-C: the first stops a pond after the current epoch, the second ends the process at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from millpond.spark.session.session import end_java

INTERRUPTED = 130
"""Exit status of a process that Ctrl-C ended, by the convention of shells."""

_SHOW_CURSOR = b"\x1b[?25h"


class Interrupts:
    """The handler of SIGINT and SIGTERM in a command: see `interrupts`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._stop: Callable[[], None] | None = None

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """In this context, the first signal calls `stop` and the second ends the process."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        stop, self._stop = self._stop, None
        if stop is None:
            _end()
        else:
            stop()
            with suppress(OSError, RuntimeError):  # a closed pipe, or the signal has interrupted another write
                self._say("Stopping after the current step. Ctrl-C again stops at once; nothing is lost either way.")


@contextmanager
def interrupts(say: Callable[[str], None]) -> Iterator[Interrupts]:
    """End the process at SIGINT or SIGTERM without cleanup, except within `stopping`, where it stops in an orderly way.

    Nothing is lost either way, because only what is in the log counts. Java and its Python workers are in a session of
    their own, so the signal of the terminal does not reach them before the epoch is done.
    """
    handler = Interrupts(say)
    old = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield handler
    finally:
        for number, before in old.items():
            signal.signal(number, before)


def _end() -> None:
    terminal = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # threads that were connected with Java would print tracebacks when it ends
    end_java()
    # os.write, because this may interrupt a write of Python's own
    if os.isatty(terminal):
        os.write(terminal, _SHOW_CURSOR)
    os.write(terminal, b"\nStopped at once; the next run goes on from the last epoch.\n")
    os._exit(INTERRUPTED)
