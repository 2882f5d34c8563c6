"""Sizes of stored state: what the queries of a group need together, and what each would keep without sharing.

Both are counted alike: cells (or events of windows over runs of events) with their key's slot and columns at eight
bytes, and their keys at their size in the dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints, Mask, distinct_of
from millpond.plan.explain.event_log_text import event_bytes
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log.event_log import GroupLog
from millpond.runtime.fold.event_sizes import LoggedSize, TalliedSize
from millpond.runtime.keys.current_slots import CurrentCells, read_section
from millpond.runtime.task.task_values import GroupState, Watermark
from millpond.state.layout.cells import Cells
from millpond.state.layout.event_log import Events
from millpond.state.ports.files import Files

WORD_BYTES = 8


class StateSize(NamedTuple):
    """An amount of state: cells, their keys, and bytes (eight for each column and slot)."""

    cells: int = 0
    keys: int = 0
    bytes: int = 0

    def plus(self, other: StateSize) -> StateSize:
        """The sum of both."""
        return StateSize(*(a + b for a, b in zip(self, other, strict=True)))


class Sizes(NamedTuple):
    """The size of what some queries need together, and of what each of them would keep alone, by its name."""

    shared: StateSize
    alone: Mapping[str, StateSize]

    def plus(self, other: Sizes) -> Sizes:
        """The sum of both."""
        added = {name: size.plus(self.alone.get(name, StateSize())) for name, size in other.alone.items()}
        return Sizes(self.shared.plus(other.shared), {**self.alone, **added})


class Stored(NamedTuple):
    """The stored state of a group on one instance, and the watermark that decides what open windows need of it."""

    group: GroupPlan
    state: GroupState
    files: Files
    mark: Watermark

    @property
    def bytes_per_key(self) -> float:
        """The mean size of a key in the dictionary."""
        keys = self.state.key_count
        return sum(place.size for place in self.state.keys) / keys if keys else 0.0

    def segments(self) -> CurrentCells:
        """The cells of slices or sessions, or the counts of events."""
        keys = [read_section(self.files, place) for place in self.state.keys[:1]]
        return CurrentCells(self.files, self.state, self.state.segments, keys, self.group.delays_us)

    def log(self, plan: LogPlan | None = None) -> GroupLog:
        """The event log of the group, with the columns of `plan` (None: those of its events)."""
        plan = plan or self.group.events
        assert plan is not None
        keys = [read_section(self.files, place) for place in self.state.keys]
        return GroupLog(self.files, self.group, plan, self.state, keys)


def sizes_of_cells(
    stored: Stored, cells: Cells, alone: Callable[[QueryPlan], tuple[Ints, set[str]]], *, events: bool
) -> Sizes:  # fmt: skip
    """The sizes of the queries that are combined from `cells`, with their tallies, and their `events` where a log has
    no other readers.

    `alone`: the slots of the cells that a query would keep, with the ids of its columns' measures.

    Raises:
        CorruptError: a section is not readable.
    """
    if not cells.rows or not stored.group.celled:
        return Sizes(StateSize(), {})
    logged = LoggedSize.of(stored.group, stored.state, stored.files)
    tallied = TalliedSize.of(stored.group, stored.state, stored.files)
    more = StateSize(bytes=tallied.bytes + (logged.bytes if events else 0))
    found = {}
    for plan in stored.group.celled:
        slots, measures = alone(plan)
        own = logged.alone(plan, stored.mark) + tallied.alone(plan, stored.mark)
        size = _size(slots, columns_of(cells, measures), stored.bytes_per_key) if len(slots) else StateSize()
        found[plan.query.name] = size.plus(StateSize(bytes=own))
    return Sizes(_size(cells.slots, columns_of(cells, None), stored.bytes_per_key).plus(more), found)


def sizes_of_events(
    stored: Stored, plans: Sequence[QueryPlan], needed: Callable[[QueryPlan, GroupLog, Events], Mask]
) -> Sizes:  # fmt: skip
    """The sizes of queries over runs of events; `needed`: which of all events of the log a query needs.

    Raises:
        CorruptError: a section is not readable.
    """
    if not plans:
        return Sizes(StateSize(), {})
    log, key_bytes = stored.log(), stored.bytes_per_key
    every = log.together(log.parts())
    each = [needed(plan, log, every) for plan in plans]
    alone = {
        plan.query.name: _events(every, mask, event_bytes(plan), key_bytes)
        for plan, mask in zip(plans, each, strict=True)
    }
    whole = np.logical_or.reduce(each)
    return Sizes(_events(every, whole, max(map(event_bytes, plans)), key_bytes), alone)


def columns_of(cells: Cells, measures: set[str] | None) -> int:
    """The number of distinct columns; a column that always equals another is stored once, and counted once."""
    wanted = (c for name, c in cells.columns.items() if measures is None or name.partition(":")[0] in measures)
    return len({id(column) for column in wanted})


def measures_of(group: GroupPlan, plan: QueryPlan) -> set[str]:
    """The ids of the measures that a query reads, as its cells name them."""
    places = {plan.presence, *(place for places in plan.measures for place in places)}
    measures = (group.measures[place] for place in places)
    return {measure.base.id if group.signed else measure.id for measure in measures}


def have_rows(group: GroupPlan, plan: QueryPlan, cells: Cells) -> Mask:
    """The cells with events that pass the query's filter, late or not."""
    presence = group.measures[plan.presence]
    if cells.slices.signed is None:
        held: Mask = cells.columns[f"{presence.id}:n"] > 0
        return held
    passing = cells.slices.signed.table.passing([presence.filter_id], cells.slices.signatures)[:, 0]
    return np.repeat(passing, np.diff(cells.offsets))


def _size(slots: npt.NDArray[np.integer] | Ints, columns: int, key_bytes: float) -> StateSize:
    cells, keys = len(slots), len(distinct_of(slots))
    return StateSize(cells, keys, cells * (columns + 1) * WORD_BYTES + round(keys * key_bytes))


def _events(every: Events, needed: Mask, event: int, key_bytes: float) -> StateSize:
    events, keys = int(np.count_nonzero(needed)), len(distinct_of(every.slots[needed]))
    return StateSize(events, keys, events * event + round(keys * key_bytes))
