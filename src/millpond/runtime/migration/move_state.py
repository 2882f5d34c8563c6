"""Rebuilds state whose buckets changed their owner, in the first fold of an instance after the bucket map changed.

It reads the live sections of the previous owners (possibly the instance itself), selects the keys that the instance
owns now, and writes their state as sections of its delta, in a new generation of keys. The rest of the fold uses these
sections. The sections that were read stop being live with that record (`epoch.retired`), so each key is in the state of
exactly one instance before and after the record. If the number of instances changed, the events of joins without keys,
which belong to no bucket, are distributed again.

Groups that migrate by key write only the moved cells instead (`bucket_handoff`); each kind of state decides how it
migrates (`runtime.fold.state`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays import Ints
from millpond.log.manifest import Manifest
from millpond.log.records import SectionKind
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan, Plan
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.select_events import value_name
from millpond.runtime.joins.keyless_grid import dealt_again, holders
from millpond.runtime.keys.buckets import buckets_of_keys
from millpond.runtime.keys.current_slots import (
    OPENING,
    CurrentCells,
    Renumbered,
    read_keys,
    renumbered_keys,
    slot_buckets,
)
from millpond.runtime.migration.bucket_handoff import section_written
from millpond.runtime.task.task_values import FoldTask, GroupState, SectionPlace
from millpond.state.keys.keys import canonical
from millpond.state.layout.cells import Cells
from millpond.state.layout.delta import DeltaWriter
from millpond.state.layout.event_log import Events, encode_events
from millpond.state.layout.segments import encode_with_sizes, to_bytes
from millpond.state.layout.session_atoms import some_atoms
from millpond.state.ports.files import Files


def key_counts(manifest: Manifest) -> tuple[Counter[tuple[int, str]], Counter[tuple[int, str]]]:
    """The number of keys in each instance's dictionary of each group, and how many of these have moved away."""
    keys, moved = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for section in manifest.sections.values():
        if section.kind in ("keys", "left"):
            (keys if section.kind == "keys" else moved)[section.instance, section.group] += section.rows
    return keys, moved


def shares_here(manifest: Manifest) -> dict[tuple[int, str], float]:
    """The part of an instance's keys of a group that has not moved away; moved keys remain stored until a merge."""
    keys, moved = key_counts(manifest)
    return {place: 1 - moved[place] / count for place, count in keys.items() if count}


def moving(plan: Plan) -> list[GroupPlan | SideLog]:
    """The groups and logs whose state belongs to buckets; joins without keys assign events to instances otherwise."""
    return [*plan.groups, *(log for log in plan.joins.logs if not isinstance(log.dealt, str))]


def rebuilt(task: FoldTask, instance: int, group: GroupPlan, files: Files, delta: DeltaWriter) -> GroupState:
    """The state of a group on an instance whose buckets changed; adds all of its sections to `delta`.

    Raises:
        CorruptError: a section is not readable.
    """
    return _Making(task, instance, group, task.sources[instance], files, delta).group()


def logs_rebuilt(task: FoldTask, instance: int, files: Files, delta: DeltaWriter) -> FoldTask:
    """The task with the migrated sides of joins of `instance`; adds their sections to `delta`.

    Raises:
        CorruptError: a section is not readable.
    """
    state = dict(task.state.get(instance, {}))
    for log in task.plan.joins.logs:
        if not isinstance(log.dealt, str) and instance in task.sources:
            state[log.id] = _Making(task, instance, log, task.sources[instance], files, delta).logs()
        elif isinstance(log.dealt, str) and task.instances != task.before:
            held = holders(log.dealt, task.before)
            files.fetch(place.file for source in held for place in task.of(source, log).places)
            state[log.id] = _Making(task, instance, log, held, files, delta).logs()
    return msgspec.structs.replace(task, state=task.state | {instance: state})


def dealt_logs(plan: Plan) -> list[SideLog]:
    """The sides of joins without keys, whose events are assigned to instances by their values."""
    return [log for log in plan.joins.logs if isinstance(log.dealt, str)]


class _Making:
    """Rebuilds the state of one group, or of a side of joins, on one instance."""

    def __init__(
        self, task: FoldTask, instance: int, group: GroupPlan | SideLog, sources: Sequence[int], files: Files,
        delta: DeltaWriter,
    ) -> None:  # fmt: skip
        self._task, self._instance, self._group, self._files, self._delta = task, instance, group, files, delta
        self._sources = [task.of(source, group) for source in sources]
        newest = max((state.generation for state in self._sources), default=0)
        self._generation = newest + 1 if isinstance(group, GroupPlan) else 0

    def group(self) -> GroupState:
        """Writes the keys of a group, and then its other state with their new slots."""
        parts = self._renumbered()
        keys = self._write_keys(parts)
        if keys is None:
            return GroupState()
        moved: dict[str, list[SectionPlace]] = {}
        for state, (sections, new_slots) in zip(self._sources, parts, strict=True):
            for field in ("segments", "tiles", "revisions"):
                places: tuple[SectionPlace, ...] = getattr(state, field)
                all_cells = CurrentCells(self._files, state, places, sections, self._group.delays_us)
                for place, cells in zip(places, all_cells, strict=True):
                    self._move_cells(place, cells, new_slots, field, moved)
            log = self._log(state, sections)
            for place in (*state.events, *state.tallies):
                events = log.section(place)
                events = events._replace(slots=new_slots[events.slots])
                kind: SectionKind = "events" if place in state.events else "tallies"
                self._move_events(place, events.take(events.slots >= 0), kind, moved)
        return GroupState((keys,), **{name: tuple(places) for name, places in moved.items()})

    def logs(self) -> GroupState:
        """Writes the events of a side of joins, which contain their keys, or are assigned by their values."""
        assert isinstance(self._group, SideLog)
        moved: dict[str, list[SectionPlace]] = {}
        for state in self._sources:
            log = self._log(state, [])
            for place in state.events:
                events = log.section(place)
                self._move_events(place, events.take(self._held(events)), "events", moved)
        return GroupState(events=tuple(moved.get("events", ())))

    def _held(self, events: Events) -> Ints:
        log, task = self._group, self._task
        assert isinstance(log, SideLog)
        if isinstance(log.dealt, str):
            return dealt_again(log.kept, log.dealt, events, self._instance, task.instances)
        keys = [canonical(events.columns[value_name(key)]) for key in log.keys]
        return self._mine(buckets_of_keys(log, keys, events.rows, len(task.owners)))

    def _mine(self, buckets: npt.NDArray[np.integer]) -> Ints:
        """The positions in `buckets` of buckets that the instance owns now."""
        return np.flatnonzero((np.array(self._task.owners) == self._instance)[buckets])

    def _renumbered(self) -> list[Renumbered]:
        """For each source its keys, and the new slot of each old slot, -1 where this instance does not own the key."""
        parts, first = [], 0
        for state in self._sources:
            sections = read_keys(self._files, state, self._group, len(self._task.owners))
            kept = self._mine(slot_buckets(sections))
            new_slots = np.full(sum(section.num_rows for section in sections), -1, np.int32)
            new_slots[kept] = np.arange(first, first + len(kept), dtype=np.int32)
            parts.append(Renumbered(sections, new_slots))
            first += len(kept)
        return parts

    def _write_keys(self, parts: list[Renumbered]) -> SectionPlace | None:
        """Writes the keys that this instance owns, in the order of their sources' slots, so that cells stay sorted."""
        batch = renumbered_keys(parts, len(self._group.keys))
        if batch is None:
            return None
        info: dict[str, int | str | list[int]] = {"base": 0, "level": OPENING}
        return self._write("keys", to_bytes(batch), batch.num_rows, info)

    def _move_cells(
        self, place: SectionPlace, cells: Cells, new_slots: npt.NDArray[np.int32], field: str,
        moved: dict[str, list[SectionPlace]],
    ) -> None:  # fmt: skip
        slots = new_slots[cells.slots]
        own_cells = some_atoms(cells._replace(slots=slots), slots >= 0)
        if not own_cells.rows:
            return
        info = self._info(place, int(own_cells.slices.start_us.min()), int(own_cells.slices.end_us.max()))
        if field != "segments":
            info[field] = 1
        data, sizes = encode_with_sizes(own_cells)
        moved.setdefault(field, []).append(self._write("segment", data, own_cells.rows, info | sizes))

    def _move_events(
        self, place: SectionPlace, events: Events, kind: SectionKind, moved: dict[str, list[SectionPlace]]
    ) -> None:
        if not events.rows:
            return
        info = self._info(place, int(events.times_us.min()), int(events.times_us.max()) + 1)
        info |= {"counted": 1} if place.counted else {}
        moved.setdefault(kind, []).append(self._write(kind, to_bytes(encode_events(events)), events.rows, info))

    def _info(self, place: SectionPlace, first: int, last: int) -> dict[str, int | str | list[int]]:
        return {"first": first, "last": last, "level": place.level, "delays": list(self._group.delays_us)}

    def _log(self, state: GroupState, sections: Sequence[pa.RecordBatch]) -> EventLog:
        """A log that reads the stored columns unchanged, for events and for tallies."""
        return EventLog(self._files, self._group, LogPlan((), (), False), state, sections)

    def _write(
        self, kind: SectionKind, data: pa.Buffer, rows: int, info: dict[str, int | str | list[int]]
    ) -> SectionPlace:
        """Adds a section to the delta; the fold reads it from memory."""
        info["generation"] = self._generation
        files, delta = self._files, self._delta
        return section_written(self._task, self._instance, self._group, files, delta, kind, data, rows, info)
