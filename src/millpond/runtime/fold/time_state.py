"""State of a group of time windows: cells by slice, tiles over slices, and events where queries need them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import numpy as np

from millpond.arrays import Ints, Mask, distinct_rows
from millpond.model.windows import Range, Sliced
from millpond.plan.groups.build import presence_filter
from millpond.plan.groups.edges import slices_of
from millpond.plan.groups.plan import GroupPlan, QueryPlan, measures_read
from millpond.runtime.event_log.deduplicate import decided
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.retention import ends_by, events_needed_from, needed_from, slices_needed_from
from millpond.runtime.event_log.select_events import passed_mask
from millpond.runtime.event_log.tallies import needs_tallies, tallies_needed_from, uncounted_needed_from
from millpond.runtime.fold.coalesce_slices import needed_edges
from millpond.runtime.fold.next_due import Due, next_frame, next_window
from millpond.runtime.fold.state import State
from millpond.runtime.fold.state_size import Sizes, Stored, have_rows, measures_of, sizes_of_cells, sizes_of_events
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.rows.query_families import Family, families
from millpond.runtime.rows.time_frames import rows_due
from millpond.runtime.rows.window_rows import BlockKeys, rows_of_block
from millpond.runtime.rows.window_updates import Changes
from millpond.runtime.task.task_values import Watermark
from millpond.runtime.windows.choose_combine import AnyBlock, blocks_of
from millpond.runtime.windows.closing import Closing, at_once, batches, closing_windows, each_closes, together
from millpond.runtime.windows.combine import edges_of, slices_between
from millpond.runtime.windows.tiles import LiveCells, new_tiles
from millpond.state.layout.cells import Cells, Piece, merge
from millpond.state.layout.event_log import Events


class TimeState(State):
    """Windows made of slices (sliding, calendar and growing ones), and frames of time before each event."""

    _fresh: Cells
    _live: LiveCells
    _tiles: Cells | None

    @classmethod
    def migrates_by_key(cls, group: GroupPlan) -> bool:
        """Windows are combined by key. Without keys, and for events that wait for deduplication, state is rebuilt."""
        return bool(group.keys) and group.deduplicated is None

    @classmethod
    def size(cls, stored: Stored) -> Sizes:
        """The size of cells, tallies and events; alone, a query has cells between its own edges."""
        framed = [plan for plan in stored.group.queries if isinstance(plan.query.window, Range)]
        cells = cls.needed_cells(stored)
        sliced = sizes_of_cells(stored, cells, partial(_cells_alone, stored, cells), events=not framed)
        return sliced.plus(sizes_of_events(stored, framed, partial(needed_events, stored.mark)))

    @classmethod
    def next_due(cls, stored: Sequence[Stored], plan: QueryPlan) -> Due | None:
        """The window, or the frame of an event."""
        find = next_frame if isinstance(plan.query.window, Range) else next_window
        return find(stored, plan)

    def ingest(self, parts: Sequence[GroupPart], before: Watermark, after: Watermark) -> None:
        """Write the new cells as a segment, and the tiles that are complete now."""
        pieces = self.number(parts)
        if self.log is not None and self.group.deduplicated is not None:
            pieces += self._decided(self.log, before, after)
        self._fresh = merge(pieces, max(len(self.keys), 1))
        if self._fresh.rows:
            self.write_segment(self._fresh, 0, ())
        live = LiveCells.near(self.group, self.old, self.old_tiles, self._fresh, before, after)
        self._tiles = None if self.task.drained else new_tiles(self.group, live, before, after, len(self.keys))
        if self._tiles is not None:
            self.write_segment(self._tiles, 0, (), "tiles")
            live = live._replace(tiles=[*live.tiles, self._tiles])
        self._live = live

    def close(self, before: Watermark, after: Watermark) -> None:
        """Collect the rows of windows that the watermark passes, of updating windows, and of single events."""
        if self._live.slices:
            self._close_windows(self._live, before, after)
        for plan in self.group.queries:
            if self.log is not None and isinstance(plan.query.window, Range):
                self.collect_frames(plan, rows_due(self.log, plan, len(self.keys), before, after))

    def merge(self, after: Watermark) -> None:
        """Begin a generation of keys, or write new keys and merge sections."""
        tiles = [] if self._tiles is None else [self._tiles]
        horizon, events_from = slices_needed_from(self.group, after), events_needed_from(self.group, after)
        places = *self.committed.segments, *self.committed.tiles, *self.committed.revisions
        expired = [horizon is not None and ends_by(place, horizon) for place in places]
        uncounted = () if self.tallies is None else self.tallies.uncounted
        if not uncounted and self.roll([self._fresh, *tiles], expired, events_from):
            return  # merges wait for the next epoch, as a segment can be replaced only once per epoch
        self.add_keys()
        if not uncounted:
            self.merge_events(events_from)
        if self.tallies is not None and uncounted and not self.takes_over:
            self.tallies.adopt(self.delta, self.log, uncounted_needed_from(self.group, after))
        elif self.tallies is not None and not uncounted:
            self.tallies.merge(self.delta, tallies_needed_from(self.group, after), self.fan_in)
        self.compact(horizon, cache(lambda: needed_edges(self.group, after, [*self.old_tiles, *tiles])))

    def _decided(self, log: EventLog, before: Watermark, after: Watermark) -> list[Piece]:
        """The cells of events that the watermark has passed and that do not repeat an earlier event."""
        decision = decided(self.group, log, len(self.keys), before, after)
        for plan in self.group.queries:
            count = decision.repeated.get(self.group.measures[plan.presence].filter, 0)
            if count:
                self.counters.of(plan.query.name).repeated += count
        return [] if decision.piece is None else [decision.piece]

    def _close_windows(self, live: LiveCells, before: Watermark, after: Watermark) -> None:
        closing = closing_windows(self.group, *live.bounds_us(), before, after)
        read = 0 if self.group.deduplicated is not None else sum(log.rows for log in self.logs)
        for run in batches(closing, at_once(read)):
            for windows in together(self.group, run):
                self._emit_windows(windows, live, windows[0].delay)

        def changes() -> Changes:
            old, logs = LiveCells.of(self.old, self.old_tiles), (self.old_revisions, self.log, self.tallies)
            return Changes(self.group, self.keys, self.task.buckets, old, live, self._fresh, *logs)

        self.collect_changes(changes, before, after)
        self.no_merges |= bool(closing) and not each_closes(self.group, before, after)

    def _emit_windows(self, run: Sequence[Closing], live: LiveCells, delay: int) -> None:
        """Collect the rows of all queries with one delay for a run of closing windows."""
        group, occurring = self.group, {window.window for window in run}
        plans = [
            plan
            for plan in group.queries
            if plan.delay == delay
            and not plan.query.changing
            and group.windows.index(plan.query.window) in occurring
            and self.writer.is_active(plan.query.name)
        ]
        if not plans:
            return
        measures = [group.measures[i] for i in measures_read(plans)]
        edges, parts = edges_of(run), live.parts
        chosen = slices_between(live, edges, delay)
        self.counters.pond.slices_read += sum(int(np.count_nonzero(mask)) for mask in chosen)
        blocks = blocks_of(group, run, parts, chosen, measures, len(self.keys))
        query_families = families(group, plans)
        events, tallies = self.events_between(plans, edges[0], edges[-1], delay), None
        if self.tallies is not None and any(map(needs_tallies, plans)):
            tallies = self.tallies.events_by_slot(edges[0], edges[-1], delay)
        windows = {family: _windows_of(family.first, group, run) for family in query_families}
        for block in blocks:
            keys = BlockKeys.of(group, self.keys, block, events, tallies)
            for family, family_windows in list(windows.items()):
                if family_windows and not self._emit_family(family, block, family_windows, keys):
                    del windows[family]
                    for single in (Family(group, [plan]) for plan in family.plans if len(family.plans) > 1):
                        if self._emit_family(single, block, family_windows, keys):
                            windows[single] = family_windows

    def _emit_family(self, family: Family, block: AnyBlock, windows: Sequence[Closing], keys: BlockKeys) -> bool:
        """Add the rows of a family; False if one of its queries raised an error."""
        read = self.writer.are_read(family.names)
        make = partial(rows_of_block, self.group, family, block, windows, keys, self.task.buckets, read)
        return self.writer.collect(family.names, make)


def _windows_of(plan: QueryPlan, group: GroupPlan, run: Sequence[Closing]) -> list[Closing]:
    """The windows of a run that belong to a query and begin while the query is in force."""
    position, first, end = group.windows.index(plan.query.window), plan.from_us, plan.before_us
    return [window for window in run if window.window == position and first <= window.start_us < end]


def _cells_alone(stored: Stored, cells: Cells, plan: QueryPlan) -> tuple[Ints, set[str]]:
    """The slots of the cells that a query would keep in slices of its own, and the measures of its columns."""
    group, window, measures = stored.group, plan.query.window, measures_of(stored.group, plan)
    assert isinstance(window, Sliced)
    starts = np.repeat(cells.slices.start_us, np.diff(cells.offsets))
    needed = have_rows(group, plan, cells) & (np.repeat(cells.slices.late_class, np.diff(cells.offsets)) <= plan.delay)
    if not needed.any():
        return np.zeros(0, np.int64), measures
    _, ends_us, slices = slices_of([window], starts)
    horizon = needed_from((plan,), stored.mark)
    if horizon is not None:
        needed &= ends_us[slices] > horizon
    (slots, _), _ = distinct_rows([cells.slots[needed].astype(np.int64), slices[needed]])
    return slots, measures


def needed_events(mark: Watermark, plan: QueryPlan, _log: EventLog, every: Events) -> Mask:
    """The events that frames of a query need."""
    horizon, presence = needed_from([plan], mark), presence_filter(plan.query)
    needed: Mask = every.late_class <= plan.delay
    if horizon is not None:
        needed &= every.times_us >= horizon
    if presence is not None:
        needed &= passed_mask(every.columns, presence)
    return needed
