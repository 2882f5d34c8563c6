"""Builds blocks of cells that are split by signature: one row per cell, in the order of panes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from millpond.arrays import WIDE, Ints, Mask, ordered
from millpond.plan.groups.plan import Measure
from millpond.runtime.windows.combine import ColumnValues
from millpond.state.keys.filter_signatures import Signatures, union
from millpond.state.layout.cells import Cells, extreme_of
from millpond.state.layout.merge_rules import identities, is_low_word, rule_of

_ENTRIES = 1 << 19
"""The number of cells in a block; a cell counts as often as it enters a chain."""


class SignedBlock(NamedTuple):
    """Cells of slots `first` … `first + size - 1`, in the order of panes; pane i begins at `bounds[i]`.

    `of`: the slots of the cells, counted from `first`. `edges_us` maps each edge to the pane that begins there.

    `signatures` are positions in `table`; its last row is of none of them.
    """

    first: int
    size: int
    edges_us: Mapping[int, int]
    table: Signatures
    of: Ints
    signatures: Ints
    bounds: list[int]
    columns: Mapping[str, ColumnValues]

    @property
    def slots(self) -> Ints:
        """The slots of the block, ascending."""
        return np.arange(self.first, self.first + self.size)


def signed_blocks(
    edges: list[int], parts: Sequence[Cells], chosen: Sequence[Mask], measures: Sequence[Measure], keys: int
) -> Iterator[SignedBlock]:
    """The cells of the chosen slices between `edges` for some measures, in blocks; all slots are below `keys`."""
    tables = [cells.slices.signed.table for cells in parts if cells.slices.signed is not None]
    if not tables:
        return
    table = union(tables)
    entered = np.count_nonzero(table.ranks, axis=1)
    flat = _flat(edges, parts, chosen, {measure.base.id for measure in measures}, table, _passing(table, measures))
    count = max(1, int(entered[flat.signatures].sum()) // _ENTRIES)
    step = max(1, -(-keys // count), keys >> 15)
    owners, panes = flat.slots // step, len(edges) - 1
    order = ordered(owners * panes + flat.panes)
    bounds = np.searchsorted(owners[order] * panes + flat.panes[order], np.arange(-(-keys // step) * panes + 1))
    places = {edge: place for place, edge in enumerate(edges)}
    for block, (low, high) in enumerate(pairwise(bounds[::panes].tolist())):
        if low < high:
            rows, first = order[low:high], block * step
            yield SignedBlock(
                first, min(step, keys - first), places, table, flat.slots[rows] - first, flat.signatures[rows],
                (bounds[block * panes : (block + 1) * panes + 1] - low).tolist(),
                {name: column[rows] for name, column in flat.columns.items()},
            )  # fmt: skip


def _passing(table: Signatures, measures: Sequence[Measure]) -> Mask:
    """The signatures that pass the filter of some measure."""
    least, places = np.array(table.lengths), table.places
    for name in {measure.filter_id for measure in measures}:
        ladder, step = places.get(name, (-1, 0))
        if ladder >= 0:
            least[ladder] = min(least[ladder], step)
    return np.asarray((table.ranks > least).any(axis=1))


class _Flat(NamedTuple):
    """Rows of several `Cells`, concatenated: the slot, the pane, and the position of the signature in the table."""

    slots: Ints
    panes: Ints
    signatures: Ints
    columns: Mapping[str, ColumnValues]


def _flat(
    edges: list[int], parts: Sequence[Cells], chosen: Sequence[Mask], measures: set[str], table: Signatures,
    passing: Mask,
) -> _Flat:  # fmt: skip
    """The rows of the chosen slices whose signature is in the mask `passing`."""
    borders = np.array(edges, np.int64)
    names = sorted({name for cells in parts for name in cells.columns if name.partition(":")[0] in measures})
    slots, panes, signatures = [], [], []
    columns: dict[str, list[ColumnValues]] = {name: [] for name in names if not is_low_word(name)}
    are_wide = {name for name in columns if f"{name}low" in names}
    for cells, mask in zip(parts, chosen, strict=True):
        if cells.slices.signed is None:
            continue
        own = np.searchsorted(table.ids, cells.slices.signatures, "right") - 1  # UNSIGNED is less than all ids
        wanted = mask & (own >= 0) & passing[own]
        owners = np.repeat(np.arange(len(mask)), np.diff(cells.offsets))
        rows = np.flatnonzero(wanted[owners])
        owners = owners[rows]
        slots.append(cells.slots[rows].astype(np.int64))
        panes.append((np.searchsorted(borders, cells.slices.start_us, "right") - 1)[owners])
        signatures.append(own[owners])
        for name, found in columns.items():
            found.append(_taken(name, cells, rows, WIDE if name in are_wide else np.dtype(np.int64)))
    joined = {name: np.concatenate(found) for name, found in columns.items()}
    return _Flat(np.concatenate(slots), np.concatenate(panes), np.concatenate(signatures), joined)


def _taken(name: str, cells: Cells, rows: Ints, dtype: np.dtype[Any]) -> ColumnValues:
    """Some rows of a column; if the cells lack the column, values that change no result."""
    column = extreme_of(name, cells.columns)
    if column is None:
        return identities(rule_of(name), dtype, len(rows))
    return column[rows].astype(dtype, copy=False)
