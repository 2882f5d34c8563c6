"""State of a group with the top events of each key: the earliest one, the latest one, or the first ones by rank.

The event log has these events with their values. Replaced events stay in it until their section is merged. This does
not matter, because the top events among all stored events of a key are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np

from millpond.arrays import Ints, Mask
from millpond.kernels.columns import from_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.model.windows import Distinct
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.event_order import deciding
from millpond.runtime.event_log.select_events import column_types, value_column
from millpond.runtime.fold.state import State
from millpond.runtime.fold.state_size import Sizes, Stored, sizes_of_events
from millpond.runtime.keys.current_slots import used_slots
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.packets.row_batches import RowBatch
from millpond.runtime.packets.unpack import number_keys
from millpond.runtime.rows.frame_rows import DueFrames, rows_of_events
from millpond.runtime.rows.query_families import Family, QueryRows
from millpond.runtime.rows.ranked_rows import RankedChanges, first_ranked
from millpond.runtime.rows.window_updates import DELETE, UPSERT, with_operation
from millpond.runtime.task.levels import Levels
from millpond.runtime.task.task_values import Watermark
from millpond.state.layout.event_log import OFFSET, Events, concatenated

_ALWAYS, _NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class TopState(State):
    """Rows of the top events of each key, which change."""

    _old: Events
    _new: Events
    _ranked: RankedChanges | None

    @classmethod
    def size(cls, stored: Stored) -> Sizes:
        """The size of the top events."""

        def needed(_plan: QueryPlan, _log: EventLog, every: Events) -> Mask:
            found = np.zeros(every.rows, bool)
            found[top_events(every, stored.group)] = True
            return found

        return sizes_of_events(stored, stored.group.queries, needed)

    def ingest(self, parts: Sequence[GroupPart], before: Watermark, after: Watermark) -> None:
        """Find the new events that are top events of their key, and write them."""
        group = self.group
        assert group.events is not None
        logged = number_keys(group, self.keys, parts).logged
        fresh = concatenated(logged, column_types(group.events, any(OFFSET in part.columns for part in logged)))
        named = used_slots([fresh], len(self.keys))
        old = self._log.events_in(_ALWAYS, _NEVER, 0, named=named)
        old = old.take(np.sort(top_events(old, group)))
        every = self._log.concat_stored([old, fresh])
        best = top_events(every, group)
        self._new = every.take(best[best >= old.rows])
        self._old = old.take(np.isin(old.slots, self._new.slots))
        self._ranked = None
        if self._new.rows and _window(group).ranked is not None:
            self._ranked = RankedChanges(group, every, np.arange(old.rows), best)
        if self._new.rows:
            self._log.add(self._new)
            self._log.write(self.delta, self._new, 0, ())

    def close(self, before: Watermark, after: Watermark) -> None:
        """Collect the changes of rows."""
        for plan in self.group.queries:
            if self._new.rows and self.writer.is_active(plan.query.name):
                self.writer.collect((plan.query.name,), partial(self._changes, plan))

    def merge(self, after: Watermark) -> None:
        """Write the new keys, and merge events by level, without those that were replaced."""
        self.add_keys()
        places = self._log.places
        due = Levels(places, self.fan_in, self._log.most_rows).due(self.fan_in)
        if due is not None:
            full = due.sections_in(places)
            events = self._log.concat_stored([self._log.section(place) for place in full])
            events = events.take(np.sort(top_events(events, self.group)))
            self._log.write(self.delta, events, due.level, tuple(place.id for place in full))

    def _changes(self, plan: QueryPlan) -> QueryRows:
        """The new rows; and of replaced rows those that met HAVING, if the new one does not."""
        if self._ranked is not None:
            return QueryRows(list(self._ranked.batches(plan, self.keys, self.task.buckets)), {})
        old, new = self._old, self._new
        rows, withheld = self._rows(plan, new)
        batches = [RowBatch(one.owner, with_operation(one.rows, UPSERT, None)) for one in rows]
        if plan.query.having is not None and old.rows:
            order = np.argsort(new.slots)
            places = order[np.searchsorted(new.slots, old.slots, sorter=order)]
            gone = old.take(_meets(plan, old) & ~_meets(plan, new)[places])
            bare = msgspec.structs.replace(plan, query=msgspec.structs.replace(plan.query, having=None))
            deleted = self._rows(bare, gone)[0] if gone.rows else ()
            batches += [RowBatch(one.owner, with_operation(one.rows, DELETE, None)) for one in deleted]
        return QueryRows(batches, withheld)

    def _rows(self, plan: QueryPlan, events: Events) -> tuple[Sequence[RowBatch], dict[str, int]]:
        at = np.arange(events.rows)
        due = DueFrames(events, [at], [at + 1], at, events.times_us, events.times_us + 1)
        found = rows_of_events(self.group, Family(self.group, [plan]), due, self.keys, self.task.buckets)
        return found.rows, dict(found.withheld)


def top_events(events: Events, group: GroupPlan) -> Ints:
    """The positions of the top events. Without ranks, each slot has one event.

    Of events with equal times, this is the first or last one in the order of the source if it is known, else in the
    order of the rows' values.
    """
    window = _window(group)
    assert group.events is not None
    if window.ranked is not None:
        return first_ranked(events, group)
    last = window.keeps == "latest"
    best = np.full(int(events.slots.max(initial=-1)) + 1, _ALWAYS if last else _NEVER)
    (np.maximum if last else np.minimum).at(best, events.slots, events.times_us)
    rows = np.flatnonzero(events.times_us == best[events.slots])
    tied = np.bincount(events.slots[rows], minlength=1)[events.slots[rows]] > 1
    some = events.take(rows[tied])
    order = np.lexsort((*deciding(some, group.events.values), some.slots))
    slots = some.slots[order]
    ends = np.diff(slots, append=-1) if last else np.diff(slots, prepend=-1)
    return np.concatenate([rows[~tied], rows[tied][order[np.flatnonzero(ends)]]])


def _window(group: GroupPlan) -> Distinct:
    window = group.windows[0]
    assert isinstance(window, Distinct)
    return window


def _meets(plan: QueryPlan, events: Events) -> Mask:
    """Which events' rows meet HAVING, which only has conditions on values of the event."""
    inputs = {
        f"event:{i}": from_arrow(value_column(events, value), value.type)
        for i, value in enumerate(plan.query.of_event)
    }
    assert plan.query.having is not None
    return np.broadcast_to(Evaluator(inputs, events.rows)(plan.query.having).is_true(), (events.rows,))
