"""Raw columns: what a gather sends instead of partials where those would be larger.

With many measures, or nearly as many cells as events, partials move more bytes than the events themselves. Then
the packet carries, per row: key, slice, each distinct value, and one bit per distinct filter; the fold makes the
partials. So the bytes moved are at most those of the smaller form, whatever the number of queries.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.arrays import WIDE, Ints, Mask
from millpond.model.expressions import Expression
from millpond.plan.plan import GroupPlan
from millpond.runtime.columns import Array
from millpond.runtime.partials import Partials, Rows, piece_of_cells, roll_up
from millpond.state.cells import Piece, Slices
from millpond.state.segments import narrow

_COLUMN_BYTES = {"count": 2, "sum": 14, "squares": 21, "min": 8, "max": 8}
"""Rough bytes of a cell per measure: what exact sums of usual data take."""


class RawRows(NamedTuple):
    """Rows of one group and instance: key and slice positions, values and filter bits.

    `filters[i]` is the filter of measure i as a position in `masks`, -1 where all rows pass.
    """

    slices: Slices
    slice_rows: Array
    key_rows: Array
    values: list[Array]
    masks: list[Mask]
    filters: list[int]


def is_smaller_raw(group: GroupPlan, rows: Rows, cells: int) -> bool:
    """Whether the rows themselves take fewer bytes than partials of so many cells."""
    kept: dict[Hashable, int] = {}
    for measure in group.kept:
        name = (measure.kind, measure.value, rows.filter_of(measure.filter))
        kept[name] = _COLUMN_BYTES[measure.kind]
    filters = {rows.filter_of(measure.filter) for measure in group.kept}
    per_row = 5 + 8 * len(_values(group)) + len(filters) / 8
    per_cell = 5 + sum(kept.values())
    return rows.count * per_row < cells * per_cell


def _values(group: GroupPlan) -> list[Expression]:
    """The distinct values of the group's measures, in the order in which they travel."""
    return list(dict.fromkeys(measure.value for measure in group.kept if measure.value is not None))


def raw_rows(group: GroupPlan, rows: Rows, chosen: Ints, slices: Slices, slice_rows: Ints, keys: Ints) -> RawRows:
    """The chosen rows as they travel; `keys` and `slice_rows` are of all rows."""
    places: dict[Hashable, int] = {}
    masks: list[Mask] = []
    filters = []
    for measure in group.kept:
        name = rows.filter_of(measure.filter)
        if name not in places:
            passed = rows.passed(name)
            places[name] = -1 if passed is None else len(masks)
            if passed is not None:
                masks.append(passed[chosen])
        filters.append(places[name])
    values = [rows.values(value)[chosen] for value in _values(group)]
    return RawRows(slices, slice_rows[chosen], keys[chosen], values, masks, filters)


def raw_batch(raw: RawRows) -> pa.RecordBatch:
    """Raw rows as they are written into a packet."""
    columns = [narrow(raw.slice_rows), narrow(raw.key_rows)]
    columns += [_packed(value) for value in raw.values]
    names = ["slice", "key", *(f"v{i}" for i in range(len(raw.values))), *(f"f{i}" for i in range(len(raw.masks)))]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in (*columns, *raw.masks)], names=names)


def _packed(values: Array) -> Array | pa.Array:
    if values.dtype == WIDE:
        return pa.Array.from_buffers(pa.binary(16), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
    return narrow(values) if values.dtype.kind == "i" else values


def _unpacked(column: pa.Array) -> Array:
    if pa.types.is_fixed_size_binary(column.type):
        return np.frombuffer(column.buffers()[1], WIDE)[column.offset : column.offset + len(column)]
    return np.asarray(column)


def raw_of_batch(batch: pa.RecordBatch, slices: Slices, filters: list[int]) -> RawRows:
    """Raw rows out of a packet."""
    named = dict(zip(batch.schema.names, batch.columns, strict=True))
    values = [_unpacked(named[f"v{i}"]) for i in range(sum(name.startswith("v") for name in named))]
    masks = [named[f"f{i}"].to_numpy(zero_copy_only=False) for i in range(sum(name.startswith("f") for name in named))]
    return RawRows(slices, np.asarray(named["slice"]), np.asarray(named["key"]), values, masks, filters)


class _RawFacts:
    """Raw rows as facts: conditions and values are looked up, not evaluated."""

    def __init__(self, group: GroupPlan, raw: RawRows) -> None:
        self._raw = raw
        self._filters = {measure.filter: raw.filters[i] for i, measure in enumerate(group.kept)}
        self._values: Mapping[Expression, Array] = dict(zip(_values(group), raw.values, strict=True))

    def filter_of(self, condition: Expression | None) -> int:
        """See `Facts.filter_of`."""
        return self._filters[condition]

    def passed(self, name: Hashable) -> Mask | None:
        """See `Facts.passed`."""
        return None if name == -1 else self._raw.masks[int(str(name))]

    def values(self, expression: Expression) -> Array:
        """See `Facts.values`."""
        return self._values[expression]


def piece_of_raw(group: GroupPlan, raw: RawRows, keys: int) -> Piece:
    """The partials of raw rows; `keys`: their keys are below it."""
    slice_count = max(len(raw.slices.start_us), 1)
    cells = raw.key_rows.astype(np.int64) * slice_count + raw.slice_rows
    rolled = roll_up(group, Partials(_RawFacts(group, raw), cells, keys * slice_count))
    return piece_of_cells(rolled, raw.slices, 0, len(rolled.ids), 0)
