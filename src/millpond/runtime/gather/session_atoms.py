"""Builds the atoms (`state.layout.session_atoms`) that the gather sends for session windows."""

from __future__ import annotations

import numpy as np

from millpond.arrays import Ints, places_of
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.aggregates.partials import Partials, Rows, roll_up
from millpond.state.layout.cells import Piece, Slices, taken
from millpond.state.layout.session_atoms import FIRST, LAST, begins, sorted_by


def atoms_of_rows(group: GroupPlan, rows: Rows, keys: Ints, times_us: Ints, late_classes: Ints) -> Piece:
    """The atoms of a chunk, sorted by key, lateness class and time; all arguments have one value per row.

    Two events are in one atom only if their keys and classes are equal, so a query takes all events of an atom or none.
    """
    class_count = int(late_classes.max()) + 1
    owners = keys * class_count + late_classes
    order = sorted_by(owners, times_us)
    times = times_us[order]
    lasts = times if group.own_end is None else rows.values(group.own_end).astype(np.int64)[order]
    new = begins(owners[order], times, lasts, group.gaps_us[0])
    atoms = np.empty(rows.count, np.int64)
    atoms[order] = np.cumsum(new) - 1
    starts = np.flatnonzero(new)
    rolled = roll_up(group, Partials(rows, atoms, len(starts)))
    first, last = times[starts], np.maximum.reduceat(lasts, starts)
    slots, classes = np.divmod(owners[order[starts]], class_count)
    every = Slices(np.zeros(class_count, np.int64), np.zeros(class_count, np.int64), np.arange(class_count))
    return Piece(every, classes, slots, {FIRST: first, LAST: last, **rolled.columns})


def cut_atoms(atoms: Piece, first_key: int, end_key: int) -> Piece | None:
    """The atoms of keys `first_key` … `end_key` - 1, with keys numbered from 0; None if there are none."""
    low, high = np.searchsorted(atoms.slots, [first_key, end_key]).tolist()
    if low == high:
        return None
    used, slice_rows = places_of(atoms.slice_rows[low:high])
    columns = taken(atoms.columns, slice(low, high))
    return Piece(atoms.slices.take(used), slice_rows, atoms.slots[low:high] - first_key, columns)
