"""Fold: turns the packets of one instance into its delta: new segments, rows of closed windows and a receipt.

A fold keeps nothing in the process. It maps state from committed sections. If a fold runs again, on any host and with
packets in any order, it gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, places_of
from millpond.clock import lap_us
from millpond.faults import reached
from millpond.kernels.columns import arrow_type
from millpond.log.records import Receipt
from millpond.model.windows import Range
from millpond.plan.groups.plan import GroupPlan, QueryPlan, column_ids, measures_read
from millpond.runtime.event_log.bin_counts import TallyLog, needs_tallies, tallies_needed_from
from millpond.runtime.event_log.deduplicate import decided
from millpond.runtime.event_log.event_aggregates import needs_events
from millpond.runtime.event_log.event_log import GroupLog
from millpond.runtime.event_log.retention import ends_by, events_needed_from, slices_needed_from
from millpond.runtime.fold.coalesce_slices import Edges, needed_edges
from millpond.runtime.fold.merge_segments import merged, merges_due
from millpond.runtime.fold.row_collector import Collected
from millpond.runtime.gather.dead_letters import write_dead_letters
from millpond.runtime.gather.late_rows import write_late_rows
from millpond.runtime.gather.lateness import marks_of
from millpond.runtime.gather.retained_events import fold_retained
from millpond.runtime.gather.selected_rows import write_selected_rows
from millpond.runtime.gather.shadow_diff import Differing
from millpond.runtime.joins.fold_joins import fold_joins
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
from millpond.runtime.moves.move_state import moved_in
from millpond.runtime.packets.event_counts import bounded
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.packets.unpack import arrived, numbered
from millpond.runtime.rows.count_windows import counter_of, needed_events, passed_now, worth_merging
from millpond.runtime.rows.frame_rows import Due, rows_of_events
from millpond.runtime.rows.query_families import Family, families
from millpond.runtime.rows.session_updates import SessionChanges, added_up, corrected_until
from millpond.runtime.rows.time_frames import rows_due
from millpond.runtime.rows.window_rows import BlockKeys, rows_of_block, rows_of_sessions
from millpond.runtime.rows.window_updates import Changes
from millpond.runtime.task.task_values import GROUP_US, WHOLE_POND, FoldTask, TimeLine, Watermark
from millpond.runtime.windows.choose_method import AnyBlock, blocks_of
from millpond.runtime.windows.closing import Closing, at_once, batches, closing_windows, each_closes, together
from millpond.runtime.windows.combine import edges_of, slices_between
from millpond.runtime.windows.rollups import Held, new_tiles
from millpond.runtime.windows.sessions import AT_ONCE, Asked, Sessions, asked_of, closing, first_needed, read_atoms
from millpond.state.keys.key_dictionary import KeyDictionary
from millpond.state.layout.cells import Cells, Piece, merge, piece_of, span_of
from millpond.state.layout.delta import DeltaWriter
from millpond.state.layout.event_log import Events
from millpond.state.layout.segments import as_told, to_bytes
from millpond.state.layout.session_fragments import LAST, merge_atoms
from millpond.state.ports.files import Files
from millpond.state.ports.private_folder import is_own

FAN_IN = 8
"""Segments of one level that a snapshot replaces by one of the next: each cell is rewritten O(log) times."""

_SLICES_READ = f"slices_read:{WHOLE_POND}"


def fold(
    task: FoldTask, instance: int, packets: Sequence[pa.Buffer], attempt: str, files: Files
) -> tuple[Receipt, bytes]:
    """The receipt of an instance's epoch, and its delta if that is small enough to travel with it.

    Raises:
        CorruptError: a packet or a section does not read.
        FilesLostError: a store that carries files has lost some.
    """
    reached("fold.start")
    began = lap_us()
    came = arrived(packets)
    counts = came.counts | {f"bytes_moved:{WHOLE_POND}": sum(packet.size for packet in packets)}
    reasons, delta, differing = dict[str, str](), DeltaWriter(), Differing(task.plan, task.quarantined)
    files.fetch(task.files(instance))
    task = moved_in(task, instance, files, delta, FAN_IN)
    marks = marks_of(task.lines, came.newest, task.drain_floor_us)
    for group in task.plan.groups:
        group_began = lap_us()
        folding = _GroupFold(task, instance, group, files, delta, counts, reasons, differing)
        before, after = marks.get(group.stream, (Watermark(), Watermark()))
        folding.run(came.parts.get(group.id, []), Watermark() if group.id in task.backfilled else before, after)
        counts[f"{GROUP_US}:{group.id}"] = counts.get(f"{GROUP_US}:{group.id}", 0) + lap_us() - group_began
    if task.plan.joins.plans:
        fold_joins(task, instance, came.parts, marks, files, delta, counts, reasons, FAN_IN)
    fold_retained(task, instance, came.parts, marks, files, delta, FAN_IN)
    for stream, found_late in came.late.items():
        floor = task.lines.get(stream, TimeLine()).mark.floor_us
        write_late_rows(task.late.get(stream, ()), found_late, floor, task.number, delta, counts)
    for stream, found_selected in came.selected.items():
        write_selected_rows(task.plan.selections_of(stream), found_selected, delta, differing)
    differing.write(delta)
    for stream, found_dead in came.dead.items():
        write_dead_letters(stream, found_dead, task.number, delta, counts)
    counts[f"fold_us:{WHOLE_POND}"] = lap_us() - began
    reached("fold.before_delta")
    receipt, body = delta.finish(files, task.number, instance, attempt, counts)
    reached("fold.after_delta")
    files.sweep(task.number, task.files)
    reached("fold.return")
    return msgspec.structs.replace(receipt, fates=bounded(came.fates), reasons=reasons), body


class _GroupFold:
    """One group of one instance in one epoch."""

    def __init__(
        self,
        task: FoldTask,
        instance: int,
        group: GroupPlan,
        files: Files,
        delta: DeltaWriter,
        counts: dict[str, int],
        reasons: dict[str, str],
        differing: Differing,
    ) -> None:
        self._task, self._group, self._delta, self._counts = task, group, delta, counts
        self._collected, self._added = Collected(task, group, delta, counts, reasons, differing), 0
        self._long = task.merges_wait or instance in task.sources  # merges wait for others
        self._state = task.of(instance, group)
        types = [arrow_type(key.type) for key in group.keys]
        own = bool(task.cache) and is_own(Path(task.cache))
        cache = Path(task.cache) / task.pond / f"{group.id}-{instance}" if own else None
        sections = [read_section(files, place) for place in self._state.keys]
        self._left = left_slots(files, self._state)
        buckets = partial(buckets_of_keys, group, buckets=len(task.owners))
        self._keys = KeyDictionary(types, sections, cache, buckets, self._left)
        self._log = None if group.events is None else GroupLog(files, group, group.events, self._state, sections)
        self._tallies = TallyLog(files, group, self._state, sections) if group.tallies else None
        self._logs = [log for log in (self._log, self._tallies) if log is not None]
        self._old, self._old_tiles, self._old_revisions = (
            Attached(files, self._state, places, sections, group.delays_us)
            for places in (self._state.segments, self._state.tiles, self._state.revisions)
        )

    def run(self, parts: Sequence[GroupPart], before: Watermark, after: Watermark) -> None:
        """Append what arrived, close windows, merge old segments or begin a generation of keys."""
        if self._group.counted:
            self._run_counted(parts, before, after)
            return
        if self._group.gaps_us:
            self._run_sessions(self._numbered(parts), before, after)
            return
        pieces = self._numbered(parts)
        if self._log is not None and self._group.deduplicated is not None:
            pieces += self._decided(self._log, before, after)
        fresh = merge(pieces, max(len(self._keys), 1))
        if fresh.rows:
            self._write_segment(fresh, 0, ())
        held = Held.near(self._group, self._old, self._old_tiles, fresh, before, after)
        tiles = None if self._task.drained else new_tiles(self._group, held, before, after, len(self._keys))
        if tiles is not None:
            self._write_segment(tiles, 0, (), "tiles")
            held = held._replace(tiles=[*held.tiles, tiles])
        self._close(held, fresh, before, after)
        self._close_events(before, after)
        self._collected.write()
        horizon, events_from = slices_needed_from(self._group, after), events_needed_from(self._group, after)
        places = *self._state.segments, *self._state.tiles, *self._state.revisions
        expired = [horizon is not None and ends_by(place, horizon) for place in places]
        if self._roll([fresh] if tiles is None else [fresh, tiles], expired, events_from):
            return  # the snapshot waits for the next epoch: a segment is replaced once
        self._add_keys()
        self._merge_events(events_from)
        if self._tallies is not None:
            self._tallies.merge(self._delta, tallies_needed_from(self._group, after), FAN_IN)
        more = [] if tiles is None else [tiles]
        self._snapshot(horizon, cache(lambda: needed_edges(self._group, after, [*self._old_tiles, *more])))

    def _decided(self, log: GroupLog, before: Watermark, after: Watermark) -> list[Piece]:
        """The cells of events that repeat none, and that the watermark has passed."""
        found = decided(self._group, log, len(self._keys), before, after)
        for plan in self._group.queries:
            count = found.repeated.get(self._group.measures[plan.presence].filter, 0)
            if count:
                self._counts[f"repeated:{plan.query.name}"] = count
        return [] if found.piece is None else [found.piece]

    def _run_sessions(self, pieces: Sequence[Piece], before: Watermark, after: Watermark) -> None:
        """The same for session windows: what no open session holds is not written, or superseded."""
        gap_us, places = self._group.gaps_us[0], self._state.segments
        came = merge_atoms(pieces, gap_us).cells
        level = full_level([place for place in places if place.rows], FAN_IN)
        whole = self._log is not None  # events are needed from the first that an open session holds
        read = read_atoms(self._group, places, self._old, came, len(self._keys), level, whole, before, after)
        self._close_sessions(read.atoms, read.came, before, after)
        self._collected.write()
        expired = [i in read.live and not read.live[i].rows for i in range(len(places))]
        fresh, until = read.fresh, corrected_until(self._group, after)
        ended = [int(cells.columns[LAST].max()) <= until for cells in self._old_revisions]
        rolled = self._roll([fresh], [*expired, *ended])
        sealed = [place.id for place, gone in zip(places, expired, strict=True) if gone and place.rows]
        horizon = first_needed(read.atoms, read.needed)  # of all atoms, where there is a log
        sealed += [place.id for place, gone in zip(self._state.revisions, ended, strict=True) if gone]
        if self._log is not None:
            sealed += self._log.before(horizon)
        if fresh.rows or sealed:
            self._write_segment(fresh, 0, tuple(sealed))
        if rolled:
            return
        self._add_keys()
        chosen = [i for i, place in enumerate(places) if place.level == level and not expired[i]]
        if level is not None and len(chosen) >= FAN_IN:
            merged = merge_atoms([piece_of(read.live[i]) for i in chosen], gap_us).cells
            self._write_segment(merged, level + 1, tuple(places[i].id for i in chosen))
        self._merge_corrections(ended, until)
        self._merge_events(horizon)

    def _merge_corrections(self, ended: Sequence[bool], until: int) -> None:
        """Replace FAN_IN segments of how often sessions were corrected by one; `ended`: which of them end here."""
        pairs = zip(self._state.revisions, self._old_revisions, ended, strict=True)
        going = [(place, cells) for place, cells, gone in pairs if not gone]
        level = full_level([place for place, _ in going], FAN_IN)
        if level is not None:
            chosen = [(place, cells) for place, cells in going if place.level == level]
            merged = added_up([piece_of(cells) for _, cells in chosen], until)
            self._write_segment(merged, level + 1, tuple(place.id for place, _ in chosen), "revisions")

    def _run_counted(self, parts: Sequence[GroupPart], before: Watermark, after: Watermark) -> None:
        """The same for windows of so many events: counts are cells, and of the log each key's last events stay."""
        self._numbered(parts)
        log, size = self._log, len(self._keys)
        assert log is not None
        pieces = {}
        for plan in self._group.queries:
            if (passed := passed_now(log, plan, self._old, size, before, after)) is not None:
                pieces[counter_of(plan)] = passed.piece(plan)
                self._answer_frames(plan, passed.due(plan).cut(plan))
        self._collected.write()
        if pieces:
            self._write_segment(merge(list(pieces.values()), size), 0, ())
        self._add_keys()
        self._snapshot(None)
        level = full_level(log.places, FAN_IN)
        if level is None:
            return
        needed = needed_events(log, self._group, after)
        chosen = worth_merging(log.places, needed, level)
        events = log.together([log.section(log.places[i]).take(needed[i]) for i in chosen])
        log.write(self._delta, events, level + 1, tuple(log.places[i].id for i in chosen))

    def _numbered(self, parts: Sequence[GroupPart]) -> list[Piece]:
        """What came in slots of its keys; of it, events are written."""
        came = numbered(self._group, self._keys, parts)
        for log, some in ((self._log, came.logged), (self._tallies, came.tallied)):
            if some and log is not None:
                events = log.together(some)
                log.arrived(events)
                log.write(self._delta, events, 0, ())
        return came.pieces

    def _write_segment(
        self, cells: Cells, level: int, supersedes: tuple[str, ...], apart: str = "",
        more: Mapping[str, int | str] | None = None,
    ) -> None:  # fmt: skip
        first, last = (cells.slices.start_us.min(), cells.slices.end_us.max()) if cells.rows else (0, 0)
        info: dict[str, int | str | list[int]] = {
            "first": int(first),
            "last": int(last),
            "level": level,
            "generation": self._state.generation,
            "delays": list(self._group.delays_us),
            "slots": [*(slots := span_of(cells))],
            **({} if self._left is None else {"gone": left_within(slots, self._left)}),
            **(more or {}),
        }
        if apart:
            info[apart] = 1
        data, told = as_told(cells)
        info |= told
        self._added += 0 if level else data.size
        self._delta.add("segment", self._group.id, data, cells.rows, info, supersedes)

    def _write_keys(self, first: int, end: int, level: int, supersedes: tuple[str, ...]) -> None:
        data = to_bytes(self._keys.batch(first, end))
        info = {"base": first, "level": level, "generation": self._state.generation}
        self._delta.add("keys", self._group.id, data, end - first, info, supersedes)

    def _add_keys(self) -> None:
        """Write the keys that are new, and replace FAN_IN sections of keys of one level by one of the next.

        Those of a level follow each other.
        """
        if len(self._keys) > self._keys.committed:
            self._write_keys(self._keys.committed, len(self._keys), 0, ())
        places = self._state.keys
        level = None if self._long else full_level(places, FAN_IN)
        if level is None:
            return
        bases = np.cumsum([0, *(place.rows for place in places)]).tolist()
        chosen = [i for i, place in enumerate(places) if place.level == level]
        first, end = bases[chosen[0]], bases[chosen[-1] + 1]
        self._write_keys(first, end, level + 1, tuple(places[i].id for i in chosen))

    def _roll(self, added: Sequence[Cells], expired: Sequence[bool], events_from: int | None = None) -> bool:
        """Begin a generation without the keys that no live cell or event names, if these are half of all.

        `expired`: which of the old segments, then tiles, then revisions, end here. `events_from`: events before it are
        not needed.
        Asked only where sections of keys would be merged: finding out is a pass over the slots of all live cells. Not
        while buckets are moving: that takes its time.
        """
        state = self._state
        if self._task.moving or self._long or full_level(state.keys, FAN_IN) is None:
            return False
        old = [*self._old, *self._old_tiles, *self._old_revisions]
        naming: list[Cells | Events] = [*added, *(cells for cells, gone in zip(old, expired, strict=True) if not gone)]
        alone = self._group.deduplicated is not None or len(self._group.celled) < len(self._group.queries)
        if self._log is not None and alone:  # no cell may name the key of an event
            naming += self._log.needed(events_from)
        named = np.flatnonzero(are_named(naming, len(self._keys)))
        if 2 * len(named) > len(self._keys):
            return False
        replaced = [place.id for place in (*state.keys, *state.left, *state.portions)]  # a merge begins anew
        for place, cells, gone in zip([*state.segments, *state.tiles, *state.revisions], old, expired, strict=True):
            if gone:
                replaced.append(place.id)  # it names keys that end here, so it ends with them
            elif place.generation != state.generation:
                self._write_segment(cells, place.level, (place.id,), state.apart(place), {"gone": 0})
        for log in self._logs:
            for place in log.places:
                if place.generation != state.generation:
                    log.write(self._delta, log.section(place), place.level, (place.id,))
        data = to_bytes(self._keys.opening(named))
        info = {"base": 0, "level": OPENING, "generation": state.generation + 1}
        self._delta.add("keys", self._group.id, data, len(named), info, tuple(replaced))
        here = self._keys.here(named)
        if here is not None and not here.all():  # cells still name them
            left, info = np.flatnonzero(~here), {"generation": state.generation + 1}
            self._delta.add("left", self._group.id, slots_section(left), len(left), info)
        return True

    def _close(self, held: Held, fresh: Cells, before: Watermark, after: Watermark) -> None:
        """Rows of windows that the watermark passes, and of those that change."""
        if not held.slices:
            return
        closing = closing_windows(self._group, *held.bounds_us(), before, after)
        read = 0 if self._group.deduplicated is not None else sum(log.rows for log in self._logs)
        for run in batches(closing, at_once(read)):
            for some in together(self._group, run):
                self._answer(some, held, some[0].delay)

        def changes() -> Changes:
            old, kept = Held.of(self._old, self._old_tiles), (self._old_revisions, self._log, self._tallies)
            return Changes(self._group, self._keys, self._task.buckets, old, held, fresh, *kept)

        self._tell_changes(changes, before, after)
        self._long |= bool(closing) and not each_closes(self._group, before, after)

    def _tell_changes(
        self, make: Callable[[], Changes | SessionChanges], before: Watermark, after: Watermark
    ) -> None:
        """Rows of queries whose rows may change, and how often they did."""
        plans = [plan for plan in self._group.queries if plan.query.changing and self._collected.is_going(plan)]
        if not plans:
            return
        changes = make()
        for plan in plans:
            self._collected.take(Family(self._group, [plan]), partial(changes.rows, plan, before, after))
        corrected = changes.corrected([plan.query.name for plan in plans if self._collected.is_going(plan)])
        if corrected.rows:
            self._write_segment(corrected, 0, (), "revisions")

    def _close_events(self, before: Watermark, after: Watermark) -> None:
        """Rows of the events that the watermark has passed, for queries with a row per event."""
        for plan in self._group.queries:
            if self._log is not None and isinstance(plan.query.window, Range):
                self._answer_frames(plan, rows_due(self._log, plan, len(self._keys), before, after))

    def _answer_frames(self, plan: QueryPlan, parts: Iterable[Due]) -> None:
        """Rows of one query, part by part."""
        family = Family(self._group, [plan])
        for due in parts if self._collected.is_going(plan) else ():
            make = partial(rows_of_events, self._group, family, due, self._keys, self._task.buckets)
            if not self._collected.take(family, make):
                break

    def _close_sessions(self, atoms: Cells, fresh: Ints, before: Watermark, after: Watermark) -> None:
        """Rows of sessions; `fresh`: which atoms hold an event of this epoch."""
        kept = self._old_revisions, self._log
        make = partial(SessionChanges, self._group, self._keys, self._task.buckets, self._old, atoms, fresh, *kept)
        self._tell_changes(make, before, after)
        for asked in asked_of(self._group):
            for some in closing(self._group, asked, atoms, before, after).runs(AT_ONCE):
                self._answer_sessions(asked, atoms, some)

    def _answer_sessions(self, asked: Asked, atoms: Cells, found: Sessions) -> None:
        """Rows of the queries that have these closing sessions."""
        plans = [plan for plan in asked.plans if not plan.query.changing and self._collected.is_going(plan)]
        if not plans:
            return
        columns = found.columns(atoms, {self._group.measures[i].id for i in measures_read(plans)})
        slots, places = places_of(found.slots)
        events = self._events(plans, int(found.starts_us.min()), int(found.ends_us.max()), asked.delay)
        keys, mine = BlockKeys(self._group, self._keys, slots, events), found._replace(slots=places)
        for family in (Family(self._group, [plan]) for plan in plans):
            make = partial(rows_of_sessions, self._group, family, mine, columns, keys, self._task.buckets)
            self._collected.take(family, make)

    def _events(self, plans: Sequence[QueryPlan], start_us: int, end_us: int, delay: int) -> Events | None:
        """The events of a time, if one of the queries needs them."""
        if self._log is None or not any(needs_events(plan) for plan in plans):
            return None
        return self._log.between(start_us, end_us, delay)

    def _answer(self, run: Sequence[Closing], held: Held, delay: int) -> None:
        """Rows of every query of one delay for a run of closing windows."""
        group, occurring = self._group, {window.window for window in run}
        asked = [
            plan
            for plan in group.queries
            if plan.delay == delay
            and not plan.query.changing
            and group.windows.index(plan.query.window) in occurring
            and self._collected.is_going(plan)
        ]
        if not asked:
            return
        measures = [group.measures[i] for i in measures_read(asked)]
        edges, parts = edges_of(run), held.parts
        chosen = slices_between(held, edges, delay)
        read = sum(int(np.count_nonzero(mask)) for mask in chosen)
        self._counts[_SLICES_READ] = self._counts.get(_SLICES_READ, 0) + read
        made = blocks_of(group, run, parts, chosen, measures, len(self._keys))
        going = families(group, asked)
        events, tallies = self._events(asked, edges[0], edges[-1], delay), None
        if self._tallies is not None and any(map(needs_tallies, asked)):
            tallies = self._tallies.between(edges[0], edges[-1], delay)
        windows = {family: _windows_of(family.first, group, run) for family in going}
        for block in made:
            keys = BlockKeys.of(group, self._keys, block, events, tallies)
            for family, mine in list(windows.items()):
                if mine and not self._answer_family(family, block, mine, keys):
                    del windows[family]
                    alone = [Family(group, [plan]) for plan in family.plans if len(family.plans) > 1]
                    windows |= {one: mine for one in alone if self._answer_family(one, block, mine, keys)}

    def _answer_family(
        self, family: Family, block: AnyBlock, windows: Sequence[Closing], keys: BlockKeys
    ) -> bool:
        """Add the rows of a family; False if one of its queries raised."""
        read = self._collected.read(family)
        make = partial(rows_of_block, self._group, family, block, windows, keys, self._task.buckets, read)
        return self._collected.take(family, make)

    def _merge_events(self, horizon: int | None) -> None:
        """The same for sections of events, without those before the horizon."""
        if self._log is not None:
            self._log.merge(self._delta, horizon, FAN_IN)

    def _snapshot(self, horizon: int | None, edges: Callable[[], Edges] | None = None) -> None:
        """Replace FAN_IN segments of one level by one of the next, without slices that no window needs, and without
        keys that have left; slices are as wide as `edges` let them be.

        When nothing of them is needed there is no next: they are retired in this epoch.
        """
        state, keys, committed = self._state, len(self._keys), self._keys.committed
        parts = (state.segments, self._old), (state.tiles, self._old_tiles), (state.revisions, self._old_revisions)
        for places, old in parts:
            left = [] if self._task.moving else shares_left(state, places, old, self._left)
            for due in merges_due(places, state.portions, FAN_IN, self._added, self._task.moving, left, self._long):
                ends = tuple(places[i].id for i in due.chosen)
                apart = state.apart(places[due.chosen[0]])
                needed_at = edges() if edges and not apart else None
                ids = column_ids(self._group, apart)
                done = merged(due, old, self._left, committed, keys, horizon, ids, needed_at)
                needed = horizon is None or any((old[i].slices.end_us > horizon).any() for i in due.chosen)
                # where all that is needed has left, a segment without cells replaces them
                if done.cells.rows or needed:
                    self._write_segment(done.cells, due.level, () if done.until else ends, apart, done.info(due, ends))


def _windows_of(plan: QueryPlan, group: GroupPlan, run: Sequence[Closing]) -> list[Closing]:
    """Those of a run that are of a query, and begin in its time."""
    position, first, end = group.windows.index(plan.query.window), plan.from_us, plan.before_us
    return [window for window in run if window.window == position and first <= window.start_us < end]
