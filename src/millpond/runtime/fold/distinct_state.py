"""State of queries that keep the first events of each key: the keys read before, and until when each is remembered.

A key that is remembered forever is stored in the key dictionary only. A key that will be forgotten also has an event in
the log: its time says when, and it has no columns. A query that keeps several events of a key has one such event for
each; they are counted. The values of an event are needed only in the epoch that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millpond.arrays import Ints, Mask
from millpond.model.expressions import Expression
from millpond.model.windows import Distinct
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.plan.groups.ranked_rows import counted_rows
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.event_order import deciding
from millpond.runtime.event_log.retention import events_needed_from
from millpond.runtime.event_log.select_events import column_types
from millpond.runtime.fold.state import State
from millpond.runtime.fold.state_size import Sizes, StateSize, Stored, sizes_of_events
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.packets.unpack import number_keys
from millpond.runtime.rows.frame_rows import DueFrames
from millpond.runtime.task.task_values import Watermark
from millpond.state.layout.event_log import OFFSET, Events, concatenated


class DistinctState(State):
    """Rows of the first event of each key, or of its first n events."""

    _new: Events
    _left: Ints
    _firsts: dict[tuple[Expression, ...], Events]

    @classmethod
    def stored_log(cls, _group: GroupPlan) -> LogPlan | None:
        """Only slot and time of each event are stored."""
        return LogPlan((), (), True)

    @classmethod
    def size(cls, stored: Stored) -> Sizes:
        """The size of the keys that are remembered, and of the times until which they are."""
        if not _is_logged(stored.group):
            keys = stored.state.key_count
            size = StateSize(0, keys, round(keys * stored.bytes_per_key))
            return Sizes(size, {plan.query.name: size for plan in stored.group.queries})
        horizon = events_needed_from(stored.group, stored.mark)

        def needed(_plan: QueryPlan, _log: EventLog, every: Events) -> Mask:
            return np.ones(every.rows, bool) if horizon is None else every.times_us >= horizon

        return sizes_of_events(stored, stored.group.queries, needed)

    def ingest(self, parts: Sequence[GroupPart], before: Watermark, after: Watermark) -> None:
        """Find the first events of each key that has rows left."""
        assert self.group.events is not None
        logged = number_keys(self.group, self.keys, parts).logged
        events = concatenated(logged, column_types(self.group.events, any(OFFSET in part.columns for part in logged)))
        self._left, counted = self._rows_left(before), _counted(self.group)
        self._new = events if counted is not None else events.take(may_be_first(events, self._left))
        self._firsts = {}
        firsts = self._first_events(self.group.queries[0])
        for plan in self.group.queries if counted is None else ():
            self.counters.of(plan.query.name).repeated += events.rows - firsts.rows
        if _is_logged(self.group) and firsts.rows:
            bare = firsts._replace(columns={})  # slots and times, which are the same for all queries of the group
            self._log.add(bare)
            self._log.write(self.delta, bare, 0, ())

    def close(self, before: Watermark, after: Watermark) -> None:
        """Collect the rows of these events."""
        for plan in self.group.queries:
            events = self._first_events(plan)
            at = np.arange(events.rows)
            due = DueFrames(events, [at], [at + 1], at, events.times_us, events.times_us + 1)
            self.collect_frames(plan, due.cut(plan))

    def _first_events(self, plan: QueryPlan) -> Events:
        """The first events of each key for one query; the values that it reads decide between events of one time."""
        values = () if OFFSET in self._new.columns else plan.query.of_event
        if values not in self._firsts:
            self._firsts[values] = self._new.take(first_of_each(self._new, self._left, values))
        return self._firsts[values]

    def merge(self, after: Watermark) -> None:
        """Write the new keys, or begin a generation without forgotten keys; merge times by level."""
        if not _is_logged(self.group):
            self.add_keys()
            return
        horizon = events_needed_from(self.group, after)
        if self.roll([], [], horizon):
            return
        self.add_keys()
        self.merge_events(horizon)

    def _rows_left(self, before: Watermark) -> Ints:
        """How many more rows each slot may have in this epoch."""
        counted = _counted(self.group)
        left = np.full(len(self.keys), 1 if counted is None else counted)
        if not _is_logged(self.group):
            left[: self.keys.committed] = 0
            return left
        for events in self._log.needed(events_needed_from(self.group, before)):
            left -= np.bincount(events.slots, minlength=len(left))
        return left


def _window(group: GroupPlan) -> Distinct:
    window = group.windows[0]
    assert isinstance(window, Distinct)
    return window


def _counted(group: GroupPlan) -> int | None:
    return counted_rows(group.windows[0])


def _is_logged(group: GroupPlan) -> bool:
    """Whether rows are in the event log: keys are forgotten, or have several rows."""
    return _window(group).lasts_us is not None or _counted(group) is not None


def may_be_first(events: Events, left: Ints) -> Ints:
    """The ascending positions of the earliest events of each slot that has a row left; if the source has an order, of
    all its events.
    """
    new = np.flatnonzero(left[events.slots] > 0)
    if OFFSET in events.columns:
        return new
    earliest = np.full(len(left), np.iinfo(np.int64).max)
    np.minimum.at(earliest, events.slots[new], events.times_us[new])
    found: Ints = new[events.times_us[new] == earliest[events.slots[new]]]
    return found


def first_of_each(events: Events, remaining: Ints, values: Sequence[Expression]) -> Ints:
    """The positions of the first events of each slot, ascending: at most `left[slot]` of them.

    The source's order decides if it is known, else the event time, and then the values that one query reads, so that
    its rows do not depend on other queries.
    """
    new = np.flatnonzero(remaining[events.slots] > 0)
    slots = events.slots[new]
    several = np.bincount(slots, minlength=1)[slots] > remaining[slots]
    taken, rows = new[~several], new[several]
    some = events.take(rows)
    ties = deciding(some, values)
    order = np.lexsort((*(ties if OFFSET in some.columns else [*ties, some.times_us]), some.slots))
    slots = some.slots[order]
    numbers = np.arange(len(slots)) - np.searchsorted(slots, slots)
    return np.sort(np.concatenate([taken, rows[order[numbers < remaining[slots]]]]))
