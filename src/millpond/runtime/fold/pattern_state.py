"""State of a group of row patterns: recent events of each key, and where its last match ended."""

from __future__ import annotations

from functools import partial
from itertools import groupby

from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log.retention import ends_by, events_needed_from, slices_needed_from
from millpond.runtime.fold.state import State
from millpond.runtime.fold.state_size import Sizes, Stored, sizes_of_events
from millpond.runtime.fold.time_state import needed_events
from millpond.runtime.matching.pattern_rows import due_matches, matches_id
from millpond.runtime.matching.read_events import EventOrders, read_events
from millpond.runtime.rows.query_families import QueryRows
from millpond.runtime.task.task_values import Watermark
from millpond.state.layout.cells import Cells, Piece, merge


class PatternState(State):
    """Matches of patterns, all of which read one event log."""

    _ends: Cells

    @classmethod
    def migrates_by_key(cls, group: GroupPlan) -> bool:
        """Matches are found by key. Without keys, the state is rebuilt."""
        return bool(group.keys)

    @classmethod
    def size(cls, stored: Stored) -> Sizes:
        """The size of the events that matches may still begin with or read."""
        return sizes_of_events(stored, stored.group.queries, partial(needed_events, stored.mark))

    def close(self, before: Watermark, after: Watermark) -> None:
        """Collect the rows of matches that the watermark decides, and write where these matches end."""
        pieces, size = dict[str, Piece](), len(self.keys)
        plans = sorted(self.group.queries, key=lambda plan: plan.query.delay_us)
        for delay_us, some in groupby(plans, key=lambda plan: plan.query.delay_us):
            low, high = before.at(delay_us), after.at(delay_us)
            if high is None or (low is not None and low >= high):
                continue
            active = [plan for plan in some if self.writer.is_active(plan.query.name)]
            events = read_events(self._log, active, size, low, high) if active else None
            if events is None:
                continue
            orders = EventOrders(events)
            for plan in active:
                self.writer.collect((plan.query.name,), partial(self._match, plan, orders, low, high, pieces))
        self._ends = merge([*pieces.values()], max(size, 1))
        if self._ends.rows:
            self.write_segment(self._ends, 0, ())

    def merge(self, after: Watermark) -> None:
        """Begin a generation of keys, or write new keys and merge sections."""
        horizon, events_from = slices_needed_from(self.group, after), events_needed_from(self.group, after)
        expired = [horizon is not None and ends_by(place, horizon) for place in self.committed.segments]
        if self.roll([self._ends], expired, events_from):
            return
        self.add_keys()
        self.merge_events(events_from)
        self.compact(horizon)

    def _match(
        self, plan: QueryPlan, orders: EventOrders, low: int | None, high: int, pieces: dict[str, Piece]
    ) -> QueryRows:  # fmt: skip
        """Collect the rows of one query, and add where its matches end to `pieces`."""
        due = due_matches(plan, orders, self.old, len(self.keys), low, high)
        piece = due.piece(high)
        if piece is not None:
            pieces[matches_id(plan)] = piece
        self.collect_frames(plan, due.frames())
        return QueryRows([], {})
