"""Runs the analyses of queries with a time limit, each in a thread of its own.

A thread cannot be killed. So an analysis that was given up ends itself at the next node that it visits
(`raise_if_abandoned`), and does not store its results (`storing_results`). Until then it holds no lock that others wait
for.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from millpond.errors import BusyError, NotServingError, QueryRefused

SECONDS = 60.0
"""The time limit of an analysis; that of a long text takes some seconds."""
AT_ONCE = 4
"""How many analyses run at the same time; further ones wait."""
_LOOK_SECONDS = 0.1

T = TypeVar("T")
_mine = threading.local()


class Abandoned(Exception):
    """Raised in the thread of an analysis that was given up, because its result is no longer needed."""


class _Analysis(Generic[T]):
    """One analysis: first running, then done or given up."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.result: T | None = None
        self.error: BaseException | None = None
        self.gate = threading.Lock()
        self.given_up = self.keeps = False

    def give_up(self) -> bool:
        """Give the analysis up unless it has begun to store its results; return whether it was given up."""
        with self.gate:
            self.given_up = not self.keeps
            return self.given_up


class Analyses:
    """Runs the analyses of one pond; usable from any thread."""

    def __init__(self, seconds: float = SECONDS, at_once: int = AT_ONCE) -> None:
        self._seconds = seconds
        self._slots = threading.Semaphore(at_once)
        self._ended = False

    def end(self) -> None:
        """Give up all running analyses; their callers get a `NotServingError`."""
        self._ended = True

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Run `work`, the analysis of the query `name`, and return its result.

        Raises:
            QueryRefused: it took too long. BusyError: other analyses took too long. NotServingError: `end` was called.
        """
        if not self._slots.acquire(timeout=self._seconds):
            raise BusyError(
                f"{name} was not analysed: other queries occupied all analysis threads for {self._seconds:g} s.",
                "Try again later.",
            )
        analysis: _Analysis[T] = _Analysis()
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(self._work, analysis, work), name="millpond-analysis", daemon=True
        ).start()
        waited = 0.0
        while not analysis.done.wait(_LOOK_SECONDS):
            waited += _LOOK_SECONDS
            if (self._ended or waited >= self._seconds) and analysis.give_up():
                raise self._given_up(name)
        if analysis.error is not None:
            raise analysis.error
        return analysis.result  # type: ignore[return-value]

    def _work(self, analysis: _Analysis[T], work: Callable[[], T]) -> None:
        _mine.analysis = analysis
        try:
            analysis.result = work()
        except BaseException as error:  # raised again by `run`
            analysis.error = error
        finally:
            analysis.done.set()
            self._slots.release()

    def _given_up(self, name: str) -> QueryRefused | NotServingError:
        if self._ended:
            return NotServingError("This process no longer leads the pond.", "Use the leader, or try again soon.")
        return QueryRefused(
            f"The analysis of {name} was given up after {self._seconds:g} s.",
            "Make the text shorter, or split it into several queries; if the machine is busy, try again later.",
        )


def raise_if_abandoned() -> None:
    """Return unless this thread runs an analysis that was given up.

    Raises:
        Abandoned: it was given up.
    """
    analysis = getattr(_mine, "analysis", None)
    if analysis is not None and analysis.given_up:
        raise Abandoned


@contextmanager
def storing_results() -> Iterator[None]:
    """A context in which an analysis stores its results; it cannot be given up meanwhile.

    Raises:
        Abandoned: it was given up before.
    """
    analysis = getattr(_mine, "analysis", None)
    if analysis is not None:
        with analysis.gate:
            analysis.keeps = not analysis.given_up
        raise_if_abandoned()
    try:
        yield
    finally:
        if analysis is not None:
            analysis.keeps = False
