"""Measures what sharing saves: the size of shared state against one copy per query, from the live segments.

`stored` is the size on disk of every live section of segments and keys, in narrow columns, including slices that no
window needs any more. `shared` and `apart` are comparable with each other: the cells that some open window still
needs, each with its key's slot and its columns at eight bytes, and the keys of those cells at their size in the
dictionary. Events of windows over runs of events count as cells. Retained events are shared, at their size on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints, Mask, distinct_of, distinct_rows
from millpond.log.manifest import Manifest
from millpond.model.windows import Framed, Session, Sliding
from millpond.plan.groups.edges import slices_of
from millpond.plan.groups.plan import GroupPlan, Plan, QueryPlan
from millpond.runtime.epoch import watermarks
from millpond.runtime.event_log.retention import needed_from, slices_needed_from
from millpond.runtime.gather.retained_events import retained_sections
from millpond.runtime.inspect.state_sizes import LoggedSize, TalliedSize, events_held
from millpond.runtime.keys.key_compaction import Attached, left_slots, read_section, still_here
from millpond.runtime.task.state_locations import group_state
from millpond.runtime.task.task_values import GroupState, Watermark
from millpond.runtime.windows.sessions import needed_atoms, open_ones, sessions_of
from millpond.state.layout.cells import Cells, merge, needed_slices, part_of, piece_of
from millpond.state.layout.session_fragments import merge_atoms, some_atoms
from millpond.state.ports.files import Files

WORD_BYTES = 8


class StateSize(NamedTuple):
    """An amount of state: cells, their keys, and bytes (eight for each column and slot)."""

    cells: int = 0
    keys: int = 0
    bytes: int = 0

    def plus(self, other: StateSize) -> StateSize:
        """The sum of both."""
        return StateSize(*(a + b for a, b in zip(self, other, strict=True)))


class Sharing(NamedTuple):
    """State as of record `n`: `stored` bytes, the `shared` state, and the state that each query would keep `alone`."""

    n: int
    stored: int
    shared: StateSize
    alone: Mapping[str, StateSize]

    @property
    def apart(self) -> StateSize:
        """The total size with one copy per query."""
        total = StateSize()
        for size in self.alone.values():
            total = total.plus(size)
        return total


class GroupCells(NamedTuple):
    """Measurements of a group: the cells that open windows need, their keys, and bytes per key in the dictionary.

    `columns`: the number of distinct columns of all measures; `of_measure`: those of each measure by its id.
    """

    cells: int
    keys: int
    key_bytes: float
    columns: int
    of_measure: Mapping[str, int]

    def per_key(self, growth: float = 1.0, more_columns: float = 0.0) -> float:
        """Bytes of state per key, if there were `growth` times as many cells, with `more_columns` more columns."""
        cells = self.cells * growth / max(self.keys, 1)
        return cells * (self.columns + more_columns + 1) * WORD_BYTES + self.key_bytes


def group_cells(group: GroupPlan, manifest: Manifest, folder: Path, instances: int) -> GroupCells:
    """Measures one group of a pond in `folder`, summed over all instances.

    Raises:
        CorruptError: a section is not readable.
    """
    mark, files = watermarks(manifest).get(group.stream, Watermark()), Files(folder)
    rows, keys, key_bytes, stored_keys, columns = 0, 0, 0, 0, 0
    of_measure = {measure.id: 0 for measure in group.kept}
    for instance in range(instances):
        state = group_state(manifest, instance, group)
        cells = _needed_cells(group, state, files, mark)
        rows, keys = rows + cells.rows, keys + len(distinct_of(cells.slots))
        key_bytes += sum(place.size for place in state.keys)
        stored_keys += sum(place.rows for place in state.keys)
        columns = max(columns, _columns(cells, None))
        of_measure = {name: max(most, _columns(cells, {name})) for name, most in of_measure.items()}
    return GroupCells(rows, keys, key_bytes / max(stored_keys, 1), columns, of_measure)


def sharing(plan: Plan, manifest: Manifest, folder: Path, instances: int) -> Sharing:
    """Measures the live segments of a pond in `folder`.

    Raises:
        CorruptError: a section is not readable.
    """
    marks, files = watermarks(manifest), Files(folder)
    stored, shared = 0, StateSize()
    alone = {query.query.name: StateSize() for group in plan.groups for query in group.queries}
    for group in plan.groups:
        mark = marks.get(group.stream, Watermark())
        for instance in range(instances):
            state = group_state(manifest, instance, group)
            places = (*state.keys, *state.segments, *state.tiles, *state.events, *state.revisions, *state.tallies)
            stored += sum(place.size for place in places)
            cells = _needed_cells(group, state, files, mark)
            key_bytes = _bytes_per_key(state)
            framed = [query for query in group.queries if isinstance(query.query.window, Framed)]
            if framed:
                every, each = events_held(group, framed, state, files, mark, key_bytes)
                shared = shared.plus(StateSize(*every))
                alone |= {name: alone[name].plus(StateSize(*size)) for name, size in each.items()}
            if not cells.rows or not group.celled:
                continue
            shared = shared.plus(_size(cells.rows, cells.slots, _columns(cells, None), key_bytes))
            logged = LoggedSize.of(group, state, files)
            tallied = TalliedSize.of(group, state, files)
            shared = shared.plus(StateSize(bytes=(0 if framed else logged.bytes) + tallied.bytes))
            for query in group.celled:
                more = logged.alone(query, mark) + tallied.alone(query, mark)
                found = _alone(group, query, cells, mark, key_bytes).plus(StateSize(bytes=more))
                alone[query.query.name] = alone[query.query.name].plus(found)
    kept = sum(one.size for events in plan.retained for one in retained_sections(manifest, events))
    return Sharing(manifest.n, stored + kept, shared.plus(StateSize(bytes=kept)), alone)


def _needed_cells(group: GroupPlan, state: GroupState, files: Files, mark: Watermark) -> Cells:
    """The cells that some open window needs or the stream retains; without tiles, which only repeat cells."""
    keys = [read_section(files, place) for place in state.keys[:1]]
    parts = Attached(files, state, state.segments, keys, group.delays_us)
    if group.gaps_us:
        atoms = merge_atoms([piece_of(cells) for cells in parts], group.gaps_us[0]).cells
        return some_atoms(atoms, needed_atoms(group, atoms, mark))
    horizon = slices_needed_from(group, mark)
    left, size = left_slots(files, state), sum(place.rows for place in state.keys)
    here = still_here((part_of(cells, needed_slices(cells, horizon)) for cells in parts), left, size)
    pieces = [piece_of(cells) for cells in here]
    slots = max((int(piece.slots.max()) for piece in pieces if len(piece.slots)), default=0)
    return merge(pieces, slots + 1)


def _alone(
    group: GroupPlan, query: QueryPlan, cells: Cells, mark: Watermark, key_bytes: float
) -> StateSize:
    """The size of the query's state without sharing: cells between its own edges, while its windows need them."""
    places = {query.presence, *(place for places in query.measures for place in places)}
    measures = (group.measures[place] for place in places)
    wanted = {measure.base.id if group.signed else measure.id for measure in measures}
    window = query.query.window
    if isinstance(window, Session):
        found = sessions_of(cells, window.gap_us, query.delay)
        own = found.slots[open_ones(found, mark.at(query.query.late_after_us))]
        return _size(len(own), own, _columns(cells, {*wanted, "first", "last"}), key_bytes)
    assert isinstance(window, Sliding)
    starts = np.repeat(cells.slices.start_us, np.diff(cells.offsets))
    classes = np.repeat(cells.slices.late_class, np.diff(cells.offsets))
    kept = _has_rows(group, query, cells) & (classes <= query.delay)
    if not kept.any():
        return StateSize()
    _, ends_us, slices = slices_of([window], starts)
    horizon = needed_from((query,), mark)
    if horizon is not None:
        kept &= ends_us[slices] > horizon
    slots = cells.slots[kept]
    (distinct, _), _ = distinct_rows([slots.astype(np.int64), slices[kept]])
    return _size(len(distinct), slots, _columns(cells, wanted), key_bytes)


def _has_rows(group: GroupPlan, query: QueryPlan, cells: Cells) -> Mask:
    """The cells with events that pass the query's filter, late or not."""
    presence = group.measures[query.presence]
    if cells.slices.signed is None:
        held: Mask = cells.columns[f"{presence.id}:n"] > 0
        return held
    passing = cells.slices.signed.table.passing([presence.filter_id], cells.slices.signatures)[:, 0]
    return np.repeat(passing, np.diff(cells.offsets))


def _size(cells: int, slots: npt.NDArray[np.integer] | Ints, columns: int, key_bytes: float) -> StateSize:
    keys = len(distinct_of(slots))
    return StateSize(cells, keys, cells * (columns + 1) * WORD_BYTES + round(keys * key_bytes))


def _columns(cells: Cells, measures: set[str] | None) -> int:
    """The number of distinct columns; a column that always equals another is stored once, and counted once."""
    wanted = (c for name, c in cells.columns.items() if measures is None or name.partition(":")[0] in measures)
    return len({id(column) for column in wanted})


def _bytes_per_key(state: GroupState) -> float:
    keys = sum(place.rows for place in state.keys)
    return sum(place.size for place in state.keys) / keys if keys else 0.0
