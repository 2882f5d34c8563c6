"""Moves buckets between instances: the new owner copies the moved cells, the old owner marks them as departed.

The new owner gives the keys the next slots of its own dictionary, in the order of each source, and writes their cells
as one segment, or two by time, and their events as one section. The old owner keeps its sections, which are immutable
and hold cells of other keys too. A section of departed slots states which keys it no longer owns; a merge drops their
cells, and a new generation drops slots that no cell names. A key that returns gets a new slot, so old cells are never
mixed with new ones. One record contains all of these changes, like any other delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millpond.arrays import Mask
from millpond.log.records import SectionKind, section_id
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan, column_ids
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.retention import needed_from
from millpond.runtime.event_log.tallies import TallyLog
from millpond.runtime.keys.current_slots import (
    CurrentCells,
    Renumbered,
    departed_slots,
    read_keys,
    renumbered_keys,
    slot_buckets,
    slots_section,
)  # fmt: skip
from millpond.runtime.task.levels import Levels
from millpond.runtime.task.task_values import FoldTask, GroupState, SectionPlace, TimeLine
from millpond.state.layout.cells import (
    Cells,
    Piece,
    cells_at,
    merge,
    part_of,
    piece_of,
    rows_named,
    slot_runs,
    span_of,
    with_measures,
)
from millpond.state.layout.delta import DeltaWriter
from millpond.state.layout.event_log import Events, encode_events
from millpond.state.layout.segments import encode_with_sizes, to_bytes
from millpond.state.layout.tallies import as_stored
from millpond.state.ports.files import Files


class _Source(NamedTuple):
    """The state of a group on a source instance, and its keys with their slots on the new owner."""

    state: GroupState
    keys: Renumbered


def taken_over(
    task: FoldTask, instance: int, group: GroupPlan, files: Files, delta: DeltaWriter, fan_in: int
) -> GroupState:
    """The state of a group on an instance whose buckets changed; adds the new sections to `delta`.

    `fan_in`: the number of sections of one level that are merged; the level of added sections is chosen so that they
    trigger no merge.

    Raises:
        CorruptError: a section is not readable.
    """
    if instance not in task.owners:
        return GroupState()  # it owns nothing any more, and the record ends its sections
    return _TakingOver(task, instance, group, files, delta, fan_in).state()


class _TakingOver:
    def __init__(
        self, task: FoldTask, instance: int, group: GroupPlan, files: Files, delta: DeltaWriter, fan_in: int
    ) -> None:
        self._task, self._instance, self._group, self._files, self._delta = task, instance, group, files, delta
        self._own, self._fan_in = task.of(instance, group), fan_in
        mark = task.lines.get(group.stream, TimeLine()).mark
        open_from = [needed_from([plan], mark) for plan in group.celled]
        self._near_us = max((at for at in open_from if at is not None), default=None)

    def state(self) -> GroupState:
        owned = self._own
        sections = read_keys(self._files, owned, self._group, len(self._task.owners))
        base = sum(section.num_rows for section in sections)
        departed = self._departed(sections)
        sources, first = [], base
        for source in self._task.sources[self._instance]:
            if source != self._instance:
                found = self._source(source, first)
                sources.append(found)
                first += int(np.count_nonzero(found.keys.new_slots >= 0))
        if first == base:
            return msgspec.structs.replace(owned, left=departed)
        keys = self._keys(sources, base)
        segments, tiles, revisions = (
            (*mine, *self._cells(sources, apart, first))
            for apart, mine in (("segments", owned.segments), ("tiles", owned.tiles), ("revisions", owned.revisions))
        )
        events = (*owned.events, *self._events(sources, "events", owned.events))
        tallies = (*owned.tallies, *self._events(sources, "tallies", owned.tallies))
        return GroupState((*owned.keys, keys), segments, tiles, events, revisions, tallies, departed, owned.portions)

    def _mine(self, sections: list[pa.RecordBatch], state: GroupState) -> Mask:
        """Which of the keys in some sections the instance owns now, without keys that had departed before."""
        mine: Mask = (np.array(self._task.owners) == self._instance)[slot_buckets(sections)]
        gone = departed_slots(self._files, state)
        if gone is not None:
            mine[gone] = False
        return mine

    def _departed(self, sections: list[pa.RecordBatch]) -> tuple[SectionPlace, ...]:
        """The section of all departed slots, from now and before."""
        departed, before = np.flatnonzero(~self._mine(sections, self._own)), self._own.left
        if len(departed) == sum(place.rows for place in before):
            return before
        supersedes = tuple(place.id for place in before)
        return (self._write("left", slots_section(departed), len(departed), {}, supersedes),)

    def _source(self, source: int, first: int) -> _Source:
        """The keys of another instance that this one owns now; they get slots from `first` on, so cells stay sorted."""
        state = self._task.of(source, self._group)
        sections = read_keys(self._files, state, self._group, len(self._task.owners))
        mine = np.flatnonzero(self._mine(sections, state))
        new_slots = np.full(sum(section.num_rows for section in sections), -1, np.int32)
        new_slots[mine] = np.arange(first, first + len(mine), dtype=np.int32)
        return _Source(state, Renumbered(sections, new_slots))

    def _keys(self, sources: list[_Source], base: int) -> SectionPlace:
        batch = renumbered_keys((source.keys for source in sources), len(self._group.keys))
        assert batch is not None
        return self._write("keys", to_bytes(batch), batch.num_rows, {"base": base, "level": 0})

    def _cells(self, sources: list[_Source], apart: str, keys: int) -> tuple[SectionPlace, ...]:
        """Writes the cells of all sources as one segment, or as two; `keys`: the number of slots.

        The level of the segment is the highest level of its parts: merges in portions wait until all state has moved,
        and then merge all segments of a level at once. Slices whose windows close soon get a segment of their own (of
        level 0, like those of epochs) if they have few cells, so that epochs need not open the segments of older
        slices.
        """
        pieces, levels, ids = list[Piece](), list[int](), column_ids(self._group, apart)
        for state, (sections, new_slots) in sources:
            places: tuple[SectionPlace, ...] = getattr(state, apart)
            every = CurrentCells(self._files, state, places, sections, self._group.delays_us)
            comes = new_slots >= 0
            runs = slot_runs(comes)
            for i, place in enumerate(places):
                if place.generation == state.generation and place.slots and not comes[slice(*place.slots)].any():
                    continue  # so that segments which earlier steps have moved are not opened
                cells = every[i]
                rows = rows_named(cells, comes, runs)
                if len(rows):
                    levels.append(place.level)
                    piece = piece_of(cells_at(with_measures(cells, ids), rows))
                    pieces.append(piece._replace(slots=new_slots[piece.slots]))
        if not pieces:
            return ()
        merged = merge(pieces, keys)
        parts = [(merged, max(levels))]
        if apart == "segments" and self._near_us is not None:
            near = merged.slices.end_us > self._near_us
            if 0 < self._fan_in * int(np.diff(merged.offsets)[near].sum()) <= merged.rows:
                old, new = (part_of(merged, np.flatnonzero(some)) for some in (~near, near))
                parts = [(old, max(levels)), (new, 0)]
        return tuple(self._write_cells(cells, level, apart) for cells, level in parts)

    def _write_cells(self, cells: Cells, level: int, apart: str) -> SectionPlace:
        span = {"first": int(cells.slices.start_us.min()), "last": int(cells.slices.end_us.max())}
        data, sizes = encode_with_sizes(cells)
        info: dict[str, int | str | list[int]] = {**span, "slots": [*span_of(cells)], "level": level, **sizes}
        info |= {} if apart == "segments" else {apart: 1}
        return self._write("segment", data, cells.rows, info)

    def _events(
        self, sources: list[_Source], kind: SectionKind, mine: tuple[SectionPlace, ...]
    ) -> tuple[SectionPlace, ...]:
        """Writes the events, or tallies, of all sources as one section; events that tallies need are counted."""
        parts, levels, log = list[Events](), list[int](), None
        for state, (sections, new_slots) in sources:
            own = self._log(kind, state, sections)
            if own is None:
                continue
            log = own if own.places else log
            for place in own.places:
                events = own.section(place)
                slots = new_slots[events.slots]
                if (slots >= 0).any():
                    parts.append(events._replace(slots=slots).take(slots >= 0))
                    levels.append(place.level)
        if log is None or not parts:
            return ()
        every = log.concat_stored(parts)
        stored = as_stored(every) if kind == "tallies" else every
        span = {"first": int(every.times_us.min()), "last": int(every.times_us.max()) + 1}
        info = span | {"level": Levels(mine, self._fan_in).free_from(max(levels))}
        info |= {"counted": 1} if kind == "events" else {}
        return (self._write(kind, to_bytes(encode_events(stored)), stored.rows, info),)

    def _log(self, kind: SectionKind, state: GroupState, sections: Sequence[pa.RecordBatch]) -> EventLog | None:
        if kind == "tallies":
            return TallyLog(self._files, self._group, state, sections) if self._group.tallies else None
        kept = self._group.events
        return None if kept is None else EventLog(self._files, self._group, kept, state, sections)

    def _write(
        self, kind: SectionKind, data: pa.Buffer, rows: int, info: Mapping[str, int | str | list[int]],
        supersedes: tuple[str, ...] = (),
    ) -> SectionPlace:  # fmt: skip
        more: dict[str, int | str | list[int]] = {**info, "generation": self._own.generation}
        if kind not in ("keys", "left"):
            more["delays"] = list(self._group.delays_us)
        return section_written(
            self._task, self._instance, self._group, self._files, self._delta, kind, data, rows, more, supersedes
        )


def section_written(
    task: FoldTask, instance: int, group: GroupPlan | SideLog, files: Files, delta: DeltaWriter, kind: SectionKind,
    data: pa.Buffer, rows: int, info: dict[str, int | str | list[int]], supersedes: tuple[str, ...] = (),
) -> SectionPlace:  # fmt: skip
    """Adds a section of state to the delta of an instance; the returned location lets this fold read it from memory."""
    name = section_id(task.number, instance, delta.sections)
    delta.add(kind, group.id, data, rows, info, supersedes)
    file = f"delta in memory/{name}"
    files.hold(file, data)
    level, generation, first, last = info.get("level", 0), info["generation"], info.get("first"), info.get("last")
    assert isinstance(level, int) and isinstance(generation, int)
    assert (first is None or isinstance(first, int)) and (last is None or isinstance(last, int))
    delays = () if kind in ("keys", "left") else group.delays_us
    counted = bool(info.get("counted"))
    return SectionPlace(
        name, file, False, 0, data.size, rows, level, generation, delays, last, first_us=first, counted=counted
    )
