"""State of one group in a fold: what every kind of window shares, and the steps that each kind defines.

`fold` runs the steps in one order: `migrate`, `ingest`, `close`, `emit`, `merge`. The kinds are listed in `kinds.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from millpond.kernels.columns import arrow_type
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.plan import GroupPlan, QueryPlan, column_ids
from millpond.runtime.event_log.event_aggregates import needs_events
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.retention import slices_needed_from
from millpond.runtime.event_log.tallies import TallyLog
from millpond.runtime.fold.coalesce_slices import Edges
from millpond.runtime.fold.merge_segments import merged, merges_due
from millpond.runtime.fold.next_due import Due
from millpond.runtime.fold.state_size import Sizes, Stored
from millpond.runtime.keys.buckets import buckets_of_keys
from millpond.runtime.keys.current_slots import (
    OPENING,
    CurrentCells,
    departed_fractions,
    departed_slots,
    departed_within,
    read_section,
    slots_section,
    used_slots,
    without_departed,
)
from millpond.runtime.migration.bucket_handoff import taken_over
from millpond.runtime.migration.move_state import rebuilt
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.packets.unpack import number_keys
from millpond.runtime.rows.frame_rows import DueFrames, rows_of_events
from millpond.runtime.rows.query_families import Family
from millpond.runtime.rows.row_writer import RowWriter
from millpond.runtime.rows.session_updates import SessionChanges
from millpond.runtime.rows.window_updates import Changes
from millpond.runtime.task.counters import Counters
from millpond.runtime.task.levels import Levels
from millpond.runtime.task.task_values import FoldTask, GroupState, Watermark
from millpond.state.keys.key_dictionary import KeyDictionary
from millpond.state.layout.cells import Cells, Piece, merge, needed_slices, part_of, piece_of, span_of
from millpond.state.layout.delta import DeltaWriter
from millpond.state.layout.event_log import Events
from millpond.state.layout.segments import encode_with_sizes, to_bytes
from millpond.state.ports.files import Files
from millpond.state.ports.private_folder import is_own


@dataclass(frozen=True, kw_only=True)
class FoldContext:
    """What the states of one fold share: its task and instance, and where sections, rows and counters go.

    `fan_in`: this many sections of one level are merged into one of the next.
    """

    task: FoldTask
    instance: int
    files: Files
    delta: DeltaWriter
    counters: Counters
    writer: RowWriter
    fan_in: int


class State(ABC):
    """One group of one instance in one epoch; `committed` is what `migrate` returned."""

    def __init__(self, context: FoldContext, group: GroupPlan, committed: GroupState) -> None:
        task, files = context.task, context.files
        self.task, self.group, self.delta, self.counters = task, group, context.delta, context.counters
        self.fan_in = context.fan_in
        self.writer = context.writer
        self.takes_over = context.instance in task.sources
        self.no_merges = task.merges_wait or self.takes_over
        self.committed = committed
        self._added = 0
        types = [arrow_type(key.type) for key in group.keys]
        own = bool(task.cache) and is_own(Path(task.cache))
        cache = Path(task.cache) / task.pond / f"{group.id}-{context.instance}" if own else None
        sections = [read_section(files, place) for place in self.committed.keys]
        self.departed = departed_slots(files, self.committed)
        buckets = partial(buckets_of_keys, group, buckets=len(task.owners))
        self.keys = KeyDictionary(types, sections, cache, buckets, self.departed)
        stored = self.stored_log(group)
        self.log = None if stored is None else EventLog(files, group, stored, self.committed, sections)
        self.tallies = TallyLog(files, group, self.committed, sections) if group.tallies else None
        self.logs = [log for log in (self.log, self.tallies) if log is not None]
        self.old, self.old_tiles, self.old_revisions = (
            CurrentCells(files, self.committed, places, sections, group.delays_us)
            for places in (self.committed.segments, self.committed.tiles, self.committed.revisions)
        )

    @classmethod
    def stored_log(cls, group: GroupPlan) -> LogPlan | None:
        """What is stored of each event of a group; None without an event log."""
        return group.events

    @classmethod
    def migrates_by_key(cls, _group: GroupPlan) -> bool:
        """Whether only the moved keys are written when buckets change their owner; else the state is rebuilt."""
        return False

    @classmethod
    def migrate(cls, context: FoldContext, group: GroupPlan) -> GroupState:
        """The stored state of a group on the instance, with that of buckets that move to it in this epoch.

        Raises:
            CorruptError: a section is not readable.
        """
        task, instance, files, delta = context.task, context.instance, context.files, context.delta
        if instance not in task.sources:
            return task.of(instance, group)
        if cls.migrates_by_key(group):
            return taken_over(task, instance, group, files, delta, context.fan_in)
        return rebuilt(task, instance, group, files, delta)

    @classmethod
    def needed_cells(cls, stored: Stored) -> Cells:
        """The stored cells that some open window needs or the stream retains; without tiles, which only repeat cells.

        Raises:
            CorruptError: a section is not readable.
        """
        group, state, files, mark = stored
        horizon = slices_needed_from(group, mark)
        departed = departed_slots(files, state)
        here = without_departed(
            (part_of(cells, needed_slices(cells, horizon)) for cells in stored.segments()), departed, state.key_count
        )
        pieces = [piece_of(cells) for cells in here]
        slots = max((int(piece.slots.max()) for piece in pieces if len(piece.slots)), default=0)
        return merge(pieces, slots + 1)

    @classmethod
    @abstractmethod
    def size(cls, stored: Stored) -> Sizes:
        """The size of stored state: what all queries of the group need, and what each would keep without sharing.

        Raises:
            CorruptError: a section is not readable.
        """

    @classmethod
    def next_due(cls, _stored: Sequence[Stored], _plan: QueryPlan) -> Due | None:
        """The earliest window of a query that has one of its events and no row yet, in the state of all instances.

        None where no row waits for time: it is emitted when its event is read, or later events decide about it.

        Raises:
            CorruptError: a section is not readable.
        """
        return None

    @property
    def _log(self) -> EventLog:
        """The event log, in the states of groups that have one."""
        assert self.log is not None
        return self.log

    def ingest(self, parts: Sequence[GroupPart], before: Watermark, after: Watermark) -> None:
        """Number the keys of the new packets, and add what they contain to the cells and logs."""
        self.number(parts)

    @abstractmethod
    def close(self, before: Watermark, after: Watermark) -> None:
        """Collect the rows of windows that the watermark passes, and of windows with updating results."""

    def emit(self) -> None:
        """Write the rows that windows have collected."""
        self.writer.flush()

    @abstractmethod
    def merge(self, after: Watermark) -> None:
        """Write the new keys, and merge old sections or begin a generation of keys."""

    def number(self, parts: Sequence[GroupPart]) -> list[Piece]:
        """Return the new cells, in slots of their keys, and write the new events."""
        group_input = number_keys(self.group, self.keys, parts)
        for log, some in ((self.log, group_input.logged), (self.tallies, group_input.tallied)):
            if some and log is not None:
                events = log.concat_stored(some)
                log.add(events)
                log.write(self.delta, events, 0, ())
        return group_input.pieces

    def write_segment(
        self, cells: Cells, level: int, supersedes: tuple[str, ...], kind: str = "",
        more: Mapping[str, int | str] | None = None,
    ) -> None:  # fmt: skip
        first, last = (cells.slices.start_us.min(), cells.slices.end_us.max()) if cells.rows else (0, 0)
        info: dict[str, int | str | list[int]] = {
            "first": int(first),
            "last": int(last),
            "level": level,
            "generation": self.committed.generation,
            "delays": list(self.group.delays_us),
            "slots": [*(slots := span_of(cells))],
            **({} if self.departed is None else {"gone": departed_within(slots, self.departed)}),
            **(more or {}),
        }
        if kind:
            info[kind] = 1
        data, sizes = encode_with_sizes(cells)
        info |= sizes
        self._added += 0 if level else data.size
        self.delta.add("segment", self.group.id, data, cells.rows, info, supersedes)

    def _write_keys(self, first: int, end: int, level: int, supersedes: tuple[str, ...]) -> None:
        data = to_bytes(self.keys.batch(first, end))
        info = {"base": first, "level": level, "generation": self.committed.generation}
        self.delta.add("keys", self.group.id, data, end - first, info, supersedes)

    def add_keys(self) -> None:
        """Write the new keys, and merge sections of keys by level; those of one level are adjacent."""
        if len(self.keys) > self.keys.committed:
            self._write_keys(self.keys.committed, len(self.keys), 0, ())
        places = self.committed.keys
        due = None if self.no_merges else Levels(places, self.fan_in).due()
        if due is None:
            return
        bases = np.cumsum([0, *(place.rows for place in places)]).tolist()
        first, end = bases[due.chosen[0]], bases[due.chosen[-1] + 1]
        self._write_keys(first, end, due.level, tuple(place.id for place in due.sections_in(places)))

    def roll(self, added: Sequence[Cells], expired: Sequence[bool], events_from: int | None = None) -> bool:
        """Begin a new generation without unused keys, if at least half of all keys are unused; returns whether it did.

        A key is unused if no live cell or event refers to it. `added`: the cells that this epoch adds. `expired`: which
        of the old segments, then tiles, then revisions, are no longer needed. `events_from`: events before this time
        are not needed.

        This is only checked when sections of keys would be merged, because it reads the slots of all live cells. It is
        not checked while buckets migrate, because a migration takes time of its own.
        """
        state = self.committed
        if self.task.moving or self.no_merges or Levels(state.keys, self.fan_in).lowest_full is None:
            return False
        old = [*self.old, *self.old_tiles, *self.old_revisions]
        live = (cells for cells, is_expired in zip(old, expired, strict=True) if not is_expired)
        users: list[Cells | Events] = [*added, *live]
        has_keys_in_events = self.group.deduplicated is not None or len(self.group.celled) < len(self.group.queries)
        if self.log is not None and has_keys_in_events:  # a key may occur in events only
            users += self.log.needed(events_from)
        used = np.flatnonzero(used_slots(users, len(self.keys)))
        if 2 * len(used) > len(self.keys):
            return False
        replaced = [place.id for place in (*state.keys, *state.left, *state.portions)]  # begun merges start again
        segments = [*state.segments, *state.tiles, *state.revisions]
        for place, cells, is_expired in zip(segments, old, expired, strict=True):
            if is_expired:
                replaced.append(place.id)  # it refers to slots of the generation that ends here
            elif place.generation != state.generation:
                self.write_segment(cells, place.level, (place.id,), state.segment_kind(place), {"gone": 0})
        for log in self.logs:
            for place in log.places:
                if place.generation != state.generation:
                    log.write(self.delta, log.section(place), place.level, (place.id,))
        data = to_bytes(self.keys.opening(used))
        info = {"base": 0, "level": OPENING, "generation": state.generation + 1}
        self.delta.add("keys", self.group.id, data, len(used), info, tuple(replaced))
        owned_here = self.keys.here(used)
        if owned_here is not None and not owned_here.all():  # live cells still refer to keys that moved away
            departed, info = np.flatnonzero(~owned_here), {"generation": state.generation + 1}
            self.delta.add("left", self.group.id, slots_section(departed), len(departed), info)
        return True

    def collect_changes(
        self, make: Callable[[], Changes | SessionChanges], before: Watermark, after: Watermark
    ) -> None:
        """Collect the rows of queries with updating results, and write how often each row was corrected."""
        plans = [plan for plan in self.group.queries if plan.query.changing and self.writer.is_active(plan.query.name)]
        if not plans:
            return
        changes = make()
        for plan in plans:
            self.writer.collect((plan.query.name,), partial(changes.rows, plan, before, after))
        corrected = changes.corrected([plan.query.name for plan in plans if self.writer.is_active(plan.query.name)])
        if corrected.rows:
            self.write_segment(corrected, 0, (), "revisions")

    def collect_frames(self, plan: QueryPlan, parts: Iterable[DueFrames]) -> None:
        """Collect the rows of one query, part by part."""
        family = Family(self.group, [plan])
        for due in parts if self.writer.is_active(plan.query.name) else ():
            make = partial(rows_of_events, self.group, family, due, self.keys, self.task.buckets)
            if not self.writer.collect(family.names, make):
                break

    def events_between(self, plans: Sequence[QueryPlan], start_us: int, end_us: int, delay: int) -> Events | None:
        """The events of a time range, if one of the queries needs them."""
        if self.log is None or not any(needs_events(plan) for plan in plans):
            return None
        return self.log.events_by_slot(start_us, end_us, delay)

    def merge_events(self, horizon: int | None) -> None:
        """Merge sections of events by level, and drop events before the horizon."""
        if self.log is not None:
            self.log.merge(self.delta, horizon, self.fan_in)

    def compact(self, horizon: int | None, edges: Callable[[], Edges] | None = None) -> None:
        """Merge segments by level.

        Slices that no window needs and keys that moved to other instances are dropped, and slices are coalesced as far
        as `edges` allow. If nothing of the segments is needed, no segment is written: they are retired in this epoch.
        """
        state, keys, committed = self.committed, len(self.keys), self.keys.committed
        parts = (state.segments, self.old), (state.tiles, self.old_tiles), (state.revisions, self.old_revisions)
        for places, old in parts:
            fractions = [] if self.task.moving else departed_fractions(state, places, old, self.departed)
            for due in merges_due(
                places, state.portions, self.fan_in, self._added, self.task.moving, fractions, self.no_merges
            ):
                ends = tuple(places[i].id for i in due.chosen)
                kind = state.segment_kind(places[due.chosen[0]])
                needed_at = edges() if edges and not kind else None
                ids = column_ids(self.group, kind)
                merge = merged(due, old, self.departed, committed, keys, horizon, ids, needed_at)
                needed = horizon is None or any((old[i].slices.end_us > horizon).any() for i in due.chosen)
                # if everything that is needed has moved away, a segment without cells replaces them
                if merge.cells.rows or needed:
                    self.write_segment(merge.cells, due.level, () if merge.until else ends, kind, merge.info(due, ends))
