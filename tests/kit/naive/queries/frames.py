"""The naive twin of windows that are runs of a key's events: compares every event with every other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UnsetType

from kit.naive.calendar import naive_before
from kit.naive.expressions import Value, order
from millpond.model.aggregates import LISTAGGS, NTH, ORDERED, Aggregate
from millpond.model.calendars.months import Months
from millpond.model.query import Query
from millpond.model.windows import Counted, Interval, Range

_NEEDED = {NTH: (), "first": (), "last": (), "min_by": (1,), "max_by": (1,), **dict.fromkeys(LISTAGGS, (0,))}
"""Function -> the arguments whose NULL makes it skip an event; other arguments may be NULL."""


class Event(NamedTuple):
    """An event that a query takes; `taken`: the arguments of the aggregates that take it, with their positions."""

    time: int
    keys: tuple[Value, ...]
    taken: tuple[tuple[int, Value], ...]
    of_event: tuple[Value, ...]

    @property
    def identity(self) -> tuple[object, ...]:
        """The key of the event; all NaNs are equal."""
        return tuple(None if value is None else order(value) for value in self.keys)


class Frame(NamedTuple):
    """A window, its key, the arguments of the events that each aggregate took, and the values of the event."""

    window: Interval
    keys: tuple[Value, ...]
    arguments: tuple[list[Value], ...]
    of_event: tuple[Value, ...]


def frames_by_epoch(
    query: Query, epochs: Sequence[Sequence[Event]], marks: Sequence[float | None]
) -> list[list[Frame]]:
    """The frames of each epoch: those whose last event's time was reached by the watermark in that epoch."""
    passed: dict[object, list[Event]] = {}
    every: list[Event] = []
    waiting: list[Event] = []
    found = []
    for events, mark in zip(epochs, marks, strict=True):
        every += events
        waiting += events
        ripe = [event for event in waiting if mark is not None and _last_peer(query, event.time) <= mark]
        waiting = [event for event in waiting if event not in ripe]
        if isinstance(query.window, Range):
            found.append([_range_frame(query, event, every) for event in ripe])
            continue
        ripe.sort(key=lambda event: (event.time, _contribution(query, event), _shown(event), _signs(event)))
        firsts = {key: len(of_key) for key, of_key in passed.items()}
        for event in ripe:
            passed.setdefault(event.identity, []).append(event)
        found.append([])
        for key, of_key in passed.items():
            frames = [_counted_frame(query, of_key, at) for at in _due(query, len(of_key), firsts.get(key, 0), mark)]
            found[-1] += [frame for frame in frames if frame is not None]
    return found


def _last_peer(query: Query, time: int) -> int:
    """The last time at which an event can be a peer of an event at `time`."""
    unit = query.window.unit_us if isinstance(query.window, Range) and isinstance(query.window.unit_us, int) else 1
    return (time // unit + 1) * unit - 1


def _due(query: Query, count: int, first: int, mark: float | None) -> range:
    """Which of the `count` events of a key have their rows now; the events from `first` on are counted now.

    A row waits for the events that follow it in its window; a drain, with the mark `inf`, does not.
    """
    assert isinstance(query.window, Counted)
    awaited = query.window.following or 0
    return range(max(first - awaited, 0), count if mark == math.inf else max(count - awaited, 0))


def _counted_frame(query: Query, events: Sequence[Event], at: int) -> Frame | None:
    """The frame of the event at `at` among the events of its key, if it has one."""
    window, event = query.window, events[at]
    assert isinstance(window, Counted)
    if (at + 1) % window.every:
        return None
    awaited = window.following or 0
    before = window.size - 1 - awaited
    low = max(at - before, 0)
    if not query.row_per_event:
        arguments = [
            [value for one in events[low : at + 1] for j, value in one.taken if j == i]
            for i in range(len(query.aggregates))
        ]
        return Frame(Interval(events[low].time, event.time), event.keys, tuple(arguments), ())
    arguments = []
    for i, aggregate in enumerate(query.aggregates):
        begin = max(at - (before if not isinstance(aggregate.preceding_rows, int) else aggregate.preceding_rows), 0)
        end = max(at + 1 + (aggregate.following_rows or 0), 0)
        if aggregate.running:
            begin = 0
            end = sum(one.time <= event.time for one in events) if aggregate.running == "peers" else at + 1
        taken = [(place, value) for place, one in enumerate(events[begin:end]) for j, value in one.taken if j == i]
        arguments.append([(place, *value[1:]) if aggregate.logged else value for place, value in taken])
    return Frame(Interval(events[low].time, event.time + 1), event.keys, tuple(arguments), event.of_event)


def _shown(event: Event) -> list[tuple[object, ...]]:
    return [(0, 0) if value is None else (1, order(value)) for value in event.of_event]


def _signs(event: Event) -> list[float]:
    return [math.copysign(1, value) if isinstance(value, float) else 0 for value in event.of_event]


def _contribution(query: Query, event: Event) -> tuple[object, ...]:
    """The values that each aggregate takes from the event, as a sort key; no value sorts first."""
    taken = dict(event.taken)
    return tuple(_taken(aggregate, taken[i]) if i in taken else () for i, aggregate in enumerate(query.aggregates))


def _taken(aggregate: Aggregate, value: Value) -> tuple[object, ...]:
    count = len(aggregate.arguments)
    given: Sequence[Value] = value[1:] if aggregate.logged else value if count > 1 else (value,)[:count]
    needed = _NEEDED.get(aggregate.function, range(count))
    if any(given[i] is None for i in needed):
        return ()
    return (1, *((0,) if one is None else (1, order(one)) for one in given))


def _range_frame(query: Query, event: Event, every: Sequence[Event]) -> Frame:
    assert isinstance(query.window, Range)
    last = _last_peer(query, event.time)
    same = [other for other in every if other.identity == event.identity and other.time <= last]
    first = event.time if isinstance(query.window.unit_us, UnsetType) else last + 1 - query.window.unit_us
    arguments = []
    for i, aggregate in enumerate(query.aggregates):
        if aggregate.function in ORDERED:  # the event itself, then all events of its key and time
            peers = [value for other in same if other.time == event.time for j, value in other.taken if j == i]
            arguments.append([dict(event.taken)[i], *peers])
            continue
        own = aggregate.preceding_us
        start = first - (own if isinstance(own, int) else query.window.preceding_us)
        if isinstance(aggregate.preceding_months, Months):
            start = naive_before(aggregate.preceding_months, event.time)
        arguments.append([value for other in same if other.time >= start for j, value in other.taken if j == i])
    window = Interval(event.time - query.window.preceding_us, event.time + 1)
    return Frame(window, event.keys, tuple(arguments), event.of_event)
