"""State of one group in a fold: what every kind of window shares, and the steps that each kind defines.

`fold` runs the steps in one order: `ingest`, `close`, `emit`, `merge`. The kinds are in `time_state.py`,
`session_state.py` and `count_state.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from millpond.kernels.columns import arrow_type
from millpond.plan.groups.plan import GroupPlan, QueryPlan, column_ids
from millpond.runtime.event_log.bin_counts import TallyLog
from millpond.runtime.event_log.event_aggregates import needs_events
from millpond.runtime.event_log.event_log import GroupLog
from millpond.runtime.fold.coalesce_slices import Edges
from millpond.runtime.fold.merge_segments import merged, merges_due
from millpond.runtime.fold.row_collector import Collected
from millpond.runtime.gather.shadow_diff import Differing
from millpond.runtime.keys.buckets import buckets_of_keys
from millpond.runtime.keys.key_compaction import (
    OPENING,
    Attached,
    are_named,
    full_level,
    left_slots,
    left_within,
    read_section,
    shares_left,
    slots_section,
)
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.packets.unpack import numbered
from millpond.runtime.rows.frame_rows import Due, rows_of_events
from millpond.runtime.rows.query_families import Family
from millpond.runtime.rows.session_updates import SessionChanges
from millpond.runtime.rows.window_updates import Changes
from millpond.runtime.task.task_values import FoldTask, Watermark
from millpond.state.keys.key_dictionary import KeyDictionary
from millpond.state.layout.cells import Cells, Piece, span_of
from millpond.state.layout.delta import DeltaWriter
from millpond.state.layout.event_log import Events
from millpond.state.layout.segments import as_told, to_bytes
from millpond.state.ports.files import Files
from millpond.state.ports.private_folder import is_own


@dataclass(frozen=True, kw_only=True)
class FoldContext:
    """What the states of one fold share: its task and instance, and where sections, counters and reasons go.

    `fan_in`: this many sections of one level are merged into one of the next.
    """

    task: FoldTask
    instance: int
    files: Files
    delta: DeltaWriter
    counts: dict[str, int]
    reasons: dict[str, str]
    differing: Differing
    fan_in: int


class State(ABC):
    """One group of one instance in one epoch."""

    def __init__(self, context: FoldContext, group: GroupPlan) -> None:
        task, files = context.task, context.files
        self.task, self.group, self.delta, self.counts = task, group, context.delta, context.counts
        self.fan_in = context.fan_in
        self.collected = Collected(task, group, context.delta, context.counts, context.reasons, context.differing)
        self.long = task.merges_wait or context.instance in task.sources  # then merges wait for another epoch
        self.committed = task.of(context.instance, group)
        self._added = 0
        types = [arrow_type(key.type) for key in group.keys]
        own = bool(task.cache) and is_own(Path(task.cache))
        cache = Path(task.cache) / task.pond / f"{group.id}-{context.instance}" if own else None
        sections = [read_section(files, place) for place in self.committed.keys]
        self.left = left_slots(files, self.committed)
        buckets = partial(buckets_of_keys, group, buckets=len(task.owners))
        self.keys = KeyDictionary(types, sections, cache, buckets, self.left)
        self.log = None if group.events is None else GroupLog(files, group, group.events, self.committed, sections)
        self.tallies = TallyLog(files, group, self.committed, sections) if group.tallies else None
        self.logs = [log for log in (self.log, self.tallies) if log is not None]
        self.old, self.old_tiles, self.old_revisions = (
            Attached(files, self.committed, places, sections, group.delays_us)
            for places in (self.committed.segments, self.committed.tiles, self.committed.revisions)
        )

    @abstractmethod
    def ingest(self, parts: Sequence[GroupPart], before: Watermark, after: Watermark) -> None:
        """Number the keys of the new packets, and add what they contain to the cells and logs."""

    @abstractmethod
    def close(self, before: Watermark, after: Watermark) -> None:
        """Collect the rows of windows that the watermark passes, and of windows with updating results."""

    def emit(self) -> None:
        """Write the collected rows to the delta."""
        self.collected.write()

    @abstractmethod
    def merge(self, after: Watermark) -> None:
        """Write the new keys, and merge old sections or begin a generation of keys."""

    def number(self, parts: Sequence[GroupPart]) -> list[Piece]:
        """Return the new cells, in slots of their keys, and write the new events."""
        came = numbered(self.group, self.keys, parts)
        for log, some in ((self.log, came.logged), (self.tallies, came.tallied)):
            if some and log is not None:
                events = log.together(some)
                log.arrived(events)
                log.write(self.delta, events, 0, ())
        return came.pieces

    def write_segment(
        self, cells: Cells, level: int, supersedes: tuple[str, ...], apart: str = "",
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
            **({} if self.left is None else {"gone": left_within(slots, self.left)}),
            **(more or {}),
        }
        if apart:
            info[apart] = 1
        data, told = as_told(cells)
        info |= told
        self._added += 0 if level else data.size
        self.delta.add("segment", self.group.id, data, cells.rows, info, supersedes)

    def _write_keys(self, first: int, end: int, level: int, supersedes: tuple[str, ...]) -> None:
        data = to_bytes(self.keys.batch(first, end))
        info = {"base": first, "level": level, "generation": self.committed.generation}
        self.delta.add("keys", self.group.id, data, end - first, info, supersedes)

    def add_keys(self) -> None:
        """Write the new keys, and merge `fan_in` sections of keys of one level into one of the next level.

        Sections of one level are adjacent.
        """
        if len(self.keys) > self.keys.committed:
            self._write_keys(self.keys.committed, len(self.keys), 0, ())
        places = self.committed.keys
        level = None if self.long else full_level(places, self.fan_in)
        if level is None:
            return
        bases = np.cumsum([0, *(place.rows for place in places)]).tolist()
        chosen = [i for i, place in enumerate(places) if place.level == level]
        first, end = bases[chosen[0]], bases[chosen[-1] + 1]
        self._write_keys(first, end, level + 1, tuple(places[i].id for i in chosen))

    def roll(self, added: Sequence[Cells], expired: Sequence[bool], events_from: int | None = None) -> bool:
        """Begin a new generation without unused keys, if at least half of all keys are unused; returns whether it did.

        A key is unused if no live cell or event refers to it. `added`: the cells that this epoch adds. `expired`: which
        of the old segments, then tiles, then revisions, are no longer needed. `events_from`: events before this time
        are not needed.

        This is only checked when sections of keys would be merged, because it reads the slots of all live cells. It is
        not checked while buckets migrate, because a migration takes time of its own.
        """
        state = self.committed
        if self.task.moving or self.long or full_level(state.keys, self.fan_in) is None:
            return False
        old = [*self.old, *self.old_tiles, *self.old_revisions]
        naming: list[Cells | Events] = [*added, *(cells for cells, gone in zip(old, expired, strict=True) if not gone)]
        alone = self.group.deduplicated is not None or len(self.group.celled) < len(self.group.queries)
        if self.log is not None and alone:  # a key may occur in events only
            naming += self.log.needed(events_from)
        named = np.flatnonzero(are_named(naming, len(self.keys)))
        if 2 * len(named) > len(self.keys):
            return False
        replaced = [place.id for place in (*state.keys, *state.left, *state.portions)]  # begun merges start again
        for place, cells, gone in zip([*state.segments, *state.tiles, *state.revisions], old, expired, strict=True):
            if gone:
                replaced.append(place.id)  # it refers to slots of the generation that ends here
            elif place.generation != state.generation:
                self.write_segment(cells, place.level, (place.id,), state.apart(place), {"gone": 0})
        for log in self.logs:
            for place in log.places:
                if place.generation != state.generation:
                    log.write(self.delta, log.section(place), place.level, (place.id,))
        data = to_bytes(self.keys.opening(named))
        info = {"base": 0, "level": OPENING, "generation": state.generation + 1}
        self.delta.add("keys", self.group.id, data, len(named), info, tuple(replaced))
        here = self.keys.here(named)
        if here is not None and not here.all():  # live cells still refer to keys that moved away
            left, info = np.flatnonzero(~here), {"generation": state.generation + 1}
            self.delta.add("left", self.group.id, slots_section(left), len(left), info)
        return True

    def collect_changes(
        self, make: Callable[[], Changes | SessionChanges], before: Watermark, after: Watermark
    ) -> None:
        """Collect the rows of queries with updating results, and write how often each row was corrected."""
        plans = [plan for plan in self.group.queries if plan.query.changing and self.collected.is_going(plan)]
        if not plans:
            return
        changes = make()
        for plan in plans:
            self.collected.take(Family(self.group, [plan]), partial(changes.rows, plan, before, after))
        corrected = changes.corrected([plan.query.name for plan in plans if self.collected.is_going(plan)])
        if corrected.rows:
            self.write_segment(corrected, 0, (), "revisions")

    def collect_frames(self, plan: QueryPlan, parts: Iterable[Due]) -> None:
        """Collect the rows of one query, part by part."""
        family = Family(self.group, [plan])
        for due in parts if self.collected.is_going(plan) else ():
            make = partial(rows_of_events, self.group, family, due, self.keys, self.task.buckets)
            if not self.collected.take(family, make):
                break

    def events_between(self, plans: Sequence[QueryPlan], start_us: int, end_us: int, delay: int) -> Events | None:
        """The events of a time range, if one of the queries needs them."""
        if self.log is None or not any(needs_events(plan) for plan in plans):
            return None
        return self.log.between(start_us, end_us, delay)

    def merge_events(self, horizon: int | None) -> None:
        """Merge sections of events by level, and drop events before the horizon."""
        if self.log is not None:
            self.log.merge(self.delta, horizon, self.fan_in)

    def compact(self, horizon: int | None, edges: Callable[[], Edges] | None = None) -> None:
        """Merge `fan_in` segments of one level into one of the next level.

        Slices that no window needs and keys that moved to other instances are dropped, and slices are coalesced as far
        as `edges` allow. If nothing of the segments is needed, no segment is written: they are retired in this epoch.
        """
        state, keys, committed = self.committed, len(self.keys), self.keys.committed
        parts = (state.segments, self.old), (state.tiles, self.old_tiles), (state.revisions, self.old_revisions)
        for places, old in parts:
            left = [] if self.task.moving else shares_left(state, places, old, self.left)
            for due in merges_due(places, state.portions, self.fan_in, self._added, self.task.moving, left, self.long):
                ends = tuple(places[i].id for i in due.chosen)
                apart = state.apart(places[due.chosen[0]])
                needed_at = edges() if edges and not apart else None
                ids = column_ids(self.group, apart)
                done = merged(due, old, self.left, committed, keys, horizon, ids, needed_at)
                needed = horizon is None or any((old[i].slices.end_us > horizon).any() for i in due.chosen)
                # if everything that is needed has moved away, a segment without cells replaces them
                if done.cells.rows or needed:
                    self.write_segment(done.cells, due.level, () if done.until else ends, apart, done.info(due, ends))
