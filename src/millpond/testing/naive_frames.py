"""The naive twin of windows that are runs of a key's events: every event is compared with every other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millpond.model.query import Query
from millpond.model.windows import Interval, Range
from millpond.testing.rowwise import Value, order


class Event(NamedTuple):
    """An event that a query takes; `taken`: the argument of each aggregate that takes it, with its position."""

    time: int
    keys: tuple[Value, ...]
    taken: tuple[tuple[int, Value], ...]
    of_event: tuple[Value, ...]

    @property
    def identity(self) -> tuple[object, ...]:
        """Its key, every NaN being the same."""
        return tuple(None if value is None else order(value) for value in self.keys)


class Frame(NamedTuple):
    """A window, its key, for each aggregate the arguments of the events it took, and values of the event."""

    window: Interval
    keys: tuple[Value, ...]
    arguments: tuple[list[Value], ...]
    of_event: tuple[Value, ...]


def range_frames(
    query: Query, epochs: Sequence[Sequence[Event]], marks: Sequence[float | None]
) -> list[list[Frame]]:
    """For each epoch the frames of the events whose time the watermark after it has reached."""
    every: list[Event] = []
    waiting: list[Event] = []
    found = []
    for events, mark in zip(epochs, marks, strict=True):
        every += events
        waiting += events
        ripe = [event for event in waiting if mark is not None and event.time <= mark]
        waiting = [event for event in waiting if event not in ripe]
        found.append([_range_frame(query, event, every) for event in ripe])
    return found


def _range_frame(query: Query, event: Event, every: Sequence[Event]) -> Frame:
    assert isinstance(query.window, Range)
    same = [other for other in every if other.identity == event.identity and other.time <= event.time]
    arguments = []
    for i, aggregate in enumerate(query.aggregates):
        own = aggregate.preceding_us
        start = event.time - (own if isinstance(own, int) else query.window.preceding_us)
        arguments.append([value for other in same if other.time >= start for j, value in other.taken if j == i])
    window = Interval(event.time - query.window.preceding_us, event.time + 1)
    return Frame(window, event.keys, tuple(arguments), event.of_event)
