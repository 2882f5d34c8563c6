"""Records the work of a task or of the driver as spans: a name, a start and an end, for the timeline of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from millpond.clock import Clock, now_us

T = TypeVar("T")

MOST_SPANS = 64
"""The most spans that one task records in an epoch; later ones are left out, so that large epochs stay bounded."""


class Span(NamedTuple):
    """Work between two times of the wall clock, in µs. `track`: the task or thread that did it, such as `fold 0`."""

    track: str
    name: str
    start_us: int
    end_us: int


class Spans:
    """Collects the spans of one track. Not thread-safe."""

    def __init__(self, track: str, clock: Clock = now_us) -> None:
        self._track, self._clock = track, clock
        self._found: list[Span] = []
        self._left = MOST_SPANS

    def add(self, name: str, start_us: int) -> None:
        """Add a span from `start_us` until now; a clock that was set back makes it empty."""
        if self._left:
            self._left -= 1
            self._found.append(Span(self._track, name, start_us, max(start_us, self._clock())))

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Add the time spent in this context, also if it raises."""
        began = self._clock()
        try:
            yield
        finally:
            self.add(name, began)

    def timed(self, name: str, values: Iterable[T]) -> Iterator[T]:
        """The values, while the wait for each of them is added as a span."""
        waiting = iter(values)
        while True:
            began = self._clock()
            try:
                value = next(waiting)
            except StopIteration:
                self.add(name, began)
                return
            self.add(name, began)
            yield value

    @property
    def found(self) -> list[Span]:
        """The spans that were added since the last call of `take`."""
        return list(self._found)

    def take(self) -> list[Span]:
        """The spans that were added since the last call."""
        found, self._found = self._found, []
        return found
