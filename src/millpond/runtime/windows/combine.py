"""Combines slices into windows: merges partial results of all keys over slices, for many windows at once.

Event time is cut into panes at the starts and ends of the windows that close. Cells are spread into dense arrays
(pane, slot), one block of slots at a time. Sums are prefix-summed over panes, so that each window is one subtraction,
which is exact on integers. Rules without an inverse use a sparse table, with two look-ups per window whose runs of
panes may overlap; they must be idempotent, as minima and maxima are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from millpond.arrays import WIDE, Ints, Mask
from millpond.runtime.windows.closing import Closing
from millpond.runtime.windows.tiles import LiveCells, cover_of
from millpond.state.layout.cells import Cells, extreme_of, place_of, word_names, words_of
from millpond.state.layout.merge_rules import (
    MergeRule,
    identities,
    is_low_word,
    merged,
    merged_overlapping,
    rule_of,
)
from millpond.state.numbers.exact_sums import normalise

ColumnValues: TypeAlias = npt.NDArray[Any]
"""Order codes, or 128-bit integers."""

BLOCK_BITS = 13
_BLOCK_SLOTS = 1 << BLOCK_BITS
_BLOCK_CELLS = 1 << 23

_SPARSE = 8
"""If fewer than one in this many slots of a block are wanted, they are looked up individually."""

_ADDED_AT_ONCE = 1024  # normalised words are below 2**51: with prefix sums over panes there is room for 2**11


class Block(NamedTuple):
    """Slots `first` … `first + size - 1` over all panes of a run, prepared for lookups of any of its windows.

    `columns` have rules with an inverse, `extremes` the other rules. `edges_us` maps each edge to the pane that begins
    there.
    """

    first: int
    size: int
    columns: Mapping[str, Ints]
    extremes: Mapping[str, list[ColumnValues]]
    edges_us: Mapping[int, int]

    @property
    def slots(self) -> Ints:
        """The slots of the block, ascending."""
        return np.arange(self.first, self.first + self.size)

    def dtype(self, name: str) -> np.dtype[Any]:
        """The type of a column."""
        return self.columns[name].dtype if name in self.columns else self.extremes[name][0].dtype

    def window(self, name: str, window: Closing, rows: Ints | slice = slice(None)) -> ColumnValues:
        """The merged values of a column over a window, for all slots of the block or for `rows`."""
        low, high = self.edges_us[window.start_us], self.edges_us[window.end_us]
        if isinstance(rows, np.ndarray) and len(rows) * _SPARSE > self.size:  # one pass in order, then one out of order
            return self.window(name, window)[rows]
        if name in self.columns:
            prefix, inverse = self.columns[name], rule_of(name).inverse
            assert inverse is not None
            return np.asarray(inverse(prefix[high][rows], prefix[low][rows]))
        level = (high - low).bit_length() - 1
        table = self.extremes[name][level]
        return merged_overlapping(rule_of(name), table[low][rows], table[high - (1 << level)][rows])


def edges_of(run: Sequence[Closing]) -> list[int]:
    """The starts and ends of the windows of a run, ascending; these are the borders of its panes."""
    return sorted({edge for window in run for edge in (window.start_us, window.end_us)})


def blocks(edges: list[int], ranges: Sequence[CellRange], measures: Collection[str], keys: int) -> Iterator[Block]:
    """The panes between `edges`, filled from `ranges`, in blocks of slots.

    `measures`: the ids of the measures to fill. Blocks are so small that their dense arrays fit in 64 MB.
    """
    parts = {id(part.cells): part.cells for part in ranges}.values()
    names = sorted(
        {
            name
            for cells in parts
            for name in cells.columns
            if name.partition(":")[0] in measures and not is_low_word(name)
        }
    )
    tables = sum(len(edges).bit_length() if rule_of(name).inverse is None else 1 for name in names)
    step = max(512, min(_BLOCK_SLOTS, _BLOCK_CELLS // max(1, tables * len(edges))))
    places = {edge: place for place, edge in enumerate(edges)}
    for first in range(0, keys, step):
        size = min(step, keys - first)
        inside = [part.cut(first, first + size) for part in ranges]
        inside = [part for part in inside if part.begin < part.end]
        if inside:
            yield _block(_Dense(inside, len(edges) - 1, first, size), names, places)


def _block(dense: _Dense, names: Sequence[str], edges: Mapping[int, int]) -> Block:
    columns: dict[str, ColumnValues] = {name: dense.filled(name) for name in names if ":w" not in name}
    for measure in dict.fromkeys(name.partition(":")[0] for name in names if ":w" in name):
        columns |= dense.filled_words([name for name in names if name.startswith(f"{measure}:w")])
    prefixes: dict[str, Ints] = {}
    tables: dict[str, list[ColumnValues]] = {}
    for name, filled in columns.items():
        rule = rule_of(name)
        if rule.inverse is None:
            tables[name] = _sparse_table(filled, rule)
        else:
            prefixes[name] = _prefixes(filled, rule)
    return Block(dense.first, dense.size, prefixes, tables, edges)


def _prefixes(filled: Ints, rule: MergeRule) -> Ints:
    """For each pane, all previous panes merged.

    Computed row by row, because NumPy's own sums along this axis take five times as long.
    """
    prefixes = np.empty((len(filled) + 1, filled.shape[1]), np.int64)
    prefixes[0] = rule.identity
    for pane, row in enumerate(filled):
        rule.ufunc(prefixes[pane], row, out=prefixes[pane + 1])
    return prefixes


class CellRange(NamedTuple):
    """The rows [begin, end) of some cells, all of one slice that lies in one pane."""

    cells: Cells
    begin: int
    end: int
    pane: int

    @property
    def slots(self) -> npt.NDArray[np.integer]:
        return self.cells.slots[self.begin : self.end]

    def cut(self, first: int, end: int) -> CellRange:
        low, high = place_of(self.slots, first), place_of(self.slots, end)
        return self._replace(begin=self.begin + low, end=self.begin + high)


def slices_between(live: LiveCells, edges: list[int], late_class: int) -> list[Mask]:
    """For each part, the slices that contain each cell of classes 0 … `late_class` between the edges exactly once."""
    covering = cover_of(live, np.array(edges, np.int64))
    return [mask & (cells.slices.late_class <= late_class) for cells, mask in zip(live.parts, covering, strict=True)]


def ranges_of(parts: Sequence[Cells], edges: list[int], chosen: Sequence[Mask]) -> list[CellRange]:
    """The ranges of rows of the chosen slices."""
    ranges = []
    borders = np.array(edges, np.int64)
    for cells, mask in zip(parts, chosen, strict=True):
        panes = np.searchsorted(borders, cells.slices.start_us, "right") - 1
        for i in np.flatnonzero(mask):
            ranges.append(CellRange(cells, int(cells.offsets[i]), int(cells.offsets[i + 1]), int(panes[i])))
    return ranges


class _Layer:
    """At most one range per pane, so that no two of its rows have the same place in a dense (pane, slot) array."""

    def __init__(self, parts: Sequence[CellRange], first: int, size: int) -> None:
        self._parts = parts
        self._places = np.concatenate([part.slots + np.int64(part.pane * size - first) for part in parts])

    def merge_into(self, dense: ColumnValues, name: str, rule: MergeRule, *, first: bool) -> None:
        """Merge a column into a dense array, which has identities only if this is the `first` layer."""
        found = [extreme_of(name, part.cells.columns, slice(part.begin, part.end)) for part in self._parts]
        if all(values is None for values in found):
            return
        each = [
            identities(rule, dense.dtype, part.end - part.begin) if values is None else values
            for part, values in zip(self._parts, found, strict=True)
        ]
        values = np.concatenate(each)
        flat = dense.reshape(-1)
        flat[self._places] = values if first else merged(rule, flat[self._places], values)


class _Dense:
    """Fills dense (pane, slot) arrays for the slots `first` … `first + size - 1` from rows of cells."""

    def __init__(self, parts: Sequence[CellRange], panes: int, first: int, size: int) -> None:
        self.first, self.size, self._panes, self._ranges = first, size, panes, len(parts)
        self._columns = frozenset[str]().union(*(part.cells.columns for part in parts))
        layers: list[list[CellRange]] = []
        filled = [0] * panes
        for part in parts:
            if filled[part.pane] == len(layers):
                layers.append([])
            layers[filled[part.pane]].append(part)
            filled[part.pane] += 1
        self._layers = [_Layer(layer, first, size) for layer in layers]

    def filled(self, name: str, begin: int = 0, end: int | None = None) -> ColumnValues:
        """One column of some layers as a dense array, merged."""
        rule = rule_of(name)
        is_wide = f"{name}low" in self._columns
        dense = identities(rule, WIDE if is_wide else np.dtype(np.int64), (self._panes, self.size))
        for position, layer in enumerate(self._layers[begin:end]):
            layer.merge_into(dense, name, rule, first=position == 0)
        return dense

    def filled_words(self, names: Sequence[str]) -> dict[str, Ints]:
        """The words of one exact sum as dense arrays; carries are propagated before a word could leave int64."""
        measure = names[0].partition(":")[0]
        columns: dict[str, Ints] = {}
        for begin in range(0, len(self._layers), _ADDED_AT_ONCE):
            for name in names:
                filled = self.filled(name, begin, begin + _ADDED_AT_ONCE)
                columns[name] = columns[name] + filled if name in columns else filled
            if self._ranges > _ADDED_AT_ONCE:
                columns = word_names(measure, normalise(words_of(measure, columns)))
        return columns


def _sparse_table(dense: ColumnValues, rule: MergeRule) -> list[ColumnValues]:
    """Level k has, for each pane, the best value of the 2**k panes that begin with it (Bender, Farach-Colton 2000)."""
    levels = [dense]
    width = 1
    while 2 * width <= len(dense):
        last = levels[-1]
        levels.append(merged(rule, last[:-width], last[width:]))
        width *= 2
    return levels
