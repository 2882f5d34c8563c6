"""Joins without keys: instances form a grid, and events are assigned to its rows and columns by a hash of their values.

A left event goes to all instances of one row, a right event to all of one column, so each pair meets in one instance.
The hash makes a repeated attempt send the same events.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints
from millpond.model.types import is_known
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.joins import COLUMN, EVERY, ONE, ROW
from millpond.runtime.event_log.select_events import LoggedRows, value_name
from millpond.state.keys.keys import hashes_of
from millpond.state.layout.event_log import Events


class Grid(NamedTuple):
    """Instance i is in row i // columns and column i % columns; instances after the last row store no events."""

    rows: int
    columns: int


def grid_of(instances: int) -> Grid:
    """The grid that is as square as complete rows allow.

    >>> grid_of(4), grid_of(6), grid_of(7)
    (Grid(rows=2, columns=2), Grid(rows=2, columns=3), Grid(rows=2, columns=3))
    """
    rows = isqrt(instances)
    return Grid(rows, instances // rows)


def dealt_events(log: LogPlan, dealt: str, logged: LoggedRows, instances: int) -> Iterator[tuple[int, Events]]:
    """The events for each instance that stores any; for `dealt` see `plan.groups.joins.dealt`."""
    events = logged.events(logged.index, np.zeros(len(logged.index), np.int64))
    if not events.rows:
        return
    if dealt == EVERY:
        yield from ((instance, events) for instance in range(instances))
        return
    count = _count(dealt, instances)
    line = _lines(log, events, count)
    own = [events.take(np.flatnonzero(line == number)) for number in range(count)]
    for instance in range(instances):
        number = _line(dealt, instance, instances)
        if number is not None and own[number].rows:
            yield instance, own[number]


def holders(dealt: str, instances: int) -> tuple[int, ...]:
    """The instances that together store each event exactly once.

    >>> holders(ROW, 6), holders(COLUMN, 6), holders(ONE, 3), holders(EVERY, 3)
    ((0, 3), (0, 1, 2), (0, 1, 2), (0,))
    """
    if dealt == EVERY:
        return (0,)
    lines = [_line(dealt, instance, instances) for instance in range(instances)]
    return tuple(lines.index(number) for number in range(_count(dealt, instances)))


def dealt_again(log: LogPlan, dealt: str, events: Events, instance: int, instances: int) -> Ints:
    """The positions of the events that an instance stores after they are dealt again, to `instances` instances.

    Values that a section lacks are not hashed. Its events are then assigned to other lines than before, but each event
    is still assigned to exactly one line.
    """
    if dealt == EVERY:
        return np.arange(events.rows)
    return np.flatnonzero(_lines(log, events, _count(dealt, instances)) == _line(dealt, instance, instances))


def _count(dealt: str, instances: int) -> int:
    grid = grid_of(instances)
    return {ROW: grid.rows, COLUMN: grid.columns, ONE: instances}[dealt]


def _line(dealt: str, instance: int, instances: int) -> int | None:
    """The line (row or column) of an instance; None if it is after the last row."""
    if dealt == ONE:
        return instance
    grid = grid_of(instances)
    if instance >= grid.rows * grid.columns:
        return None
    return instance // grid.columns if dealt == ROW else instance % grid.columns


def _lines(log: LogPlan, events: Events, count: int) -> Ints:
    """The line of each event, out of `count`, from a hash of its time and of those of its values that can be hashed."""
    names = [value_name(value) for value in log.values if is_known(value.type)]
    columns = [events.columns[name] for name in names if name in events.columns]
    hashes = hashes_of([pa.array(events.times_us), *columns], events.rows)
    lines: Ints = (hashes % np.uint64(count)).astype(np.int64)
    return lines
