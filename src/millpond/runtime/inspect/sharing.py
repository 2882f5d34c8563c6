"""Measures what sharing saves: the size of shared state against one copy per query, from the live segments.

`stored` is the size on disk of every live section of segments and keys, in narrow columns, including slices that no
window needs any more. `shared` and `apart` are comparable with each other: the cells that some open window still
needs, each with its key's slot and its columns at eight bytes, and the keys of those cells at their size in the
dictionary. Events of windows over runs of events count as cells. Retained events are shared, at their size on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from millpond.arrays import distinct_of
from millpond.log.manifest import Manifest
from millpond.plan.groups.plan import GroupPlan, Plan
from millpond.runtime.epoch import watermarks
from millpond.runtime.fold.kinds import state_kind
from millpond.runtime.fold.state_size import WORD_BYTES, Sizes, StateSize, Stored, columns_of
from millpond.runtime.gather.retained_events import retained_sections
from millpond.runtime.task.state_locations import group_state
from millpond.runtime.task.task_values import Watermark
from millpond.state.ports.files import Files


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


def group_cells(group: GroupPlan, manifest: Manifest, files: Files, instances: int) -> GroupCells:
    """Measures one group of the pond with these `files`, summed over all instances.

    Raises:
        CorruptError: a section is not readable.
    """
    mark = watermarks(manifest).get(group.stream, Watermark())
    rows, keys, key_bytes, stored_keys, columns = 0, 0, 0, 0, 0
    of_measure = {measure.id: 0 for measure in group.kept}
    for instance in range(instances):
        state = group_state(manifest, instance, group)
        cells = state_kind(group).needed_cells(Stored(group, state, files, mark))
        rows, keys = rows + cells.rows, keys + len(distinct_of(cells.slots))
        key_bytes += sum(place.size for place in state.keys)
        stored_keys += state.key_count
        columns = max(columns, columns_of(cells, None))
        of_measure = {name: max(most, columns_of(cells, {name})) for name, most in of_measure.items()}
    return GroupCells(rows, keys, key_bytes / max(stored_keys, 1), columns, of_measure)


def sharing(plan: Plan, manifest: Manifest, files: Files, instances: int) -> Sharing:
    """Measures the live segments of the pond with these `files`.

    Raises:
        CorruptError: a section is not readable.
    """
    marks = watermarks(manifest)
    stored = 0
    sizes = Sizes(StateSize(), {query.query.name: StateSize() for group in plan.groups for query in group.queries})
    for group in plan.groups:
        mark = marks.get(group.stream, Watermark())
        for instance in range(instances):
            state = group_state(manifest, instance, group)
            places = (*state.keys, *state.segments, *state.tiles, *state.events, *state.revisions, *state.tallies)
            stored += sum(place.size for place in places)
            sizes = sizes.plus(state_kind(group).size(Stored(group, state, files, mark)))
    kept = sum(one.size for events in plan.retained for one in retained_sections(manifest, events))
    return Sharing(manifest.n, stored + kept, sizes.shared.plus(StateSize(bytes=kept)), sizes.alone)
