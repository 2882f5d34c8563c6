"""Combines slices into windows when few keys have events in each slice: merges cells window by window.

`combine` spreads cells over (pane, slot), which grows with the number of keys ever seen. This method grows with the
number of cells, each counted once per window that contains it. It suits many keys, short panes and little overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from millpond.arrays import Ints, Mask, places_among, places_of, repeated
from millpond.runtime.windows.closing import Closing
from millpond.runtime.windows.combine import BLOCK_BITS, ColumnValues, edges_of
from millpond.state.layout.cells import Cells, Piece, Slices, bounds_of, extreme_of, merge, taken
from millpond.state.layout.merge_rules import is_low_word

LEAST_PLACES = 1 << 17
"""Below this number of places (slots times panes), cells are always spread into dense arrays."""

_PLACES_PER_ROW, _PLACES_PER_PIECE = 8, 5000
"""How many places the dense method fills while this one merges a cell, and while it handles a piece.

The time for a piece does not depend on its cells."""

_ROWS_AT_ONCE = 1 << 19


class SparseBlock(NamedTuple):
    """Merged cells of some slots, where each slice of `cells` is a window.

    `places` maps the (start, end) of a window to the position of its slice. The slots of `cells` are positions in
    `slots`.
    """

    slots: Ints
    places: dict[tuple[int, int], int]
    cells: Cells

    def found(self, presence: str, windows: Sequence[Closing]) -> tuple[Ints, Ints]:
        """The cells of some windows with a count above 0 in column `presence`, and the window (position) of each."""
        rows, of = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        counted = self.cells.columns.get(presence)
        for i, window in enumerate(windows):
            place = self.places.get((window.start_us, window.end_us))
            if place is not None and counted is not None:
                low, high = self.cells.offsets[place : place + 2].tolist()
                rows.append(low + np.flatnonzero(counted[low:high] > 0))
                of.append(np.full(len(rows[-1]), i))
        return np.concatenate(rows), np.concatenate(of)

    def columns(self, measures: Collection[str], rows: Ints) -> dict[str, ColumnValues]:
        """The columns of some measures, for the cells `rows`."""
        every = self.cells.columns
        names = [name for name in every if name.partition(":")[0] in measures and not is_low_word(name)]
        return {name: extreme[rows] for name in names if (extreme := extreme_of(name, every)) is not None}


class _Covered(NamedTuple):
    """Pairs of a slice of one part and a window that contains it; `nth`: the number of the slice within its window."""

    cells: Cells
    slices: Ints
    windows: Ints
    nth: Ints

    @property
    def rows(self) -> int:
        """The number of cells, each counted once per window that contains it."""
        return int((self.cells.offsets[self.slices + 1] - self.cells.offsets[self.slices]).sum())

    @property
    def pieces(self) -> int:
        return int(self.nth.max(initial=-1)) + 1


def sparse_blocks(
    run: Sequence[Closing], parts: Sequence[Cells], chosen: Sequence[Mask], measures: Collection[str], keys: int
) -> Iterator[SparseBlock] | None:
    """The cells of the chosen slices, by the windows of a run that contain them; None if the dense method is faster.

    A chosen slice lies either completely within a window or outside of it. `measures`: the ids of the measures to
    merge. All slots are below `keys`.
    """
    panes = len(edges_of(run)) - 1
    if keys * panes < LEAST_PLACES:
        return None
    starts, ends = np.array(sorted({(window.start_us, window.end_us) for window in run}), np.int64).T
    covered = [_covered(cells, mask, starts, ends) for cells, mask in zip(parts, chosen, strict=True)]
    rows, pieces = sum(one.rows for one in covered), sum(one.pieces for one in covered)
    if rows * _PLACES_PER_ROW + pieces * _PLACES_PER_PIECE > _touched(parts, chosen, keys) * panes:
        return None
    windows = Slices(starts, ends, np.zeros(len(starts), np.int64))
    return _merged(covered, windows, measures, keys, max(1, rows // _ROWS_AT_ONCE))


def _covered(cells: Cells, chosen: Mask, starts: Ints, ends: Ints) -> _Covered:
    """Pairs the chosen slices, which are in the order of their starts, with the windows that contain them."""
    held = np.flatnonzero(chosen)
    begins = cells.slices.start_us[held]
    low, high = np.searchsorted(begins, starts), np.searchsorted(begins, ends)
    windows, nth = repeated(high - low)
    return _Covered(cells, held[low[windows] + nth], windows, nth)


def _touched(parts: Sequence[Cells], chosen: Sequence[Mask], keys: int) -> int:
    """The number of slots in the blocks that contain a cell; the dense method skips other blocks."""
    blocks = np.zeros((keys >> BLOCK_BITS) + 1, bool)
    for cells, mask in zip(parts, chosen, strict=True):
        for i in np.flatnonzero(mask).tolist():
            blocks[cells.slots[cells.offsets[i] : cells.offsets[i + 1]] >> BLOCK_BITS] = True
    return min(keys, int(np.count_nonzero(blocks)) << BLOCK_BITS)


def _merged(
    covered: Sequence[_Covered], windows: Slices, measures: Collection[str], keys: int, blocks: int
) -> Iterator[SparseBlock]:
    step = -(-keys // blocks)
    for first in range(0, keys, step):
        until = first + step if first + step < keys else None
        pieces = [piece for one in covered for piece in _pieces(one, windows, measures, first, until)]
        if pieces:
            slots, places = places_among([piece.slots for piece in pieces])
            numbered = [piece._replace(slots=own) for piece, own in zip(pieces, places, strict=True)]
            cells = merge(numbered, len(slots))
            bounds = zip(cells.slices.start_us.tolist(), cells.slices.end_us.tolist(), strict=True)
            yield SparseBlock(slots, {bound: i for i, bound in enumerate(bounds)}, cells)


def _pieces(
    covered: _Covered, windows: Slices, measures: Collection[str], first: int, until: int | None
) -> Iterator[Piece]:
    """The cells of slots `first` … `until` - 1; a piece has one slice per window, so each slot at most once in it."""
    cells = covered.cells
    columns = {name: column for name, column in cells.columns.items() if name.partition(":")[0] in measures}
    distinct, places = places_of(covered.slices)
    low, high = (bound[places] for bound in bounds_of(cells, distinct, first, until))
    counts = high - low
    for nth in range(covered.pieces):
        at = np.flatnonzero((covered.nth == nth) & (counts > 0))
        if len(at):
            of, place = repeated(counts[at])
            rows = low[at][of] + place
            yield Piece(windows, covered.windows[at][of], cells.slots[rows], taken(columns, rows))
