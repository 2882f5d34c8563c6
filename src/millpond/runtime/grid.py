"""Joins without keys: the instances form a grid, and events are dealt to its rows and columns by their values.

A left event goes to all instances of one row, a right one to all of one column, so a pair meets where they cross. By
values, so that an attempt that is repeated sends the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints
from millpond.model.types import is_known
from millpond.plan.event_log import LogPlan
from millpond.plan.join import COLUMN, EVERY, ONE, ROW
from millpond.runtime.logged import LoggedRows, value_name
from millpond.state.event_log import Events
from millpond.state.keys import hashes_of


class Grid(NamedTuple):
    """Instance i stands in row i // columns and column i % columns; those behind the last row hold nothing."""

    rows: int
    columns: int


def grid_of(instances: int) -> Grid:
    """As square as whole rows allow.

    >>> grid_of(4), grid_of(6), grid_of(7)
    (Grid(rows=2, columns=2), Grid(rows=2, columns=3), Grid(rows=2, columns=3))
    """
    rows = isqrt(instances)
    return Grid(rows, instances // rows)


def dealt_events(log: LogPlan, dealt: str, logged: LoggedRows, instances: int) -> Iterator[tuple[int, Events]]:
    """The events that each instance keeps, of those that have some; `dealt` as in `plan.join.dealt`."""
    events = logged.events(logged.index, np.zeros(len(logged.index), np.int64))
    if not events.rows:
        return
    if dealt == EVERY:
        yield from ((instance, events) for instance in range(instances))
        return
    grid = grid_of(instances)
    lines = {ROW: grid.rows, COLUMN: grid.columns, ONE: instances}[dealt]
    line = _lines(log, events, lines)
    own = [events.take(np.flatnonzero(line == number)) for number in range(lines)]
    for instance in range(instances if dealt == ONE else grid.rows * grid.columns):
        number = {ROW: instance // grid.columns, COLUMN: instance % grid.columns, ONE: instance}[dealt]
        if own[number].rows:
            yield instance, own[number]


def _lines(log: LogPlan, events: Events, count: int) -> Ints:
    """One of `count` lines for each event, by its time and those of its values that can be hashed."""
    columns = [events.columns[value_name(value)] for value in log.values if is_known(value.type)]
    hashes = hashes_of([pa.array(events.times_us), *columns], events.rows)
    lines: Ints = (hashes % np.uint64(count)).astype(np.int64)
    return lines
