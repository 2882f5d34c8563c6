"""State of a group with one row for each distinct key: the keys, and until when each of them is remembered.

A key without an end is in the key dictionary, which is all that is stored. A key that is forgotten also has an event in
the log, without columns, whose time says when. The values of an event are needed only in the epoch that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millpond.arrays import Ints, Mask
from millpond.model.windows import Distinct
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log.deduplicate import ties_in
from millpond.runtime.event_log.event_log import GroupLog
from millpond.runtime.event_log.retention import events_needed_from
from millpond.runtime.event_log.select_events import column_types
from millpond.runtime.fold.state import State
from millpond.runtime.fold.state_size import Sizes, StateSize, Stored, sizes_of_events
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.packets.unpack import number_keys
from millpond.runtime.rows.frame_rows import DueFrames
from millpond.runtime.task.task_values import Watermark
from millpond.state.layout.event_log import OFFSET, Events, joined


class DistinctState(State):
    """Rows of the first event of each key."""

    _log: GroupLog
    _firsts: Events

    @classmethod
    def stored_log(cls, _group: GroupPlan) -> LogPlan | None:
        """Only slot and time of each event are stored."""
        return LogPlan((), (), True)

    @classmethod
    def size(cls, stored: Stored) -> Sizes:
        """The size of the keys that are remembered, and of the times until which they are."""
        if _is_endless(stored.group):
            keys = stored.state.key_count
            size = StateSize(0, keys, round(keys * stored.bytes_per_key))
            return Sizes(size, {plan.query.name: size for plan in stored.group.queries})
        horizon = events_needed_from(stored.group, stored.mark)

        def needed(_plan: QueryPlan, _log: GroupLog, every: Events) -> Mask:
            return np.ones(every.rows, bool) if horizon is None else every.times_us >= horizon

        return sizes_of_events(stored, stored.group.queries, needed)

    def ingest(self, parts: Sequence[GroupPart], before: Watermark, after: Watermark) -> None:
        """Find the first event of each key that is not remembered."""
        assert self.log is not None and self.group.events is not None
        self._log = self.log
        logged = number_keys(self.group, self.keys, parts).logged
        events = joined(logged, column_types(self.group.events, any(OFFSET in part.columns for part in logged)))
        self._firsts = events.take(first_of_each(events, self._remembered(before), self.group))
        for plan in self.group.queries:
            self.counters.of(plan.query.name).repeated += events.rows - self._firsts.rows
        if not _is_endless(self.group) and self._firsts.rows:
            bare = self._firsts._replace(columns={})
            self._log.arrived(bare)
            self._log.write(self.delta, bare, 0, ())

    def close(self, before: Watermark, after: Watermark) -> None:
        """Collect the rows of these events."""
        events = self._firsts
        at = np.arange(events.rows)
        due = DueFrames(events, [at], at + 1, at, events.times_us, events.times_us + 1)
        for plan in self.group.queries:
            self.collect_frames(plan, due.cut(plan))

    def merge(self, after: Watermark) -> None:
        """Write the new keys, or begin a generation without forgotten keys; merge times by level."""
        if _is_endless(self.group):
            self.add_keys()
            return
        horizon = events_needed_from(self.group, after)
        if self.roll([], [], horizon):
            return
        self.add_keys()
        self.merge_events(horizon)

    def _remembered(self, before: Watermark) -> Mask:
        """Which slots belong to keys that were remembered when the epoch began."""
        known = np.zeros(len(self.keys), bool)
        if _is_endless(self.group):
            known[: self.keys.committed] = True
            return known
        for events in self._log.needed(events_needed_from(self.group, before)):
            known[events.slots] = True
        return known


def _is_endless(group: GroupPlan) -> bool:
    """Whether keys are remembered for ever."""
    window = group.windows[0]
    assert isinstance(window, Distinct)
    return window.lasts_us is None


def first_of_each(events: Events, known: Mask, group: GroupPlan) -> Ints:
    """The positions of the first event of each slot that is not `known`, ascending.

    The source's order decides if it is known, else the event time, and then the values.
    """
    new = np.flatnonzero(~known[events.slots])
    slots = events.slots[new]
    several = np.bincount(slots, minlength=1)[slots] > 1
    single, rows = new[~several], new[several]
    some = events.take(rows)
    keys: list[Ints] = ties_in(some, group)
    order = np.lexsort((*keys, some.slots) if OFFSET in events.columns else (*keys, some.times_us, some.slots))
    firsts = rows[order[np.flatnonzero(np.diff(some.slots[order], prepend=-1))]]
    return np.sort(np.concatenate([single, firsts]))
