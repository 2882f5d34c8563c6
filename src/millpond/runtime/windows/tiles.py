"""Tiles: merged cells of consecutive slices, so that a long window with a short slide reads O(log n) pieces.

For such a window, event time is cut into spans of slide * 8, slide * 64, …, aligned with the window's starts. When no
more events can arrive in a span, its cells are merged once into one slice as wide as the span, from the next smaller
tiles. A window is then combined from the widest pieces that fit. Cells of tiles repeat the cells of their slices, so
a reader must take a cover: tiles that do not overlap, and the slices outside of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from millpond.arrays import Ints, Mask, distinct_of
from millpond.model.windows import Cumulating, Sliding
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.keys.current_slots import CurrentCells
from millpond.runtime.task.task_values import Watermark
from millpond.runtime.windows.closing import touched
from millpond.state.layout.cells import Cells, Piece, Slices, merge, piece_of

FACTOR = 8
"""The number of tiles of one width in a tile of the next width."""

_MIN_SLIDES = 4 * FACTOR
"""Windows with fewer slides than this read their slices directly."""


class TileGrid(NamedTuple):
    """Spans of `width_us` that begin at `phase_us` modulo the width, and not before `since_us`."""

    width_us: int
    phase_us: int
    since_us: int


class LiveCells(NamedTuple):
    """The state that an epoch reads: cells of slices, and tiles that repeat some of these cells."""

    slices: Sequence[Cells]
    tiles: Sequence[Cells]

    @classmethod
    def of(cls, slices: Sequence[Cells], tiles: Sequence[Cells]) -> LiveCells:
        """The given state without parts that have no cells."""
        return cls([cells for cells in slices if cells.rows], [cells for cells in tiles if cells.rows])

    @classmethod
    def near(
        cls, group: GroupPlan, old: CurrentCells, tiles: CurrentCells, fresh: Cells, before: Watermark, after: Watermark
    ) -> LiveCells:
        """The parts that an epoch with `fresh` cells may need; other parts are not read, however many there are."""
        if tile_grids(group) or any(plan.query.changing for plan in group.queries):
            return cls.of([*old, fresh], tiles)
        slices, repeated = ([cells[i] for i in touched(group, cells.places, before, after)] for cells in (old, tiles))
        return cls.of([*slices, fresh], repeated)

    @property
    def parts(self) -> list[Cells]:
        """All parts: slices, then tiles."""
        return [*self.slices, *self.tiles]

    def bounds_us(self) -> tuple[Ints, Ints]:
        """The starts and ends of the slices of all parts, with repetitions; there must be at least one part."""
        starts = np.concatenate([cells.slices.start_us for cells in self.slices])
        return starts, np.concatenate([cells.slices.end_us for cells in self.slices])


def tile_grids(group: GroupPlan) -> tuple[TileGrid, ...]:
    """The grids of tiles that pay off for the windows of a group, narrowest first."""
    since: dict[Sliding | Cumulating, int] = {}
    for plan in group.celled:
        window = plan.query.window
        if isinstance(window, Sliding | Cumulating):
            since[window] = min(plan.from_us, since.get(window, plan.from_us))
    start_by_grid: dict[tuple[int, int], int] = {}
    for window, from_us in since.items():
        step_us = window.slide_us if isinstance(window, Sliding) else window.step_us
        if window.size_us < _MIN_SLIDES * step_us:
            continue
        width = FACTOR * step_us
        while 2 * width <= window.size_us:
            width_and_phase = width, window.offset_us % width
            # if several windows need one grid, it begins where all of them can use it
            start_by_grid[width_and_phase] = max(from_us, start_by_grid.get(width_and_phase, from_us))
            width *= FACTOR
    return tuple(sorted(TileGrid(*width_and_phase, from_us) for width_and_phase, from_us in start_by_grid.items()))


def new_tiles(group: GroupPlan, live: LiveCells, before: Watermark, after: Watermark, keys: int) -> Cells | None:
    """The tiles of the spans that the watermark of the longest delay passes in this epoch; None if there are none."""
    longest = group.delays_us[-1]
    low, high = before.at(longest), after.at(longest)
    if high is None or (low is not None and low >= high):
        return None
    parts: list[Cells] = []
    for grid in tile_grids(group):
        live_and_new = LiveCells(live.slices, [*live.tiles, *parts])
        spans = _sealed(grid, live, low, high)
        if len(spans):
            parts.append(_rolled_up(grid, spans, live_and_new, keys))
    tiles = [cells for cells in parts if cells.rows]
    return merge([*map(piece_of, tiles)], keys) if tiles else None


def _sealed(grid: TileGrid, live: LiveCells, low_us: int | None, high_us: int) -> Ints:
    """The starts of the grid's spans that contain cells, have no tile, and end in (low, high]."""
    starts = [_span_start(grid, cells.slices.start_us) for cells in live.slices]
    span_starts = distinct_of(np.concatenate(starts)) if starts else np.zeros(0, np.int64)
    ends = span_starts + grid.width_us
    sealed = (span_starts >= grid.since_us) & (ends <= high_us)
    if low_us is not None:
        sealed &= ends > low_us
    for cells in live.tiles:  # the longest delay may have been shorter before, so that it passed them
        start, end, _, _ = cells.slices
        sealed &= ~np.isin(span_starts, start[end - start == grid.width_us])
    return span_starts[sealed]


def _span_start(grid: TileGrid, times_us: Ints) -> Ints:
    starts: Ints = times_us - (times_us - grid.phase_us) % grid.width_us
    return starts


def _rolled_up(grid: TileGrid, spans: Ints, live: LiveCells, keys: int) -> Cells:
    pieces = []
    edges = distinct_of(np.concatenate([spans, spans + grid.width_us]))
    for cells, chosen in zip(live.parts, cover_of(live, edges), strict=True):
        starts = _span_start(grid, cells.slices.start_us)
        inside = chosen & np.isin(starts, spans) & (cells.slices.end_us <= starts + grid.width_us)
        for i in np.flatnonzero(inside):
            pieces.append(_widened(grid, cells, int(i), int(starts[i])))
    return merge(pieces, keys)


def _widened(grid: TileGrid, cells: Cells, position: int, start_us: int) -> Piece:
    """The cells of one slice, with the whole span as their slice."""
    low, high = int(cells.offsets[position]), int(cells.offsets[position + 1])
    one, signed = slice(position, position + 1), cells.slices.signed
    slices = Slices(
        np.array([start_us]), np.array([start_us + grid.width_us]), cells.slices.late_class[one],
        None if signed is None else signed._replace(ids=signed.ids[one]),
    )  # fmt: skip
    columns = {name: column[low:high] for name, column in cells.columns.items()}
    return Piece(slices, np.zeros(high - low, np.int64), cells.slots[low:high], columns)


def cover_of(live: LiveCells, edges_us: Ints) -> list[Mask]:
    """For each part of `live`, the pieces to read between the edges; see `cover`."""
    return cover([cells.slices for cells in live.slices], [cells.slices for cells in live.tiles], edges_us)


def cover(slices: Sequence[Slices], tiles: Sequence[Slices], edges_us: Ints) -> list[Mask]:
    """For each part, tiles last, the pieces to read so that every cell between the edges is read once.

    Tiles are taken first, the widest first, if no edge lies strictly inside. Slices are taken if they lie in none of
    these tiles. When queries are added or dropped, the edges at which time is cut change. A slice that reaches beyond
    the given edges is left out: windows that cut it belong to a query that begins after all of its events. A slice that
    reaches beyond a tile is newer than the tile.
    """
    covered = _CoveredIntervals()
    chosen_tiles = _widest(tiles, edges_us, covered)
    chosen = []
    for part in slices:
        inside = (part.start_us >= edges_us[0]) & (part.end_us <= edges_us[-1])
        chosen.append(inside & ~covered.contain(part.start_us, part.end_us))
    return chosen + chosen_tiles


def _widest(parts: Sequence[Slices], edges_us: Ints, covered: _CoveredIntervals) -> list[Mask]:
    """The widest tiles that fit between edges; they are added to `covered`."""
    if not parts:
        return []
    start = np.concatenate([part.start_us for part in parts])
    end = np.concatenate([part.end_us for part in parts])
    fits = np.searchsorted(edges_us, start, "right") == np.searchsorted(edges_us, end, "left")
    fits &= (start >= edges_us[0]) & (end <= edges_us[-1])
    chosen = np.zeros(len(start), bool)
    widths = end - start
    for width in distinct_of(widths[fits])[::-1]:
        same = np.flatnonzero(fits & (widths == width))
        for phase in distinct_of(start[same] % width):
            rows = same[start[same] % width == phase]
            free = rows[~covered.overlap(start[rows], end[rows])]
            chosen[free] = True
            covered.add(distinct_of(start[free]), int(width))
    return np.split(chosen, np.cumsum([len(part.start_us) for part in parts])[:-1])


class _CoveredIntervals:
    """Disjoint intervals that are already covered, in ascending order."""

    def __init__(self) -> None:
        self._start = self._end = np.zeros(0, np.int64)

    def overlap(self, start: Ints, end: Ints) -> Mask:
        """Which of the given intervals overlap a covered interval."""
        before = np.searchsorted(self._end, start, "right")
        nearest = np.append(self._start, np.iinfo(np.int64).max)[before]
        overlapping: Mask = nearest < end
        return overlapping

    def contain(self, start: Ints, end: Ints) -> Mask:
        """Which of the given intervals lie within a covered interval."""
        index = np.searchsorted(self._start, start, "right") - 1
        ends = np.append(self._end, np.iinfo(np.int64).min)  # the last element serves index -1: no interval
        inside: Mask = end <= ends[index]
        return inside

    def add(self, start: Ints, width: int) -> None:
        """Add intervals, which must be disjoint from all covered intervals."""
        merged = np.concatenate([self._start, start])
        order = np.argsort(merged)
        self._start = merged[order]
        self._end = np.concatenate([self._end, start + width])[order]
