"""Coalesces adjacent slices that no window distinguishes any more, when their segments are merged.

Slices end at the edges of all windows of a group, so a window of a day beside one of a minute keeps 1,440 slices per
key; alone it would keep one. An edge is needed only while a window that begins or ends there is open or retained. When
a cell is rewritten, its slice is widened to the nearest needed edges, and cells of one key that then have the same
slice become one.

No needed edge lies inside a widened slice, so every open window, and every tile (a roll-up of slices, whose edges also
count as needed), contains a widened slice wholly or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from millpond.arrays import Ints, distinct_of, distinct_rows, firsts_of, new_values, occurrences, ordered
from millpond.model.calendars.grids import EdgeGrid, Regular
from millpond.model.windows import Sliced
from millpond.plan.groups.edges import phases
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.event_log.retention import kept_from, retained_from
from millpond.runtime.task.task_values import Watermark
from millpond.runtime.windows.tiles import tile_grids
from millpond.state.layout.cells import Cells, part_of, span_of, taken
from millpond.state.layout.session_atoms import reduced

_MIN_CELLS_PER_PART = 1 << 8
"""With fewer cells per part, sorting all cells into one part is faster."""

_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Edges(NamedTuple):
    """The edges that are needed.

    `since`: for a grid, the time from which all its edges are needed. `more`: further edges, ascending.
    """

    since: dict[EdgeGrid, int]
    more: Ints

    def around(self, starts_us: Ints, ends_us: Ints) -> tuple[Ints, Ints]:
        """For each slice, the last edge at or before its start and the first edge at or after its end.

        Where there is no such edge, the slice keeps its own bound.

        >>> edges = Edges({Regular(0, 60): 0, Regular(0, 10): 100}, np.array([], np.int64))
        >>> [bounds.tolist() for bounds in edges.around(np.array([20, 70, 110]), np.array([30, 80, 120]))]
        [[0, 60, 110], [60, 100, 120]]
        """
        low, high = np.full(len(starts_us), _EARLIEST), np.full(len(ends_us), _LATEST)
        for grid, since in self.since.items():
            before = grid.floor(starts_us)
            low = np.where(before >= since, np.maximum(low, before), low)
            high = np.minimum(high, grid.after(np.maximum(ends_us, since) - 1))
        if len(self.more):
            padded = np.concatenate([[_EARLIEST], self.more, [_LATEST]])
            low = np.maximum(low, padded[np.searchsorted(self.more, starts_us, "right")])
            high = np.minimum(high, padded[np.searchsorted(self.more, ends_us, "left") + 1])
        return np.where(low == _EARLIEST, starts_us, low), np.where(high == _LATEST, ends_us, high)


def needed_edges(group: GroupPlan, mark: Watermark, tiles: Iterable[Cells]) -> Edges:
    """The edges of open and retained windows, of the grain of retention, and of existing and future tiles."""
    since: dict[EdgeGrid, int] = {}

    def need(place: EdgeGrid, from_us: int) -> None:
        since[place] = min(from_us, since.get(place, from_us))

    for plan in group.celled:
        assert isinstance(plan.query.window, Sliced)
        from_us = kept_from(plan, retained_from(group, [plan], mark))
        for place in phases([plan.query.window]):
            need(place, from_us)
    grain = group.retention.grain_us
    if grain:  # a query that is added later may need these at any time
        need(Regular(0, grain), _EARLIEST)
    for width, phase, since_us in tile_grids(group):
        need(Regular(phase, width), since_us)
    bounds = [bound for cells in tiles for bound in cells.slices[:2]]
    return Edges(since, distinct_of(np.concatenate([np.zeros(0, np.int64), *bounds])))


def widened(cells: Cells, edges: Edges) -> list[Cells]:
    """The cells in slices that are as wide as possible, in parts that contain each slice at most once.

    If the parts would be small, there is only one.
    """
    slices = cells.slices
    start, end = edges.around(slices.start_us, slices.end_us)
    wide = cells._replace(slices=slices._replace(start_us=start, end_us=end))
    distinct, of = distinct_rows([start, end, slices.late_class, slices.signatures])
    if len(distinct[0]) == len(of):
        return [wide]
    nth = occurrences(of)
    turns = int(nth.max()) + 1
    if cells.rows < _MIN_CELLS_PER_PART * turns:
        return [_as_one(wide, of, len(distinct[0]))]
    return [part_of(wide, np.flatnonzero(nth == turn)) for turn in range(turns)]


def _as_one(cells: Cells, of: Ints, slices: int) -> Cells:
    """The cells, with those of one key in equal slices combined; `of`: for each slice, which distinct slice it is."""
    span = span_of(cells)[1]
    ids = np.repeat(of, np.diff(cells.offsets)) * span + cells.slots
    order = ordered(ids)
    ids = ids[order]
    new = new_values(ids)
    columns, distinct = reduced(taken(cells.columns, order), new), ids[new]
    first = np.empty(slices, np.int64)
    first[of] = np.arange(len(of))  # any of the equal slices
    owners = distinct // max(1, span)
    present, begins = firsts_of(owners)
    offsets = np.append(begins, len(distinct))
    return Cells(cells.slices.take(first[present]), offsets, (distinct - owners * span).astype(np.int32), columns)
