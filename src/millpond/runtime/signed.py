"""Blocks from cells that are split by signature: for many filters at once, what `combine` makes for one.

The filters that queries ask for are sets of signatures. Where they contain each other, as thresholds do, they form a
chain: each cell is added once, to the smallest set that has it, and one running sum along the chain fills the others.
A block's dense arrays then hold (pane, set, slot), so that a window of a thousand queries is one subtraction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from millpond.arrays import WIDE, Ints, Mask, ordered
from millpond.plan.plan import Measure
from millpond.runtime.combine import Block, Extremes, block_of
from millpond.state.cells import Cells, best_at, better, extreme_of, merge_rule, no_extreme, word_names, words_of
from millpond.state.exact import normalise

_BLOCK_VALUES = 1 << 20
"""Elements of a dense array: (panes + 1) x sets x slots."""

_COLUMNS = 16
"""With more columns than this, blocks are smaller."""

_ADDED_AT_ONCE = 1024  # normalised words are below 2**51: int64 has room for 2**11 of them

_CHAINS_TRIED = 8


class Sets(NamedTuple):
    """Sets of signatures that filters stand for, those of a chain one after the other, each within the next.

    `of[filter id]` is a set's place; `bits[i, g]` says whether signature `ids[i]` is in set g; `starts` are the
    places at which chains begin.
    """

    of: Mapping[str, int]
    ids: Ints
    bits: Mask
    starts: list[int]


def sets_of(parts: Sequence[Cells], filters: Sequence[str]) -> Sets:
    """The distinct sets that `filters` stand for, among the signatures in `parts`."""
    held = [np.unique(cells.slices.signatures) for cells in parts]
    ids = np.unique(np.concatenate(held))
    bits = np.zeros((len(ids), len(filters)), bool)
    for cells, own in zip(parts, held, strict=True):
        if cells.slices.signed is not None:
            bits[np.searchsorted(ids, own)] |= cells.slices.signed.table.passing(filters, own)
    _, first, same = np.unique(np.packbits(bits, axis=0), axis=1, return_index=True, return_inverse=True)
    chains = _chains(bits[:, first])
    order = [g for chain in chains for g in chain]
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    of = dict(zip(filters, place[same.reshape(-1)].tolist(), strict=True))
    starts = np.cumsum([0, *(len(chain) for chain in chains[:-1])]).tolist()
    return Sets(of, ids, bits[:, first[order]], starts)


def _chains(bits: Mask) -> list[list[int]]:
    """Columns in chains: each set contains the one before it."""
    chains: list[list[int]] = []
    for g in np.argsort(bits.sum(axis=0), kind="stable").tolist():
        for chain in reversed(chains[-_CHAINS_TRIED:]):
            if not (bits[:, chain[-1]] & ~bits[:, g]).any():
                chain.append(g)
                break
        else:
            chains.append([g])
    return chains


class _Flat(NamedTuple):
    """Rows of many cells one after the other: slot, pane, and place of the signature in `Sets.ids`."""

    slots: Ints
    panes: Ints
    signatures: Ints
    columns: Mapping[str, Extremes]

    def take(self, rows: Ints | slice) -> _Flat:
        columns = {name: column[rows] for name, column in self.columns.items()}
        return _Flat(self.slots[rows], self.panes[rows], self.signatures[rows], columns)


def signed_blocks(
    edges: list[int], parts: Sequence[Cells], chosen: Sequence[Mask], measures: Sequence[Measure], keys: int
) -> Iterator[Block]:
    """The panes between `edges` filled from the chosen slices, block by block of slots, for some measures."""
    sets = sets_of(parts, list(dict.fromkeys(measure.filter_id for measure in measures)))
    flat = _flat(edges, parts, chosen, {measure.base.id for measure in measures}, sets)
    values = _BLOCK_VALUES * _COLUMNS // max(_COLUMNS, len(flat.columns))
    least = 64 * _COLUMNS // max(_COLUMNS, len(flat.columns))
    step = max(1, least, values // (len(edges) * sets.bits.shape[1]), keys >> 15)
    owners = flat.slots // step
    order = np.argsort(owners.astype(np.int16), kind="stable")  # by radix, as there are few blocks
    flat = flat.take(order)
    bounds = np.searchsorted(owners[order], np.arange(-(-keys // step) + 1)).tolist()
    for block, (low, high) in enumerate(pairwise(bounds)):
        if low < high:
            first = block * step
            some = flat.take(slice(low, high))
            size = min(step, keys - first)
            dense = _dense(some._replace(slots=some.slots - first), sets, len(edges) - 1, size)
            yield block_of(dense, first, size, edges)._replace(sets=sets.of)


def _flat(
    edges: list[int], parts: Sequence[Cells], chosen: Sequence[Mask], measures: set[str], sets: Sets
) -> _Flat:
    """The rows of the chosen slices whose signature is in some set."""
    borders = np.array(edges, np.int64)
    asked = np.asarray(sets.bits.any(axis=1))
    names = sorted({name for cells in parts for name in cells.columns if name.partition(":")[0] in measures})
    slots, panes, signatures = [], [], []
    columns: dict[str, list[Extremes]] = {name: [] for name in names if merge_rule(name) != "low"}
    are_wide = {name for name in columns if f"{name}low" in names}
    for cells, mask in zip(parts, chosen, strict=True):
        own = np.searchsorted(sets.ids, cells.slices.signatures)
        owners = np.repeat(np.arange(len(mask)), np.diff(cells.offsets))
        rows = np.flatnonzero((mask & asked[own])[owners])
        owners = owners[rows]
        slots.append(cells.slots[rows].astype(np.int64))
        panes.append((np.searchsorted(borders, cells.slices.start_us, "right") - 1)[owners])
        signatures.append(own[owners])
        for name, found in columns.items():
            found.append(_taken(name, cells, rows, WIDE if name in are_wide else np.dtype(np.int64)))
    joined = {name: np.concatenate(found) for name, found in columns.items()}
    return _Flat(np.concatenate(slots), np.concatenate(panes), np.concatenate(signatures), joined)


def _taken(name: str, cells: Cells, rows: Ints, dtype: np.dtype[Any]) -> Extremes:
    """Some rows of a column; of one that the cells lack, what changes nothing."""
    how = merge_rule(name)
    column = cells.columns.get(name) if how == "add" else extreme_of(name, cells.columns)
    if column is None:
        return np.zeros(len(rows), np.int64) if how == "add" else no_extreme(how, dtype, len(rows))
    return column[rows].astype(dtype, copy=False)


def _dense(flat: _Flat, sets: Sets, panes: int, size: int) -> dict[str, Extremes]:
    """Every column as (pane, set and slot); sums are carried over before one could leave int64."""
    every = _entries(flat, sets, np.arange(len(flat.slots)))
    words = [name for name in flat.columns if ":w" in name]
    result = {name: _filled(name, flat, sets, every, panes, size) for name in flat.columns if name not in words}
    sums: dict[str, Ints] = {}
    for chosen in _runs(flat.slots * panes + flat.panes):
        entries = every if chosen is None else _entries(flat, sets, chosen)
        for name in words:
            found = _filled(name, flat, sets, entries, panes, size)
            sums[name] = sums[name] + found if name in sums else found
        if chosen is not None:
            for measure in dict.fromkeys(name.partition(":")[0] for name in words):
                own = words_of(measure, sums)
                sums = {name: column for name, column in sums.items() if not name.startswith(f"{measure}:w")}
                sums |= word_names(measure, normalise(own))
    return {name: column.reshape(panes, -1) for name, column in (result | sums).items()}


def _runs(targets: Ints) -> Iterator[Ints | None]:
    """Rows of which no target has more than can be added at once; None: all of them."""
    if int(np.bincount(targets).max()) <= _ADDED_AT_ONCE:
        yield None
        return
    order = ordered(targets)
    sorted_ = targets[order]
    starts = np.flatnonzero(np.append(True, sorted_[1:] != sorted_[:-1]))
    run = (np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))) // _ADDED_AT_ONCE
    for n in range(int(run.max()) + 1):
        yield np.sort(order[run == n])


class _Entries(NamedTuple):
    """Which rows go to which set first in each chain."""

    rows: Ints
    sets: Ints


def _entries(flat: _Flat, sets: Sets, rows: Ints) -> _Entries:
    found_rows, found_sets = [], []
    for start, end in zip(sets.starts, [*sets.starts[1:], sets.bits.shape[1]], strict=True):
        within = sets.bits[:, start:end]
        first = np.where(within.any(axis=1), start + within.argmax(axis=1), -1)[flat.signatures[rows]]
        held = np.flatnonzero(first >= 0)
        found_rows.append(rows[held])
        found_sets.append(first[held])
    return _Entries(np.concatenate(found_rows), np.concatenate(found_sets))


def _filled(name: str, flat: _Flat, sets: Sets, entries: _Entries, panes: int, size: int) -> Extremes:
    """One column spread out over (pane, set, slot): entered where a row first belongs, then passed on in the chain."""
    how, width = merge_rule(name), sets.bits.shape[1]
    rows = entries.rows
    target = (flat.panes[rows] * width + entries.sets) * size + flat.slots[rows]
    values = flat.columns[name]
    if how == "add":
        dense = np.zeros(panes * width * size, np.int64)
        np.add.at(dense, target, values[rows])
    else:
        dense = no_extreme(how, values.dtype, panes * width * size)
        best_at(how, dense, target, values[rows])
    cube = dense.reshape(panes, width, size)
    if how == "registers":
        for start, end in zip(sets.starts, [*sets.starts[1:], width], strict=True):
            chain = cube.view(np.uint8)[:, start:end]
            np.maximum.accumulate(chain, axis=1, out=chain)
        return dense
    for g in sorted(set(range(width)) - set(sets.starts)):
        before = cube[:, g - 1]
        cube[:, g] = cube[:, g] + before if how == "add" else better(how, cube[:, g], before)
    return dense
