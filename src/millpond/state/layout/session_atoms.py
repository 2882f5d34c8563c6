"""Atoms: partial results of runs of a key's events, without a hole longer than the smallest gap of the group.

A session of a longer gap is a run of atoms, so sessions of all gaps are built from the same atoms. An atom is a cell
with its first and last event time, in columns that merge by minimum and maximum. Its slice is a lateness class.
Unlike other cells, a slot has any number of atoms, sorted by first time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints, Mask, firsts_of, ordered
from millpond.state.layout.cells import (
    Cells,
    Piece,
    Slices,
    by_column,
    cells_at,
    dtype_of,
    each_once,
    extreme_names,
    extreme_of,
    normalised,
    taken,
)
from millpond.state.layout.merge_rules import MergeRule, identities, is_low_word, merged_runs, rule_of

FIRST, LAST = "first:min", "last:max"
"""The columns with the times of an atom's first and last event, in µs. If events bring their own gaps, the second is
the latest end of the windows that they open, and the gap between atoms is 0."""

_LARGEST = np.iinfo(np.int64).max
_AT_ONCE = 1024
"""The number of rows that are added at once; normalised words are below 2**51, so their sum fits into int64."""


class Atoms(NamedTuple):
    """Atoms, ordered by lateness class; `targets`: for each row of each piece, the atom that contains it."""

    cells: Cells
    targets: list[Ints]


def begins(owners: Ints, first_us: Ints, last_us: Ints, gap_us: int) -> Mask:
    """Marks where runs begin in rows sorted by owner, then first time: after a hole longer than the gap.

    A hole exactly as long as the gap does not end a run, because windows that touch are merged.

    >>> begins(np.array([1, 1, 1]), np.array([0, 10, 21]), np.array([0, 10, 21]), 10).tolist()
    [True, False, True]
    """
    new = np.ones(len(owners), bool)
    new[1:] = owners[1:] != owners[:-1]
    reach = _reach(np.cumsum(new) - 1, last_us)
    new[1:] |= first_us[1:] > reach[:-1] + gap_us
    return new


def _reach(places: Ints, last_us: Ints) -> Ints:
    """The running maximum of the times of each owner; `places` number the owners from 0."""
    if not len(last_us):
        return last_us
    low, high = int(last_us.min()), int(last_us.max())
    span = high - low + 1
    if (int(places[-1]) + 1) * span <= _LARGEST:
        reach: Ints = np.maximum.accumulate(places * span + (last_us - low)) - places * span + low
        return reach
    values, ranks = np.unique(last_us, return_inverse=True)
    size = len(values)
    ranked: Ints = values[np.maximum.accumulate(places * size + ranks) - places * size]
    return ranked


def reduced(columns: Mapping[str, npt.NDArray[np.integer]], new: Mask) -> dict[str, Ints]:
    """The columns with the rows of each run merged into one row; a run begins where `new` is set."""
    merged = each_once(columns, lambda column: column.astype(np.int64, copy=False))
    if new.all():
        return merged
    while True:
        starts = np.flatnonzero(new)
        lengths = np.diff(np.append(starts, len(new)))
        within = np.arange(len(new)) - np.repeat(starts, lengths)
        part = within % _AT_ONCE == 0
        merged = normalised(_merged(merged, part))
        if int(lengths.max()) <= _AT_ONCE:
            return merged
        new = new[part]


def _merged(columns: Mapping[str, Ints], new: Mask) -> dict[str, Ints]:
    starts = np.flatnonzero(new)
    merged_columns: dict[tuple[MergeRule, int], Ints] = {}
    merged: dict[str, Ints] = {}
    for name, column in columns.items():
        if is_low_word(name):
            continue
        rule = rule_of(name)
        if f"{name}low" in columns:
            extremes = extreme_of(name, columns)
            assert extremes is not None
            merged |= extreme_names(name, merged_runs(rule, extremes, starts))
            continue
        same = (rule, id(column))
        if same not in merged_columns:
            merged_columns[same] = merged_runs(rule, column, starts)
        merged[name] = merged_columns[same]
    return merged


def merge_atoms(pieces: Sequence[Piece], gap_us: int) -> Atoms:
    """Merges pieces: atoms of the same slot and class without a hole longer than the gap become one."""
    counts = [len(piece.slots) for piece in pieces]
    if not sum(counts):
        none = np.zeros(0, np.int64)
        cells = Cells(Slices(none, none, none), np.zeros(1, np.int64), none, {FIRST: none, LAST: none})
        return Atoms(cells, [none for _ in pieces])
    columns = joined(pieces)
    slots = np.concatenate([piece.slots.astype(np.int64, copy=False) for piece in pieces])
    classes = np.concatenate([piece.slices.late_class[piece.slice_rows] for piece in pieces])
    owners = classes * (int(slots.max()) + 1) + slots
    order = sorted_by(owners, columns[FIRST])
    owners = owners[order]
    new = begins(owners, columns[FIRST][order], columns[LAST][order], gap_us)
    merged = reduced(taken(columns, order), new)
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(new) - 1
    chosen = order[new]
    present, starts = firsts_of(classes[chosen])
    offsets = np.append(starts, len(chosen))
    slices = Slices(np.minimum.reduceat(merged[FIRST], starts), np.maximum.reduceat(merged[LAST], starts) + 1, present)
    cells = Cells(slices, offsets, slots[chosen].astype(np.int32), merged)
    return Atoms(cells, np.split(place, np.cumsum(counts)[:-1]))


def joined(pieces: Sequence[Piece]) -> dict[str, Ints]:
    """Concatenates the columns of all pieces; a column that a piece lacks is filled with the identity of its merge."""

    def concatenated(rule: MergeRule, parts: Sequence[npt.NDArray[Any] | None]) -> npt.NDArray[Any]:
        dtype = dtype_of(parts)
        filled = [
            identities(rule, dtype, len(piece.slots)) if part is None else part
            for piece, part in zip(pieces, parts, strict=True)
        ]
        return np.concatenate(filled).astype(dtype, copy=False)

    return by_column(pieces, concatenated)


def sorted_by(owners: Ints, times_us: Ints) -> Ints:
    """The order of rows by owner (not negative), then time."""
    if not len(owners):
        return np.zeros(0, np.int64)
    low, high = int(times_us.min()), int(times_us.max())
    span = high - low + 1
    if (int(owners.max()) + 1) * span <= _LARGEST:
        return ordered(owners * span + (times_us - low))
    return np.lexsort((times_us, owners))


def some_atoms(cells: Cells, keep: Mask) -> Cells:
    """The atoms where `keep` is set."""
    return cells if keep.all() else cells_at(cells, np.flatnonzero(keep))
