"""State of a group of count windows: the number of events of each key, and its last events."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from millpond.arrays import Mask
from millpond.plan.groups.plan import QueryPlan
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.fold.next_due import Due, next_count
from millpond.runtime.fold.state import State
from millpond.runtime.fold.state_size import Sizes, Stored, sizes_of_events
from millpond.runtime.rows.count_windows import needed_events, newly_counted, worth_merging
from millpond.runtime.task.levels import Levels
from millpond.runtime.task.task_values import Watermark
from millpond.state.layout.cells import Piece, merge
from millpond.state.layout.event_log import Events


class CountState(State):
    """Windows that consist of a number of events."""

    _pieces: dict[str, Piece]

    @classmethod
    def size(cls, stored: Stored) -> Sizes:
        """The size of the events that are not counted yet, and of the last counted events of each key."""

        def needed(plan: QueryPlan, log: EventLog, _every: Events) -> Mask:
            alone = msgspec.structs.replace(stored.group, queries=(plan,))
            found: Mask = np.concatenate(needed_events(log, alone, stored.mark))
            return found

        return sizes_of_events(stored, stored.group.queries, needed)

    @classmethod
    def next_due(cls, stored: Sequence[Stored], plan: QueryPlan) -> Due | None:
        """The window that the next event completes."""
        return next_count(stored, plan)

    def close(self, before: Watermark, after: Watermark) -> None:
        """Collect the rows of events that the watermark passes, and count these events by key."""
        self._pieces, size = {}, len(self.keys)
        for plan in self.group.queries:
            if (passed := newly_counted(self._log, plan, self.old, size, before, after)) is not None:
                self._pieces |= passed.pieces(plan)
                self.collect_frames(plan, passed.due(plan).cut(plan))

    def merge(self, after: Watermark) -> None:
        """Write the counts and new keys, and merge counts and events by level."""
        log = self._log
        if self._pieces:
            self.write_segment(merge(list(self._pieces.values()), len(self.keys)), 0, ())
        self.add_keys()
        self.compact(None)
        level = Levels(log.places, self.fan_in).lowest_full
        if level is None:
            return
        needed = needed_events(log, self.group, after)
        chosen = worth_merging(log.places, needed, level)
        events = log.concat_stored([log.section(log.places[i]).take(needed[i]) for i in chosen])
        log.write(self.delta, events, level + 1, tuple(log.places[i].id for i in chosen))
