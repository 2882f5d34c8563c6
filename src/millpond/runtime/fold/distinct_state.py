"""State of queries that keep the first events of each key: the keys read before, and until when each is remembered.

A key that is remembered forever is stored in the key dictionary only. A key that will be forgotten also has an event in
the log: its time says when, and it has no columns. A query that keeps several events of a key has one such event for
each; they are counted. The values of an event are needed only in the epoch that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millpond.arrays import Ints, Mask
from millpond.model.windows import Distinct
from millpond.plan.groups.distinct import counted_rows
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log.deduplicate import ties_in
from millpond.runtime.event_log.event_log import GroupLog
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

    _firsts: Events

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

        def needed(_plan: QueryPlan, _log: GroupLog, every: Events) -> Mask:
            return np.ones(every.rows, bool) if horizon is None else every.times_us >= horizon

        return sizes_of_events(stored, stored.group.queries, needed)

    def ingest(self, parts: Sequence[GroupPart], before: Watermark, after: Watermark) -> None:
        """Find the first events of each key that has rows left."""
        assert self.group.events is not None
        logged = number_keys(self.group, self.keys, parts).logged
        events = concatenated(logged, column_types(self.group.events, any(OFFSET in part.columns for part in logged)))
        self._firsts = events.take(first_of_each(events, self._rows_left(before), self.group))
        for plan in self.group.queries if _counted(self.group) is None else ():
            self.counters.of(plan.query.name).repeated += events.rows - self._firsts.rows
        if _is_logged(self.group) and self._firsts.rows:
            bare = self._firsts._replace(columns={})
            self._log.add(bare)
            self._log.write(self.delta, bare, 0, ())

    def close(self, before: Watermark, after: Watermark) -> None:
        """Collect the rows of these events."""
        events = self._firsts
        at = np.arange(events.rows)
        due = DueFrames(events, [at], [at + 1], at, events.times_us, events.times_us + 1)
        for plan in self.group.queries:
            self.collect_frames(plan, due.cut(plan))

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


def first_of_each(events: Events, left: Ints, group: GroupPlan) -> Ints:
    """The positions of the first events of each slot, ascending: at most `left[slot]` of them.

    The source's order decides if it is known, else the event time, and then the values.
    """
    new = np.flatnonzero(left[events.slots] > 0)
    slots = events.slots[new]
    several = np.bincount(slots, minlength=1)[slots] > left[slots]
    taken, rows = new[~several], new[several]
    some = events.take(rows)
    order = np.lexsort((*order_in(some, group), some.slots))
    slots = some.slots[order]
    numbers = np.arange(len(slots)) - np.searchsorted(slots, slots)
    return np.sort(np.concatenate([taken, rows[order[numbers < left[slots]]]]))


def order_in(events: Events, group: GroupPlan) -> list[Ints]:
    """Sort keys of the events of a key, the major one last: those of a query with n rows by its values in their order,
    so that it does not depend on other queries.
    """
    assert group.events is not None
    ties = deciding(events, group.events.values) if _counted(group) is not None else ties_in(events, group)
    return ties if OFFSET in events.columns else [*ties, events.times_us]
