"""Notices that the main thread hangs in a call that may never return, such as one of Java, a disk or a store.

`Watchdog` looks once a second. `Steps` limits the steps of a command that begin and end a pond; the service has its
own rule for what hangs (`service.server.supervisor`), and a running epoch is the business of `stalled_epoch`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from millpond.errors import MillpondError, StalledError
from millpond.spark.session.session import end_java


class Watchdog:
    """Calls `hangs` every second in a thread of its own, and `replace` once it returns True."""

    def __init__(self, hangs: Callable[[], bool], replace: Callable[[], None], every: float = 1.0) -> None:
        self._hangs, self._replace, self._every = hangs, replace, every
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch while the context is open."""
        thread = threading.Thread(target=self._run, name="millpond-watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def look(self) -> None:
        """Replace the process if it hangs."""
        if self._hangs():
            self._replace()

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            self.look()


class Steps:
    """The step that a command is at, and how long a step may take; for `Watchdog`.

    `hangs` counts its calls, one a second, rather than the time, because a suspended process counts no calls.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._step: str | None = None
        self._looks = 0

    def begin(self, step: str) -> None:
        """Note that a step begins, and the one before it has ended; `step` is a noun phrase, for the message."""
        self._step, self._looks = step, 0

    def rest(self) -> None:
        """Note that no step is running that this object limits."""
        self._step = None

    @contextmanager
    def then(self, step: str) -> Iterator[None]:
        """A context whose end begins `step`."""
        try:
            yield
        finally:
            self.begin(step)

    def hangs(self) -> bool:
        """Whether the current step takes longer than it may."""
        self._looks += 1
        return self._step is not None and self._looks > self._seconds

    def error(self) -> StalledError:
        """The error that names the step, and where the main thread is."""
        return stalled(f"{self._step or 'A step'} has not ended after {self._seconds:g} s")


def stalled(what: str) -> StalledError:
    """The error for a main thread that hangs in a step that begins or ends a pond; `what` names the step."""
    at = _innermost()
    return StalledError(
        f"{what}{'' if at is None else f', in {at}'}.",
        "Committed results stand. Check the sources, sinks and stores that the pond uses, and run it again; if the "
        "step needs more time, allow it with --stalled-after.",
    )


def end_process(error: MillpondError) -> NoReturn:
    """End the process with the error as its last line and status 1, whatever the main thread waits for."""
    os.write(2, f"{' '.join(str(error).split())}\n".encode())
    end_java()
    os._exit(1)


def _innermost() -> str | None:
    """The innermost function of this package in which the main thread is, with its module."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("millpond."):
            return f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    return None
