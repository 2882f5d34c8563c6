"""Count windows, over the last n events of a key: which rows are due, and which events must be kept.

An event is counted when the watermark reaches its time, because then all earlier events have arrived. The state of a
key is the number of its counted events, in cells of one slice that never ends, and its last events, in the event log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from millpond.arrays import Ints, Mask
from millpond.kernels.ranks import ranks, signs
from millpond.model.expressions import Literal
from millpond.model.types import has_floats
from millpond.model.windows import Counted
from millpond.plan.groups.build import presence_filter
from millpond.plan.groups.event_log import logged_rows
from millpond.plan.groups.measures import measures_of
from millpond.plan.groups.plan import GroupPlan, QueryPlan, fingerprint
from millpond.runtime.event_log.event_aggregates import passing
from millpond.runtime.event_log.event_log import GroupLog
from millpond.runtime.event_log.select_events import passed_mask, value_column
from millpond.runtime.keys.current_slots import used_slots
from millpond.runtime.rows.frame_rows import DueFrames
from millpond.runtime.task.task_values import SectionPlace, Watermark
from millpond.state.layout.cells import Cells, Piece, Slices
from millpond.state.layout.event_log import OFFSET, PARTITION, Events

ALL_TIME = Slices(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
"""The only slice of the cells with counts."""


class CountedEvents(NamedTuple):
    """The events of a query that are counted in this epoch, and the earlier events of their keys that windows need.

    `events` are sorted by slot, then by their order within the key. `places`: the positions of the events that are
    counted now. `numbers`: for each of these, the number of counted events of its key, this one included.
    """

    events: Events
    places: Ints
    numbers: Ints

    def piece(self, plan: QueryPlan) -> Piece:
        """The number of events that are counted now, by key."""
        slots, counts = np.unique(self.events.slots[self.places], return_counts=True)
        return Piece(ALL_TIME, np.zeros(len(slots), np.int64), slots, {f"{counter_of(plan)}:n": counts})

    def due(self, plan: QueryPlan) -> DueFrames:
        """The rows that are due: their window ends with an event that is counted now."""
        window = plan.query.window
        assert isinstance(window, Counted)
        last = self.numbers == 1 if window.once is True else self.numbers % window.every == 0
        at, numbers = self.places[last], self.numbers[last]
        low = at + 1 - np.minimum(numbers, window.size)
        times = self.events.times_us
        own = [one.preceding_rows for one in plan.query.aggregates]
        lows = [low if not isinstance(n, int) else at + 1 - np.minimum(numbers, n + 1) for n in own]
        ends = times[at] + plan.query.row_per_event  # as the windows of time frames, they end just after the event
        return DueFrames(self.events, [*lows, low], at + 1, at, times[low], ends)


def counter_of(plan: QueryPlan) -> str:
    """The id of a query's counts, twelve hex digits; queries with equal filter, delay and start share the counts."""
    return fingerprint((presence_filter(plan.query), plan.query.delay_us, plan.from_us))


def newly_counted(
    log: GroupLog, plan: QueryPlan, counts: Sequence[Cells], keys: int, before: Watermark, after: Watermark
) -> CountedEvents | None:
    """The events of a query whose time the watermark reaches; None if there are none. All slots are below `keys`."""
    window, presence = plan.query.window, presence_filter(plan.query)
    assert isinstance(window, Counted)
    low, high = before.at(plan.query.delay_us), after.at(plan.query.delay_us)
    if high is None or (low is not None and low >= high):
        return None
    start = plan.from_us if low is None else max(plan.from_us, low + 1)
    events = passing(log.within(start, high + 1, plan.delay), presence)
    if not events.rows:
        return None
    if window.size > 1:
        earlier = log.within(plan.from_us, start, plan.delay, named=used_slots([events], keys))
        events = log.together([passing(earlier, presence), events])
    events = events.take(_order(events, plan))
    places = np.arange(events.rows) if low is None else np.flatnonzero(events.times_us > low)
    slots = events.slots[places]
    first = np.flatnonzero(np.diff(slots, prepend=-1))
    nth = np.arange(len(places)) - np.repeat(first, np.diff(np.append(first, len(places))))
    return CountedEvents(events, places, _earlier_counts(counts, counter_of(plan), keys)[slots] + nth + 1)


def _earlier_counts(parts: Sequence[Cells], counter: str, keys: int) -> Ints:
    """The number of events of each key that were counted in earlier epochs."""
    counts = np.zeros(keys, np.int64)
    for cells in parts:
        column = cells.columns.get(f"{counter}:n")
        if column is not None:
            counts[cells.slots] += column  # there is one slice, so a slot occurs once
    return counts


def _order(events: Events, plan: QueryPlan) -> Ints:
    """The order by slot and time; events of equal time by source partition and offset, or else by contribution."""
    if OFFSET in events.columns:
        ties = [ranks(events.columns[PARTITION], "string"), np.asarray(events.columns[OFFSET])]
    else:
        ties = _contributions(events, plan)
    return np.lexsort((*reversed(ties), events.times_us, events.slots))


def _contributions(events: Events, plan: QueryPlan) -> list[Ints]:
    """For each aggregate, whether it takes an event, and the values that it takes; then what rows show of the event.

    Events that are equal in all of these are interchangeable for the query.
    """
    presence, contributions, zeros = presence_filter(plan.query), list[Ints](), list[Ints]()
    for aggregate in plan.query.aggregates:
        rows = logged_rows(aggregate, presence) if aggregate.logged else measures_of(aggregate, presence)[-1].filter
        takes = np.ones(events.rows, bool)
        if rows is not None:
            takes = passed_mask(events.columns, rows)
        contributions.append(takes.astype(np.int64))
        for one in aggregate.arguments:
            if not isinstance(one, Literal):
                column = value_column(events, one)
                contributions.append(np.where(takes, ranks(column, one.type), 0))
                if has_floats(one.type):
                    zeros.append(np.where(takes, signs(column, one.type), 0))
    for value in plan.query.of_event:
        column = value_column(events, value)
        contributions.append(ranks(column, value.type))
        if has_floats(value.type):
            zeros.append(signs(column, value.type))
    return contributions + zeros


def needed_events(log: GroupLog, group: GroupPlan, mark: Watermark) -> list[Mask]:
    """For each live section of the log, then for the events of this epoch, which events future rows need.

    Those are the events that are not counted yet, and the last counted events of each key.
    """
    parts = log.parts()
    events = log.together(parts)
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
        order = _order(counted, plan)
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
