"""Time frames of `OVER` queries: which events the watermark has passed, and the frame before each of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import UnsetType

from millpond.arrays import Ints, distinct_of
from millpond.kernels.ranks import ranks_and_signs
from millpond.model.calendars.months import Months
from millpond.model.windows import Range
from millpond.plan.groups.build import presence_filter
from millpond.plan.groups.plan import QueryPlan
from millpond.runtime.event_log.event_aggregates import passing
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.select_events import value_column
from millpond.runtime.keys.current_slots import used_slots
from millpond.runtime.rows.frame_rows import DueFrames
from millpond.runtime.task.task_values import Watermark
from millpond.state.layout.event_log import Events

_ALWAYS = -(1 << 63)


def _frames_of(plan: QueryPlan) -> list[int | Months]:
    """How far back the frame of each aggregate reaches, in microseconds or months."""
    own = ((aggregate.preceding_months, aggregate.preceding_us) for aggregate in plan.query.aggregates)
    return [next((one for one in pair if not isinstance(one, UnsetType)), _window(plan).preceding_us) for pair in own]


def _window(plan: QueryPlan) -> Range:
    window = plan.query.window
    assert isinstance(window, Range)
    return window


def first_answered(plan: QueryPlan, mark_us: int | None) -> int:
    """The earliest time above a watermark at which an event has a row: its frame begins after the query was added."""
    window = _window(plan)
    first = _ALWAYS if mark_us is None else window.begin_of_unit(mark_us + 1)
    return max(first, plan.from_us + window.preceding_us) if plan.from_us > _ALWAYS else first


def rows_due(log: EventLog, plan: QueryPlan, keys: int, before: Watermark, after: Watermark) -> Iterator[DueFrames]:
    """The rows of a query with a `Range` window for the events whose time the watermark reaches.

    Of the events that had their rows before, only those of the same keys are read, which are few. All slots are below
    `keys`.
    """
    delay_us, window = plan.query.delay_us, _window(plan)
    low, high = before.at(delay_us), after.at(delay_us)
    if high is None or (low is not None and low >= high):
        return
    window_us, frames = window.preceding_us, [*_frames_of(plan), window.preceding_us]
    start = _ALWAYS if low is None else window.begin_of_unit(low + 1) - window_us
    first, presence = first_answered(plan, low), presence_filter(plan.query)
    due_events = passing(log.events_in(first, window.begin_of_unit(high + 1), plan.delay), presence)
    if not due_events.rows:
        return
    earlier = log.events_in(start, first, plan.delay, named=used_slots([due_events], keys))
    events = log.concat_stored([passing(earlier, presence), due_events])
    events = events.take(_order(events, plan))
    at = np.flatnonzero(events.times_us >= first)
    times, units = events.times_us[at], events.times_us - events.times_us % window.unit
    times_seen = distinct_of(units)
    width = len(times_seen) + 1
    places = events.slots.astype(np.int64) * width + np.searchsorted(times_seen, units)
    slot_offsets = events.slots[at].astype(np.int64) * width
    begins = {one: one.before(times) if isinstance(one, Months) else units[at] - one for one in {*frames}}
    lows = {
        one: np.searchsorted(places, slot_offsets + np.searchsorted(times_seen, begin))
        for one, begin in begins.items()
    }  # fmt: skip
    highs = np.searchsorted(places, places[at], "right")
    due = DueFrames(events, [lows[one] for one in frames], [highs] * len(frames), at, times - window_us, times + 1)
    yield from due.cut(plan)


def _order(events: Events, plan: QueryPlan) -> Ints:
    """The order by slot and time; for a served query, events of equal time by the values in their rows.

    The view keeps the last of these rows, so their order must be defined.
    """
    shown = plan.query.of_event if plan.query.serve else ()
    keys = ranks_and_signs([(value_column(events, one), one.type) for one in shown])
    return np.lexsort((*keys, events.times_us, events.slots))
