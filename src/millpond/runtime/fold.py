"""Fold: the packets of one instance become its delta: new segments, result rows of closed windows, a receipt.

Nothing is remembered in the process: state is attached from committed sections, mapped in place, and a fold
that is run again, anywhere, on packets in any order of arrival, gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from millpond.clock import lap_us
from millpond.errors import OverflowedError, UserFunctionError
from millpond.faults import reached
from millpond.log.records import Fates, Receipt
from millpond.model.windows import Session
from millpond.plan.plan import GroupPlan, QueryPlan
from millpond.runtime.changes import Changes
from millpond.runtime.closing import Closing, batches, closing_windows, together
from millpond.runtime.columns import arrow_type
from millpond.runtime.combine import Block, blocks, edges_of, ranges_of, slices_between
from millpond.runtime.counting import add_fates, bounded
from millpond.runtime.deduplicated import decided, needed_events
from millpond.runtime.event_log import GroupLog
from millpond.runtime.generations import OPENING, attached, named_slots, read_section
from millpond.runtime.holistic import needs_events
from millpond.runtime.late_rows import write_late_rows
from millpond.runtime.lateness import advanced
from millpond.runtime.outbox import rows_stream
from millpond.runtime.packet import GroupPart, decode_packet, late_rows_of, selected_rows_of
from millpond.runtime.raw import RawRows, piece_of_raw
from millpond.runtime.rows import BlockKeys, Family, families, rows_of_block, rows_of_sessions
from millpond.runtime.selected_rows import write_selected_rows
from millpond.runtime.sessions import AT_ONCE, Asked, Sessions, asked_of, closing, first_needed, needed_atoms
from millpond.runtime.signed import signed_blocks
from millpond.runtime.tasks import WHOLE_POND, FoldTask, SectionPlace, TimeLine, Watermark
from millpond.runtime.tiles import Held, new_tiles
from millpond.state.atoms import merge_atoms, some_atoms
from millpond.state.cells import Cells, Piece, merge, piece_of
from millpond.state.delta import DeltaWriter, Files
from millpond.state.dictionary import KeyDictionary
from millpond.state.event_log import Events, encode_events
from millpond.state.segments import encode_cells, to_bytes

FAN_IN = 8
"""Segments of one level that a snapshot replaces by one of the next: each cell is rewritten O(log) times."""

WINDOWS_AT_ONCE = 64

_SLICES_READ = f"slices_read:{WHOLE_POND}"

_Made: TypeAlias = tuple[Mapping[str, pa.RecordBatch], Mapping[str, int]]
"""Rows by query, and how many HAVING withheld."""


def fold(task: FoldTask, instance: int, packets: Sequence[pa.Buffer], attempt: str) -> tuple[Receipt, bytes]:
    """The receipt of an instance's epoch, and its delta if that is small enough to travel with it.

    Raises:
        CorruptError: a packet or a section does not read.
    """
    began = lap_us()
    arrived = [(*decode_packet(packet), packet) for packet in packets]
    arrived.sort(key=lambda packet: (packet[0].stream, packet[0].partition, packet[0].sequence))
    counts = {f"bytes_moved:{WHOLE_POND}": sum(packet.size for packet in packets)}
    fates: Fates = {}
    newest: dict[str, dict[str, int]] = {}
    late: dict[str, list[pa.RecordBatch]] = {}
    selected: dict[str, list[pa.RecordBatch]] = {}
    parts: dict[str, list[GroupPart]] = {}
    for header, groups, packet in arrived:
        for query, found in header.counts.items():
            for name, value in found.items():
                counts[f"{name}:{query}"] = counts.get(f"{name}:{query}", 0) + value
        add_fates(fates, header.fates)
        for held, rows in ((late, late_rows_of(header, packet)), (selected, selected_rows_of(header, packet))):
            if rows is not None:
                held.setdefault(header.stream, []).append(rows)
        reached_so_far = newest.setdefault(header.stream, {})
        for name, time in header.newest_us.items():
            reached_so_far[name] = max(time, reached_so_far.get(name, time))
        for part in groups:
            parts.setdefault(part.group, []).append(part)
    counts |= {f"max_time:{stream}:{name}": time for stream, times in newest.items() for name, time in times.items()}
    reasons: dict[str, str] = {}
    delta = DeltaWriter()
    files = Files(Path(task.folder))
    for group in task.plan.groups:
        line = task.lines.get(group.stream, TimeLine())
        mark, after = line.mark, advanced(line, newest.get(group.stream, {}))
        if group.stream in task.drain_floor_us:
            after = Watermark(after.max_time_us, task.drain_floor_us[group.stream])
        _GroupFold(task, instance, group, files, delta, counts, reasons).run(parts.get(group.id, []), mark, after)
    for stream, found_late in late.items():
        floor = task.lines.get(stream, TimeLine()).mark.floor_us
        write_late_rows(task.late.get(stream, ()), found_late, floor, task.number, delta, counts)
    for stream, found_selected in selected.items():
        write_selected_rows(task.plan.selections_of(stream), found_selected, delta)
    counts[f"fold_us:{WHOLE_POND}"] = lap_us() - began
    reached("fold.before_delta")
    receipt, body = delta.finish(Path(task.folder), task.number, instance, attempt, counts)
    reached("fold.after_delta")
    return msgspec.structs.replace(receipt, fates=bounded(fates), reasons=reasons), body


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
    ) -> None:
        self._task, self._group, self._delta, self._counts, self._reasons = task, group, delta, counts, reasons
        self._unread: dict[str, int] = {}
        self._state = task.of(instance, group)
        types = [arrow_type(key.type) for key in group.keys]
        cache = Path(task.cache) / task.pond / f"{group.id}-{instance}" if task.cache else None
        sections = [read_section(files, place) for place in self._state.keys]
        self._keys = KeyDictionary(types, sections, cache)
        self._log = None if group.events is None else GroupLog(files, group, group.events, self._state, sections)
        self._old, self._old_tiles, self._old_revisions = (
            attached(files, self._state, places, sections, group.delays_us)
            for places in (self._state.segments, self._state.tiles, self._state.revisions)
        )

    def run(self, parts: Sequence[GroupPart], before: Watermark, after: Watermark) -> None:
        """Append what arrived, close windows, merge old segments or begin a generation of keys."""
        if self._group.gaps_us:
            self._run_sessions(self._numbered(parts), before, after)
            return
        pieces = self._numbered(parts)
        if self._log is not None and self._group.deduplicated is not None:
            pieces += self._decided(self._log, before, after)
        fresh = merge(pieces, max(len(self._keys), 1))
        if fresh.rows:
            self._write_segment(fresh, 0, ())
        held = Held([cells for cells in [*self._old, fresh] if cells.rows], self._old_tiles)
        tiles = None if self._task.drained else new_tiles(self._group, held, before, after, len(self._keys))
        if tiles is not None:
            self._write_segment(tiles, 0, (), "tiles")
            held = held._replace(tiles=[*held.tiles, tiles])
        self._close(held, fresh, before, after)
        horizon = needed_from(self._group.queries, after)
        old = [*self._old, *self._old_tiles, *self._old_revisions]
        expired = [horizon is not None and int(cells.slices.end_us.max()) <= horizon for cells in old]
        if self._roll([fresh] if tiles is None else [fresh, tiles], expired):
            return  # the snapshot waits for the next epoch: a segment is replaced once
        self._add_keys()
        self._merge_events(needed_events(self._group, after, horizon))
        self._snapshot(horizon)

    def _decided(self, log: GroupLog, before: Watermark, after: Watermark) -> list[Piece]:
        """The cells of events that repeat none, and that the watermark has passed."""
        found = decided(self._group, log, before, after)
        for plan in self._group.queries:
            count = found.repeated.get(self._group.measures[plan.presence].filter, 0)
            if count:
                self._counts[f"repeated:{plan.query.name}"] = count
        return [] if found.piece is None else [found.piece]

    def _run_sessions(self, pieces: Sequence[Piece], before: Watermark, after: Watermark) -> None:
        """The same for session windows: what no open session holds is not written, or superseded."""
        gap_us = self._group.gaps_us[0]
        every = [*self._old, merge_atoms(pieces, gap_us).cells]
        atoms, targets = merge_atoms([piece_of(cells) for cells in every], gap_us)
        self._close_sessions(atoms, before, after)
        needed = needed_atoms(self._group, atoms, after)
        *live, fresh = [some_atoms(cells, needed[rows]) for cells, rows in zip(every, targets, strict=True)]
        expired = [not cells.rows for cells in live]
        rolled = self._roll([fresh], expired)
        places = [place for place, gone in zip(self._state.segments, expired, strict=True) if not gone]
        sealed = [place.id for place, gone in zip(self._state.segments, expired, strict=True) if gone and place.rows]
        horizon = first_needed(atoms, needed)
        if self._log is not None:
            sealed += self._log.before(horizon)
        if fresh.rows or sealed:
            self._write_segment(fresh, 0, tuple(sealed))
        if rolled:
            return
        self._add_keys()
        level = _full_level(places)
        if level is not None:
            kept = [cells for cells in live if cells.rows]
            chosen = [i for i, place in enumerate(places) if place.level == level]
            merged = merge_atoms([piece_of(kept[i]) for i in chosen], gap_us).cells
            self._write_segment(merged, level + 1, tuple(places[i].id for i in chosen))
        self._merge_events(horizon)

    def _numbered(self, parts: Sequence[GroupPart]) -> list[Piece]:
        pieces = []
        logged = []
        for part in parts:
            slots = self._keys.number(part.keys, part.key_count)
            body = part.body
            if isinstance(body, Events):
                logged.append(body._replace(slots=slots[body.slots]))
                continue
            piece = piece_of_raw(self._group, body, part.key_count) if isinstance(body, RawRows) else body
            pieces.append(Piece(piece.slices, piece.slice_rows, slots[piece.slots], piece.columns))
        if logged and self._log is not None:
            events = self._log.together(logged)
            self._log.arrived(events)
            self._write_events(events, 0, ())
        return pieces

    def _write_events(self, events: Events, level: int, supersedes: tuple[str, ...]) -> None:
        info = self._info(int(events.times_us.min()), int(events.times_us.max()) + 1, level)
        data = to_bytes(encode_events(events))
        self._delta.add("events", self._group.id, data, events.rows, info, supersedes)

    def _write_segment(
        self, cells: Cells, level: int, supersedes: tuple[str, ...], apart: str = ""
    ) -> None:
        first, last = (cells.slices.start_us.min(), cells.slices.end_us.max()) if cells.rows else (0, 0)
        info = self._info(int(first), int(last), level)
        if apart:
            info[apart] = 1
        self._delta.add(
            "segment", self._group.id, to_bytes(encode_cells(cells)), cells.rows, info, supersedes
        )

    def _info(self, first_us: int, last_us: int, level: int) -> dict[str, int | str | list[int]]:
        generation, delays = self._state.generation, list(self._group.delays_us)
        return {"first": first_us, "last": last_us, "level": level, "generation": generation, "delays": delays}

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
        level = _full_level(places)
        if level is None:
            return
        bases = np.cumsum([0, *(place.rows for place in places)]).tolist()
        chosen = [i for i, place in enumerate(places) if place.level == level]
        first, end = bases[chosen[0]], bases[chosen[-1] + 1]
        self._write_keys(first, end, level + 1, tuple(places[i].id for i in chosen))

    def _roll(self, added: Sequence[Cells], expired: Sequence[bool]) -> bool:
        """Begin a generation without the keys that no live cell names, if these are half of all.

        `expired`: which of the old segments, then tiles, then revisions, end here.
        Asked only where sections of keys would be merged: finding out is a pass over the slots of all live cells.
        """
        state, old = self._state, [*self._old, *self._old_tiles, *self._old_revisions]
        if _full_level(state.keys) is None:
            return False
        live = [*added, *(cells for cells, gone in zip(old, expired, strict=True) if not gone)]
        waiting = [] if self._log is None or self._group.deduplicated is None else self._log.every()
        named = named_slots([*(cells.slots for cells in live), *waiting], len(self._keys))
        if 2 * len(named) > len(self._keys):
            return False
        replaced = [place.id for place in state.keys]
        for place, cells, gone in zip([*state.segments, *state.tiles, *state.revisions], old, expired, strict=True):
            if gone:
                replaced.append(place.id)  # it names keys that end here, so it ends with them
            elif place.generation != state.generation:
                self._write_segment(cells, place.level, (place.id,), state.apart(place))
        if self._log is not None:
            for place in self._log.places:
                if place.generation != state.generation:
                    self._write_events(self._log.section(place), place.level, (place.id,))
        data = to_bytes(self._keys.opening(named))
        info = {"base": 0, "level": OPENING, "generation": state.generation + 1}
        self._delta.add("keys", self._group.id, data, len(named), info, tuple(replaced))
        return True

    def _close(self, held: Held, fresh: Cells, before: Watermark, after: Watermark) -> None:
        if not held.slices:
            return
        table = np.unique(np.concatenate([np.stack(cells.slices[:2], axis=1) for cells in held.slices]), axis=0)
        closing = closing_windows(self._group, table[:, 0], table[:, 1], before, after)
        results: dict[str, list[pa.RecordBatch]] = {}
        for run in batches(closing, WINDOWS_AT_ONCE):
            for some in together(self._group, run):
                self._answer(some, held, some[0].delay, results)
        self._tell_changes(held, fresh, before, after, results)
        self._write_answers(results)

    def _tell_changes(
        self, held: Held, fresh: Cells, before: Watermark, after: Watermark, results: dict[str, list[pa.RecordBatch]]
    ) -> None:
        """Rows of queries whose rows may change, and how often they did."""
        plans = [plan for plan in self._group.queries if plan.query.changing and self._is_going(plan)]
        if not plans:
            return
        old = Held([cells for cells in self._old if cells.rows], self._old_tiles)
        changes = Changes(self._group, self._keys, self._task.buckets, old, held, fresh, self._old_revisions)
        for plan in plans:
            self._collect(Family(self._group, [plan]), partial(changes.rows, plan, before, after), results)
        corrected = changes.corrected([plan.query.name for plan in plans if self._is_going(plan)])
        if corrected.rows:
            self._write_segment(corrected, 0, (), "revisions")

    def _close_sessions(self, atoms: Cells, before: Watermark, after: Watermark) -> None:
        results: dict[str, list[pa.RecordBatch]] = {}
        for asked in asked_of(self._group):
            for some in closing(self._group, asked, atoms, before, after).runs(AT_ONCE):
                self._answer_sessions(asked, atoms, some, results)
        self._write_answers(results)

    def _answer_sessions(
        self, asked: Asked, atoms: Cells, found: Sessions, results: dict[str, list[pa.RecordBatch]]
    ) -> None:
        """Rows of the queries that have these closing sessions."""
        plans = [plan for plan in asked.plans if self._is_going(plan)]
        if not plans:
            return
        columns = found.columns(atoms, {self._group.measures[i].id for i in _measures_of(plans)})
        slots, places = np.unique(found.slots, return_inverse=True)
        events = self._events(plans, int(found.starts_us.min()), int(found.ends_us.max()), asked.delay)
        keys, mine = BlockKeys(self._keys, slots, events), found._replace(slots=places)
        for family in (Family(self._group, [plan]) for plan in plans):
            make = partial(rows_of_sessions, self._group, family, mine, columns, keys, self._task.buckets)
            self._collect(family, make, results)

    def _events(self, plans: Sequence[QueryPlan], start_us: int, end_us: int, delay: int) -> Events | None:
        """The events of a time, if one of the queries needs them."""
        if self._log is None or not any(needs_events(plan) for plan in plans):
            return None
        return self._log.between(start_us, end_us, delay)

    def _is_going(self, plan: QueryPlan) -> bool:
        name = plan.query.name
        return name not in self._task.quarantined and f"raised:{name}" not in self._counts

    def _write_answers(self, results: Mapping[str, list[pa.RecordBatch]]) -> None:
        for query, found in results.items():
            self._write_rows(query, found)
        for query, rows in self._unread.items():
            self._counts[f"rows:{query}"] = rows

    def _answer(
        self,
        run: Sequence[Closing],
        held: Held,
        delay: int,
        results: dict[str, list[pa.RecordBatch]],
    ) -> None:
        """Rows of every query of one delay for a run of closing windows."""
        group, occurring = self._group, {window.window for window in run}
        asked = [
            plan
            for plan in group.queries
            if plan.delay == delay
            and not plan.query.changing
            and group.windows.index(plan.query.window) in occurring
            and self._is_going(plan)
        ]
        if not asked:
            return
        measures = [group.measures[i] for i in _measures_of(asked)]
        edges, parts = edges_of(run), held.parts
        chosen = slices_between(held, edges, delay)
        read = sum(int(np.count_nonzero(mask)) for mask in chosen)
        self._counts[_SLICES_READ] = self._counts.get(_SLICES_READ, 0) + read
        if group.signed:
            made = signed_blocks(edges, parts, chosen, measures, len(self._keys))
        else:
            ids = {measure.id for measure in measures}
            made = blocks(edges, ranges_of(parts, edges, chosen), ids, len(self._keys))
        going = families(group, asked)
        events = self._events(asked, edges[0], edges[-1], delay)
        windows = {family.window: group.windows.index(family.window) for family in going}
        for block in made:
            keys = BlockKeys.of(self._keys, block, events)
            for family in list(going):
                mine = [
                    window
                    for window in run
                    if window.window == windows[family.window] and window.start_us >= family.first.from_us
                ]
                if mine and not self._answer_family(family, block, mine, keys, results):
                    going.remove(family)
                    alone = [Family(group, [plan]) for plan in family.plans if len(family.plans) > 1]
                    going += [one for one in alone if self._answer_family(one, block, mine, keys, results)]

    def _answer_family(
        self,
        family: Family,
        block: Block,
        windows: Sequence[Closing],
        keys: BlockKeys,
        results: dict[str, list[pa.RecordBatch]],
    ) -> bool:
        """Add the rows of a family; False if one of its queries raised."""
        make = partial(rows_of_block, self._group, family, block, windows, keys, self._task.buckets)
        return self._collect(family, make, results)

    def _collect(self, family: Family, make: Callable[[], _Made], results: dict[str, list[pa.RecordBatch]]) -> bool:
        """Add the rows that are made of a family; False if one of its queries raised: a lone one is given up."""
        try:
            found, withheld = make()
        except (OverflowedError, UserFunctionError) as error:
            if len(family.plans) == 1:
                name = family.first.query.name
                self._counts[f"raised:{name}"] = 1
                if isinstance(error, UserFunctionError):
                    self._reasons[name] = str(error)
                results.pop(name, None)
                self._unread.pop(name, None)
            return False
        for name, rows in withheld.items():
            self._counts[f"withheld:{name}"] = self._counts.get(f"withheld:{name}", 0) + rows
        followed = {plan.query.name for plan in family.plans if plan.query.serve or plan.query.sink.format != "noop"}
        for name, batch in found.items():
            if name in followed:
                results.setdefault(name, []).append(batch)
            else:  # computed and counted: there is nobody to keep them for
                self._unread[name] = self._unread.get(name, 0) + batch.num_rows
        return True

    def _write_rows(self, query: str, found: Sequence[pa.RecordBatch]) -> None:
        rows = sum(batch.num_rows for batch in found)
        self._counts[f"rows:{query}"] = rows
        self._delta.add("rows", query, rows_stream(found), rows, {})

    def _merge_events(self, horizon: int | None) -> None:
        """The same for sections of events, without those before the horizon."""
        if self._log is None:
            return
        ending = self._log.before(horizon)
        places = [place for place in self._log.places if place.id not in ending]
        level = _full_level(places)
        if level is not None:
            full = [place for place in places if place.level == level]
            events = self._log.together([self._log.section(place) for place in full])
            events = events if horizon is None else events.take(events.times_us >= horizon)
            self._write_events(events, level + 1, tuple(place.id for place in full))

    def _snapshot(self, horizon: int | None) -> None:
        """Replace FAN_IN segments of one level by one of the next, without slices that no window needs.

        When nothing of them is needed there is no next: they are retired in this epoch.
        """
        state = self._state
        parts = (state.segments, self._old), (state.tiles, self._old_tiles), (state.revisions, self._old_revisions)
        for places, old in parts:
            level = _full_level(places)
            if level is None:
                continue
            chosen = [i for i, place in enumerate(places) if place.level == level]
            pieces = [
                piece_of(old[i], None if horizon is None else old[i].slices.end_us > horizon) for i in chosen
            ]
            merged = merge(pieces, max(len(self._keys), 1))
            supersedes = tuple(places[i].id for i in chosen)
            if merged.rows:
                self._write_segment(merged, level + 1, supersedes, state.apart(places[chosen[0]]))


def _measures_of(plans: Sequence[QueryPlan]) -> list[int]:
    """Positions of the measures that some queries read, each once."""
    every = (i for plan in plans for places in ((plan.presence,), *plan.measures) for i in places)
    return list(dict.fromkeys(every))


def _full_level(places: Sequence[SectionPlace]) -> int | None:
    levels = [place.level for place in places]
    full = [level for level in sorted(set(levels)) if levels.count(level) >= FAN_IN]
    return full[0] if full else None


def needed_from(queries: Iterable[QueryPlan], mark: Watermark) -> int | None:
    """Slices that end at or before this time are in no open window of `queries`; None: all are needed.

    Of sessions there is no such time, for they may go on: a fold says which atoms are needed.
    """
    times = []
    for plan in queries:
        at = mark.at(plan.query.late_after_us)
        window = plan.query.window
        if at is None or isinstance(window, Session):
            return None
        # the earliest open window is the first of its grid that ends after the watermark
        end = (at - window.offset_us - window.size_us) // window.slide_us * window.slide_us
        times.append(end + window.slide_us + window.offset_us)
    return min(times)
