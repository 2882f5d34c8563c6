"""Moves buckets between instances: the new owner copies the moved cells, the old owner marks them as departed.

The new owner gives the keys the next slots of its own dictionary, in the order of each source, and writes their cells
as one segment, or two by time, and their events as one section. The old owner keeps its sections, which are immutable
and hold cells of other keys too. A section of departed slots states which keys it no longer owns; a merge drops their
cells, and a new generation drops slots that no cell names. A key that returns gets a new slot, so old cells are never
mixed with new ones. All of it is in one record, like any other delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millpond.arrays import Mask
from millpond.log.records import SectionKind, section_id
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan, column_ids
from millpond.runtime.event_log.bin_counts import TallyLog
from millpond.runtime.event_log.event_log import GroupLog
from millpond.runtime.event_log.retention import needed_from
from millpond.runtime.keys.key_compaction import (
    Attached,
    Numbered,
    left_slots,
    levels_of,
    numbered_keys,
    read_keys,
    slot_buckets,
    slots_section,
)  # fmt: skip
from millpond.runtime.task.task_values import FoldTask, GroupState, SectionPlace, TimeLine
from millpond.state.layout.bin_counts import as_stored
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
from millpond.state.layout.segments import as_told, to_bytes
from millpond.state.ports.files import Files


def stays(group: GroupPlan | SideLog) -> bool:
    """Whether what does not move of a group is left alone when buckets of it change their owner.

    It is where windows are put together from slices, or from events in a log, by key. Sessions, numbers of events,
    events that may repeat others, and logs of joins are made anew instead.
    """
    return (
        isinstance(group, GroupPlan) and bool(group.keys)
        and not group.gaps_us and not group.counted and group.deduplicated is None
    )  # fmt: skip


class _Source(NamedTuple):
    """What an instance has of the group, and its keys, numbered as the new owner does."""

    state: GroupState
    keys: Numbered


def taken_over(
    task: FoldTask, instance: int, group: GroupPlan, files: Files, delta: DeltaWriter, fan_in: int
) -> GroupState:
    """The state of a group on an instance whose buckets changed; what is new of it is in `delta`.

    `fan_in`: so many sections of events of one level are merged; what is added starts no merge.

    Raises:
        CorruptError: a section does not read.
    """
    if instance not in task.owners:
        return GroupState()  # its sections end with the record
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
        own = self._own
        sections = read_keys(self._files, own, self._group, len(self._task.owners))
        base = sum(section.num_rows for section in sections)
        left = self._left(sections, base)
        sources, first = [], base
        for source in self._task.sources[self._instance]:
            if source != self._instance:
                found = self._source(source, first)
                sources.append(found)
                first += int(np.count_nonzero(found.keys.now >= 0))
        if first == base:
            return msgspec.structs.replace(own, left=left)
        keys = self._keys(sources, base)
        segments, tiles, revisions = (
            (*mine, *self._cells(sources, apart, first))
            for apart, mine in (("segments", own.segments), ("tiles", own.tiles), ("revisions", own.revisions))
        )
        events = (*own.events, *self._events(sources, "events", own.events))
        tallies = (*own.tallies, *self._events(sources, "tallies", own.tallies))
        return GroupState((*own.keys, keys), segments, tiles, events, revisions, tallies, left, own.portions)

    def _mine(self, sections: list[pa.RecordBatch], state: GroupState) -> Mask:
        """Of the keys in some sections those that the instance owns now, and that had not left before."""
        mine: Mask = (np.array(self._task.owners) == self._instance)[slot_buckets(sections)]
        gone = left_slots(self._files, state)
        if gone is not None:
            mine[gone] = False
        return mine

    def _left(self, sections: list[pa.RecordBatch], count: int) -> tuple[SectionPlace, ...]:
        """All slots that have left, now or before."""
        left, before = np.flatnonzero(~self._mine(sections, self._own)), self._own.left
        if len(left) == sum(place.rows for place in before):
            return before
        supersedes = tuple(place.id for place in before)
        return (self._write("left", slots_section(left), len(left), {}, supersedes),)

    def _source(self, source: int, first: int) -> _Source:
        """What another instance has of ours; the keys get slots from `first` on, in their order: cells stay sorted."""
        state = self._task.of(source, self._group)
        sections = read_keys(self._files, state, self._group, len(self._task.owners))
        mine = np.flatnonzero(self._mine(sections, state))
        now = np.full(sum(section.num_rows for section in sections), -1, np.int32)
        now[mine] = np.arange(first, first + len(mine), dtype=np.int32)
        return _Source(state, Numbered(sections, now))

    def _keys(self, sources: list[_Source], base: int) -> SectionPlace:
        batch = numbered_keys((source.keys for source in sources), len(self._group.keys))
        assert batch is not None
        return self._write("keys", to_bytes(batch), batch.num_rows, {"base": base, "level": 0})

    def _cells(self, sources: list[_Source], apart: str, keys: int) -> tuple[SectionPlace, ...]:
        """The cells of all sources as one segment; slots are below `keys`. Its level is the highest of what it is made
        of: merges in portions wait until all has moved, and take all segments of a level up at once. Slices in which
        windows close soon are a segment of their own where they are few, merged like those of epochs: epochs need not
        open all that hold older ones.
        """
        pieces, levels, ids = list[Piece](), list[int](), column_ids(self._group, apart)
        for state, (sections, now) in sources:
            places: tuple[SectionPlace, ...] = getattr(state, apart)
            every = Attached(self._files, state, places, sections, self._group.delays_us)
            comes = now >= 0
            runs = slot_runs(comes)
            for i, place in enumerate(places):
                if place.generation == state.generation and place.slots and not comes[slice(*place.slots)].any():
                    continue  # which keeps what steps before have brought closed
                cells = every[i]
                rows = rows_named(cells, comes, runs)
                if len(rows):
                    levels.append(place.level)
                    piece = piece_of(cells_at(with_measures(cells, ids), rows))
                    pieces.append(piece._replace(slots=now[piece.slots]))
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
        data, told = as_told(cells)
        info: dict[str, int | str | list[int]] = {**span, "slots": [*span_of(cells)], "level": level, **told}
        info |= {} if apart == "segments" else {apart: 1}
        return self._write("segment", data, cells.rows, info)

    def _events(
        self, sources: list[_Source], kind: SectionKind, mine: tuple[SectionPlace, ...]
    ) -> tuple[SectionPlace, ...]:
        """The events, or tallies, of all sources as one section."""
        parts, levels, log = list[Events](), list[int](), None
        for state, (sections, now) in sources:
            places = state.events if kind == "events" else state.tallies
            if places:
                log = self._log(kind, state, sections)
            for place in places:
                assert log is not None
                events = log.section(place)
                slots = now[events.slots]
                if (slots >= 0).any():
                    parts.append(events._replace(slots=slots).take(slots >= 0))
                    levels.append(place.level)
        if log is None or not parts:
            return ()
        every = log.together(parts)
        stored = as_stored(every) if kind == "tallies" else every
        span = {"first": int(every.times_us.min()), "last": int(every.times_us.max()) + 1}
        info = span | {"level": self._level(mine, levels)}
        return (self._write(kind, to_bytes(encode_events(stored)), stored.rows, info),)

    def _log(self, kind: SectionKind, state: GroupState, sections: Sequence[pa.RecordBatch]) -> GroupLog:
        if kind == "tallies":
            return TallyLog(self._files, self._group, state, sections)
        return GroupLog(self._files, self._group, self._group.events or LogPlan((), (), False), state, sections)

    def _level(self, mine: tuple[SectionPlace, ...], levels: list[int]) -> int:
        """The lowest level, not below any of the parts, that is one short of being merged, or further."""
        level, held = max(levels), levels_of(mine)
        while held.count(level) >= self._fan_in - 1:
            level += 1
        return level

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
    """Add a section of state to the delta of an instance, and say where this fold reads it: in memory."""
    name = section_id(task.number, instance, delta.sections)
    delta.add(kind, group.id, data, rows, info, supersedes)
    file = f"delta in memory/{name}"
    files.hold(file, data)
    level, generation, first, last = info.get("level", 0), info["generation"], info.get("first"), info.get("last")
    assert isinstance(level, int) and isinstance(generation, int)
    assert (first is None or isinstance(first, int)) and (last is None or isinstance(last, int))
    delays = () if kind in ("keys", "left") else group.delays_us
    return SectionPlace(name, file, False, 0, data.size, rows, level, generation, delays, last, first_us=first)
