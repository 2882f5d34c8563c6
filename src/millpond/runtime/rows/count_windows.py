"""Count windows, over the last n events of a key: which rows are due, and which events must be kept.

An event is counted when the watermark reaches its time, because then all earlier events have arrived. The state of a
key is the number of its counted events and its running totals, in cells of one slice that never ends, and its last
events, in the event log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from millpond.arrays import Ints, Mask
from millpond.model.windows import Counted
from millpond.plan.groups.build import presence_filter
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log.event_aggregates import passing
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.select_events import passed_mask
from millpond.runtime.keys.current_slots import used_slots
from millpond.runtime.rows.counted_order import counted_order, counter_of, totals_of
from millpond.runtime.rows.frame_rows import DueFrames
from millpond.runtime.rows.running_totals import ALL_TIME, running_columns, total_piece
from millpond.runtime.task.task_values import SectionPlace, Watermark
from millpond.state.layout.cells import Cells, Piece
from millpond.state.layout.event_log import Events


@dataclass(frozen=True)
class CountedEvents:
    """The events of a query that are counted in this epoch, and the earlier events of their keys that rows need.

    `events` are sorted by slot, then by their order within the key. `fresh`: which of them are counted now, the last
    ones of each key. `firsts`: the position of the first event of each key. `key_of`: for each event, the position of
    its key in `firsts`. `before`: for each key, the number of events that were counted before. `stored`: the cells of
    earlier epochs. `drains`: the rows that wait for further events are emitted now, without these; rows of events up to
    `drained_us` were emitted by earlier drains.
    """

    events: Events
    fresh: Mask
    firsts: Ints
    key_of: Ints
    before: Ints
    stored: Sequence[Cells]
    drains: bool
    drained_us: int | None

    @cached_property
    def added(self) -> Ints:
        """For each key, the number of events that are counted now."""
        return np.bincount(self.key_of[self.fresh], minlength=len(self.firsts))

    @cached_property
    def ends(self) -> Ints:
        """For each key, the position after its last event."""
        return np.append(self.firsts[1:], self.events.rows)

    @cached_property
    def numbers(self) -> Ints:
        """For each event, the number of counted events of its key up to it."""
        return self.before[self.key_of] + 1 + np.arange(self.events.rows) - (self.ends - self.added)[self.key_of]

    def pieces(self, plan: QueryPlan) -> Iterator[tuple[str, Piece]]:
        """What is added to the cells, by id: the number of events that are counted now, by key, and running totals."""
        counter, keys = counter_of(plan), np.flatnonzero(self.added)
        slots, counts = self.events.slots[self.firsts[keys]], self.added[keys]
        if len(keys):
            yield counter, Piece(ALL_TIME, np.zeros(len(keys), np.int64), slots, {f"{counter}:n": counts})
        totals = totals_of(plan)
        after = self.before + self.added - _kept(plan)
        leaving = ~self._within(plan) & (self.numbers <= after[self.key_of]) if totals else self.fresh[:0]
        if leaving.any():
            events = self.events.take(leaving)
            for name, measure in totals.items():
                yield name, total_piece(name, measure, events)

    def due(self, plan: QueryPlan) -> DueFrames:
        """The rows that are due: the last event of their window is counted now."""
        window, numbers, ends = plan.query.window, self.numbers, self.ends[self.key_of]
        assert isinstance(window, Counted)
        awaited = window.following or 0
        last = np.arange(self.events.rows) + awaited
        due = last >= ends - self.added[self.key_of]
        if not self.drains:
            due &= last < ends
        if awaited and self.drained_us is not None:
            due &= self.events.times_us > self.drained_us
        due &= numbers == 1 if window.once is True else numbers % window.every == 0
        at = np.flatnonzero(due)
        lows, highs = list[Ints](), list[Ints]()
        for preceding, following in (*_own_frames(plan), (_preceding(window), awaited)):
            lows.append(np.minimum(at - np.minimum(numbers[at] - 1, preceding), ends[at]))
            highs.append(np.maximum(np.minimum(at + 1 + following, ends[at]), lows[-1]))
        times, totals = self.events.times_us, totals_of(plan)
        running = {}
        if totals:
            keys = self.firsts, self.key_of
            running = running_columns(plan, totals, self.stored, self.events, keys, self._within(plan), at)
        after_us = times[at] + plan.query.row_per_event  # as the windows of time frames, they end just after the event
        return DueFrames(self.events, lows, highs, at, times[lows[-1]], after_us, running)

    def _within(self, plan: QueryPlan) -> Mask:
        """Which events the stored running totals contain."""
        within: Mask = self.numbers <= (self.before - _kept(plan))[self.key_of]
        return within


def _kept(plan: QueryPlan) -> int:
    """The number of counted events of each key that stay in the event log."""
    assert isinstance(plan.query.window, Counted)
    return plan.query.window.size - 1


def _preceding(window: Counted) -> int:
    """How many events before the event of a row its window has."""
    return window.size - 1 - (window.following or 0)


def _own_frames(plan: QueryPlan) -> Iterator[tuple[int, int]]:
    """How many events the frame of each aggregate reaches back and forward from the event of the row."""
    window = plan.query.window
    assert isinstance(window, Counted)
    for one in plan.query.aggregates:
        own = one.preceding_rows
        yield own if isinstance(own, int) else _preceding(window), one.following_rows or 0


def newly_counted(
    log: EventLog, plan: QueryPlan, counts: Sequence[Cells], keys: int, before: Watermark, after: Watermark
) -> CountedEvents | None:
    """The events of a query whose time the watermark reaches; None if there are none. All slots are below `keys`."""
    window, presence = plan.query.window, presence_filter(plan.query)
    assert isinstance(window, Counted)
    low, high = before.at(plan.query.delay_us), after.at(plan.query.delay_us)
    if high is None or (low is not None and low >= high):
        return None
    start = plan.from_us if low is None else max(plan.from_us, low + 1)
    events = passing(log.events_in(start, high + 1, plan.delay), presence)
    drains = bool(window.following) and after.floor_us != before.floor_us
    if window.size > 1 and (events.rows or drains):
        named = None if drains else used_slots([events], keys)
        earlier = log.events_in(plan.from_us, start, plan.delay, named=named)
        events = log.concat_stored([passing(earlier, presence), events])
    if not events.rows:
        return None
    events = events.take(counted_order(events, plan))
    fresh = np.ones(events.rows, bool) if low is None else events.times_us > low
    first = np.diff(events.slots, prepend=-1) != 0
    firsts, key_of = np.flatnonzero(first), np.cumsum(first) - 1
    earlier = _earlier_counts(counts, counter_of(plan), keys)[events.slots[firsts]]
    return CountedEvents(events, fresh, firsts, key_of, earlier, counts, drains, before.floor_us)


def _earlier_counts(parts: Sequence[Cells], counter: str, keys: int) -> Ints:
    """The number of events of each key that were counted in earlier epochs."""
    counts = np.zeros(keys, np.int64)
    for cells in parts:
        column = cells.columns.get(f"{counter}:n")
        if column is not None:
            counts[cells.slots] += column  # there is one slice, so a slot occurs once
    return counts


def needed_events(log: EventLog, group: GroupPlan, mark: Watermark) -> list[Mask]:
    """For each live section of the log, then for the events of this epoch, which events future rows need.

    Those are the events that are not counted yet, and the last counted events of each key.
    """
    parts = log.parts()
    events = log.concat_stored(parts)
    needed = np.zeros(events.rows, bool)
    for plan in group.queries:
        window, presence = plan.query.window, presence_filter(plan.query)
        assert isinstance(window, Counted)
        of_query: Mask = (events.late_class <= plan.delay) & (events.times_us >= plan.from_us)
        if presence is not None:
            of_query &= passed_mask(events.columns, presence)
        at = mark.at(plan.query.delay_us)
        if at is None:
            needed |= of_query
            continue
        needed |= of_query & (events.times_us > at)
        counted_rows = np.flatnonzero(of_query & (events.times_us <= at))
        counted = events.take(counted_rows)
        order = counted_order(counted, plan)
        slots = counted.slots[order]
        last = np.searchsorted(slots, slots, "right") - np.arange(len(slots)) < window.size
        needed[counted_rows[order[last]]] = True
    return np.split(needed, np.cumsum([part.rows for part in parts])[:-1])


def worth_merging(places: Sequence[SectionPlace], needed: Sequence[Mask], level: int) -> list[int]:
    """The positions of the sections to merge into one of the next level.

    These are the sections of `level`, which is full, and those of which nothing is needed. If less than half of all
    stored events is needed, these are all sections.
    """
    needed_counts = [int(np.count_nonzero(mask)) for mask in needed[: len(places)]]
    if 2 * sum(needed_counts) < sum(place.rows for place in places):
        return list(range(len(places)))
    return [i for i, place in enumerate(places) if place.level == level or not needed_counts[i]]
