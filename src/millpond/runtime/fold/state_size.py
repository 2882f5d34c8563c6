"""Sizes of stored state: what the queries of a group need together, and what each would keep without sharing.

Both are counted alike: cells (or events of windows over runs of events) with their key's slot and columns at eight
bytes, and their keys at their size in the dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints, Mask, distinct_of
from millpond.kernels.bins import coarser_bins
from millpond.model.expressions import Expression
from millpond.model.query import Query
from millpond.model.windows import Sliced
from millpond.plan.explain.event_log_text import event_bytes
from millpond.plan.groups.build import build_plan, presence_filter, tallies_needed
from millpond.plan.groups.edges import slices_of
from millpond.plan.groups.event_log import LogPlan, logged_rows, stored_values
from millpond.plan.groups.plan import GroupPlan, QueryPlan, measures_read
from millpond.plan.groups.tallies import Tally, keeps_tallies
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.retention import events_needed_from, needed_from
from millpond.runtime.event_log.select_events import filter_name, passed_mask, value_name
from millpond.runtime.event_log.tallies import TallyLog, tally_filter
from millpond.runtime.keys.current_slots import CurrentCells, read_section
from millpond.runtime.task.task_values import GroupState, Watermark
from millpond.state.layout.cells import Cells
from millpond.state.layout.event_log import Events, decode_events
from millpond.state.layout.tallies import COUNT, added_up
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

    def log(self, plan: LogPlan | None = None) -> EventLog:
        """The event log of the group, with the columns of `plan` (None: those of its events)."""
        plan = plan or self.group.events
        assert plan is not None
        keys = [read_section(self.files, place) for place in self.state.keys]
        return EventLog(self.files, self.group, plan, self.state, keys)


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
    stored: Stored, plans: Sequence[QueryPlan], needed: Callable[[QueryPlan, EventLog, Events], Mask]
) -> Sizes:  # fmt: skip
    """The sizes of queries over runs of events; `needed`: which of all events of the log a query needs.

    Raises:
        CorruptError: a section is not readable.
    """
    if not plans:
        return Sizes(StateSize(), {})
    log, key_bytes = stored.log(), stored.bytes_per_key
    every = log.concat_stored(log.parts())
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
    measures = (group.measures[place] for place in measures_read([plan]))
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


_LEADING_BYTES = 16
"""Bytes of an event's slot, time and late class in memory."""


class LoggedSize(NamedTuple):
    """The live events of a group on one instance."""

    parts: Sequence[Events]

    @classmethod
    def of(cls, group: GroupPlan, state: GroupState, files: Files) -> LoggedSize:
        """Reads the live events.

        Raises:
            CorruptError: a section is not readable.
        """
        places = state.events if group.events is not None else ()
        return cls([decode_events(read_section(files, place)) for place in places])

    @property
    def bytes(self) -> int:
        """Bytes of all events and columns."""
        return sum(_bytes(part, part.rows, part.columns) for part in self.parts)

    def alone(self, plan: QueryPlan, mark: Watermark) -> int:
        """Bytes of the events that the query would keep without sharing.

        These are its own columns of the events that it takes, while it needs them.
        """
        if plan.query.deduplicated is not None:
            return self._waiting(plan.query, mark)
        presence = presence_filter(plan.query)
        logged = [aggregate for aggregate in plan.query.aggregates if aggregate.logged]
        filters = [logged_rows(aggregate, presence) for aggregate in logged]
        values = (value for aggregate in logged for value in aggregate.arguments)
        names = {value_name(one) for value in values for one in stored_values(value)}
        names |= {filter_name(condition) for condition in filters if condition is not None}
        horizon = needed_from((plan,), mark)
        total = 0
        for part in self.parts if logged else ():
            kept = np.ones(part.rows, bool) if None in filters else _any(part, filters)
            if horizon is not None:
                kept &= part.times_us >= horizon
            total += _bytes(part, int(np.count_nonzero(kept)), names & part.columns.keys())
        return total

    def _waiting(self, query: Query, mark: Watermark) -> int:
        """Like `alone`, for a query with deduplication, whose events wait until repeats are known."""
        group = build_plan([query]).groups[0]
        kept, horizon = group.events, events_needed_from(group, mark)
        assert kept is not None
        names = {*map(value_name, kept.values), *map(filter_name, kept.filters)}
        total = 0
        for part in self.parts:
            rows = part.rows if horizon is None else int(np.count_nonzero(part.times_us >= horizon))
            total += _bytes(part, rows, names & part.columns.keys())
        return total


def _any(part: Events, filters: Sequence[Expression | None]) -> Mask:
    kept = np.zeros(part.rows, bool)
    for condition in filters:
        if condition is not None and filter_name(condition) in part.columns:
            kept |= passed_mask(part.columns, condition)
    return kept


def _bytes(part: Events, rows: int, names: Iterable[str]) -> int:
    widths = [int(part.columns[name].nbytes) / max(part.rows, 1) for name in names]
    return round(rows * (_LEADING_BYTES + sum(widths)))


_TALLY_BYTES = 20
"""Approximate stored bytes of a tally without its values: slot, time, late class and count."""


class TalliedSize(NamedTuple):
    """The live tallies of a group on one instance; `whole`: all of them, None if the group has no tallies."""

    whole: Events | None

    @classmethod
    def of(cls, group: GroupPlan, state: GroupState, files: Files) -> TalliedSize:
        """Reads the live tallies.

        Raises:
            CorruptError: a section is not readable.
        """
        if not group.tallies:
            return cls(None)
        log = TallyLog(files, group, state, [read_section(files, place) for place in state.keys])
        return cls(log.concat_stored(log.parts()))

    @property
    def bytes(self) -> int:
        """Bytes of all tallies."""
        return 0 if self.whole is None else _tally_bytes(self.whole)

    def alone(self, plan: QueryPlan, mark: Watermark) -> int:
        """Bytes of the tallies that the query would keep without sharing: in its own slices and bins, while needed."""
        if self.whole is None or not keeps_tallies(plan.query):
            return 0
        own = tallies_needed([plan.query])
        horizon, kept = needed_from((plan,), mark), self.whole
        kept = kept.take(kept.late_class <= plan.delay)
        kept = kept if horizon is None else kept.take(kept.times_us >= horizon)
        return sum(_bytes_alone(plan, tally, kept) for tally in own)


def _bytes_alone(plan: QueryPlan, tally: Tally, kept: Events) -> int:
    window = plan.query.window
    assert isinstance(window, Sliced)
    passed = [pc.fill_null(kept.columns[tally_filter(tally, condition)], False) for condition in tally.filters]
    mine = kept.take(np.flatnonzero(np.logical_or.reduce([mask.to_numpy(zero_copy_only=False) for mask in passed])))
    if not mine.rows:
        return 0
    starts, _, slices = slices_of([window], mine.times_us)
    names = [value_name(value) for value in tally.values]
    columns = {name: mine.columns[name] for name in names}
    if tally.bits:
        columns = {names[0]: pa.array(coarser_bins(np.asarray(columns[names[0]]), tally.bits).astype(np.int32))}
    filters = [tally_filter(tally, condition) for condition in tally.filters]
    columns |= {name: mine.columns[name] for name in filters}
    columns[COUNT] = mine.columns[COUNT]
    return _tally_bytes(added_up(Events(mine.slots, starts[slices], mine.late_class, columns)))


def _tally_bytes(tallies: Events) -> int:
    values = (column for name, column in tallies.columns.items() if name.startswith("v:"))
    return tallies.rows * _TALLY_BYTES + sum(map(_value_bytes, values))


def _value_bytes(column: pa.Array) -> int:
    """The bytes of the values that are not NULL."""
    held = column.drop_null()
    if not pa.types.is_string(held.type):
        return int(len(held) * held.type.bit_width / 8)
    texts = np.asarray(pc.binary_length(held))
    return len(texts) * texts.itemsize + int(texts.sum())
