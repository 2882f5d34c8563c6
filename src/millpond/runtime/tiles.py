"""Tiles: roll-ups of consecutive slices, so that a long window with a short slide reads O(log) of them.

For a window of many slides, event time is cut into spans of slide * 8, slide * 64, …, aligned with the window's
starts. When no more events can come to a span, the cells within it are merged into one slice as wide as the span,
once, from the next smaller tiles. A window is then put together from the widest pieces that fit.
Cells of tiles repeat what their slices hold, so whoever reads must take a cover: pieces that do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from millpond.arrays import Ints, Mask
from millpond.plan.plan import GroupPlan
from millpond.runtime.tasks import Watermark
from millpond.state.cells import Cells, Piece, Slices, merge

FACTOR = 8
"""Tiles of one width in a tile of the next."""

_WORTH_SLIDES = 4 * FACTOR
"""Windows of fewer slides than this read their slices directly."""


class Grid(NamedTuple):
    """Spans of `width_us` that begin at `phase_us` modulo the width."""

    width_us: int
    phase_us: int


def grids(group: GroupPlan) -> tuple[Grid, ...]:
    """The grids of tiles that the group's windows are worth, narrowest first."""
    found = set()
    for window in group.sliding:
        if window.size_us < _WORTH_SLIDES * window.slide_us:
            continue
        width = FACTOR * window.slide_us
        while 2 * width <= window.size_us:
            found.add(Grid(width, window.offset_us % width))
            width *= FACTOR
    return tuple(sorted(found))


def is_tile(group: GroupPlan, slices: Slices) -> Mask:
    """Which slices are tiles, that repeat what narrower ones hold: no slice of the group is as wide as a tile."""
    narrowest = grids(group)[:1]
    widths = slices.end_us - slices.start_us
    return widths >= narrowest[0].width_us if narrowest else np.zeros(len(widths), bool)


def new_tiles(group: GroupPlan, parts: Sequence[Cells], before: Watermark, after: Watermark, keys: int) -> Cells | None:
    """Tiles of the spans that the watermark of the longest delay has passed in this epoch."""
    longest = group.delays_us[-1]
    low, high = before.at(longest), after.at(longest)
    if high is None or (low is not None and low >= high):
        return None
    made: list[Cells] = []
    for grid in grids(group):
        known = [*parts, *made]
        spans = _sealed(grid, known, low, high)
        if len(spans):
            made.append(_rolled_up(grid, spans, known, keys))
    tiles = [cells for cells in made if cells.rows]
    return merge([piece for cells in tiles for piece in _pieces(cells)], keys) if tiles else None


def _sealed(grid: Grid, parts: Sequence[Cells], low_us: int | None, high_us: int) -> Ints:
    """Starts of the grid's spans that hold cells and whose end lies in (low, high]."""
    starts = [_span_start(grid, cells.slices.start_us) for cells in parts]
    found = np.unique(np.concatenate(starts)) if starts else np.zeros(0, np.int64)
    ends = found + grid.width_us
    return found[(ends <= high_us) & ((ends > low_us) if low_us is not None else True)]


def _span_start(grid: Grid, times_us: Ints) -> Ints:
    starts: Ints = times_us - (times_us - grid.phase_us) % grid.width_us
    return starts


def _rolled_up(grid: Grid, spans: Ints, parts: Sequence[Cells], keys: int) -> Cells:
    pieces = []
    edges = np.unique(np.concatenate([spans, spans + grid.width_us]))
    for cells, chosen in zip(parts, cover([cells.slices for cells in parts], edges), strict=True):
        starts = _span_start(grid, cells.slices.start_us)
        inside = chosen & np.isin(starts, spans)
        for i in np.flatnonzero(inside):
            pieces.append(_widened(grid, cells, int(i), int(starts[i])))
    return merge(pieces, keys)


def _widened(grid: Grid, cells: Cells, position: int, start_us: int) -> Piece:
    """One slice's cells, said to be of the whole span."""
    low, high = int(cells.offsets[position]), int(cells.offsets[position + 1])
    one, signed = slice(position, position + 1), cells.slices.signed
    slices = Slices(
        np.array([start_us]), np.array([start_us + grid.width_us]), cells.slices.late_class[one],
        None if signed is None else signed._replace(ids=signed.ids[one]),
    )  # fmt: skip
    columns = {name: column[low:high] for name, column in cells.columns.items()}
    return Piece(slices, np.zeros(high - low, np.int64), cells.slots[low:high], columns)


def _pieces(cells: Cells) -> list[Piece]:
    rows = np.repeat(np.arange(len(cells.slices.start_us)), np.diff(cells.offsets))
    return [Piece(cells.slices, rows, cells.slots, cells.columns)]


def cover(parts: Sequence[Slices], edges_us: Ints) -> list[Mask]:
    """For each part the slices to read so that every cell between the edges is read once: the widest that fit.

    A piece fits if no edge lies strictly inside it.
    """
    start = np.concatenate([part.start_us for part in parts]) if parts else np.zeros(0, np.int64)
    end = np.concatenate([part.end_us for part in parts]) if parts else np.zeros(0, np.int64)
    fits = np.searchsorted(edges_us, start, "right") == np.searchsorted(edges_us, end, "left")
    fits &= (start >= edges_us[0]) & (end <= edges_us[-1])
    chosen = np.zeros(len(start), bool)
    taken = _Taken()
    widths = end - start
    for width in np.unique(widths[fits])[::-1]:
        same = np.flatnonzero(fits & (widths == width))
        for phase in np.unique(start[same] % width):
            rows = same[start[same] % width == phase]
            free = rows[~taken.overlap(start[rows], end[rows])]
            chosen[free] = True
            taken.add(np.unique(start[free]), int(width))
    return np.split(chosen, np.cumsum([len(part.start_us) for part in parts])[:-1]) if parts else []


class _Taken:
    """Disjoint intervals, in order."""

    def __init__(self) -> None:
        self._start = self._end = np.zeros(0, np.int64)

    def overlap(self, start: Ints, end: Ints) -> Mask:
        """Which of the intervals overlap one that is taken."""
        before = np.searchsorted(self._end, start, "right")
        nearest = np.append(self._start, np.iinfo(np.int64).max)[before]
        overlapping: Mask = nearest < end
        return overlapping

    def add(self, start: Ints, width: int) -> None:
        """Take more intervals, disjoint from all that are taken."""
        merged = np.concatenate([self._start, start])
        order = np.argsort(merged)
        self._start = merged[order]
        self._end = np.concatenate([self._end, start + width])[order]
