"""Raw columns: rows that a gather sends instead of partial results if these would be larger.

With many measures, or nearly as many cells as events, partial results take more bytes than the events. Then the
packet carries per row: key, slice, each distinct value, and one bit per distinct filter (or, where cells are kept by
signature, a rank per ladder of filters), and the fold computes the partial results. So a packet has at most the size
of the smaller form, however many queries there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.arrays import WIDE, Ints, Mask, places_of
from millpond.kernels.columns import Array
from millpond.model.expressions import Expression
from millpond.plan.groups.measure_kinds import cell_bytes
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.aggregates.filter_sets import classify_ranks, split_slices
from millpond.runtime.aggregates.partials import Partials, Rows, piece_of_cells, roll_up
from millpond.state.keys.filter_signatures import narrowest
from millpond.state.layout.cells import Piece, Slices, merge, piece_of
from millpond.state.layout.segments import narrow


class RawRows(NamedTuple):
    """Rows of one group and instance: key and slice positions, values and filter bits.

    `filters[i]` is the position in `masks` of the filter of measure i, -1 if all rows pass. In a group whose cells are
    kept by signature, `masks` are ranks (small numbers or bits), and `filters[i]` is the position of the ranks in
    ladder i, -1 if all rows have the highest rank.
    """

    slices: Slices
    slice_rows: Array
    key_rows: Array
    values: list[Array]
    masks: list[Array]
    filters: list[int]


_SLICE_BYTES = 60
"""Estimated bytes of a slice with its signature in a header; a signature by itself takes about a third."""


def _width(count: int) -> int:
    """Bytes of an integer that can hold a position below `count`."""
    return np.min_scalar_type(-max(count, 1)).itemsize


def is_smaller_raw(
    group: GroupPlan, rows: Rows, keys: int, cells: int, signed_slices: int = 0, signatures: int = 0
) -> bool:
    """Whether the rows take fewer bytes than partials of this number of keys, cells, slices and signatures."""
    bytes_by_measure: dict[Hashable, int] = {}
    for measure in group.kept:
        name = (measure.kind, measure.values, rows.filter_of(measure.filter))
        bytes_by_measure[name] = cell_bytes(measure)
    if group.signed:
        bits = sum(len(ladder.filters).bit_length() for ladder in group.ladders)
        passing = sum(8 * narrowest([len(ladder.filters)]).itemsize if ladder.steps else 1 for ladder in group.ladders)
    else:
        bits = passing = len({rows.filter_of(one.filter) for one in group.kept})
    key = _width(keys)
    per_row = 1 + key + 8 * len(values_of(group)) + passing / 8
    per_cell = _width(signed_slices) + key + sum(bytes_by_measure.values())
    header_bytes = signed_slices * _SLICE_BYTES + signatures * (_SLICE_BYTES / 3 + bits / 6)
    return rows.count * per_row < cells * per_cell + header_bytes


def values_of(group: GroupPlan) -> list[Expression]:
    """The distinct values of the group's measures, in the order of a packet's columns."""
    return list(dict.fromkeys(value for measure in group.kept for value in measure.values))


def raw_rows(
    group: GroupPlan, rows: Rows, chosen: Ints, slices: Slices, slice_rows: Ints, keys: Ints,
    ranks: Sequence[Array] = (),
) -> RawRows:  # fmt: skip
    """The chosen rows in raw form; `keys`, `slice_rows` and `ranks` (by ladder) are given for all rows."""
    places: dict[Hashable, int] = {}
    masks: list[Array] = []
    filters = []
    for ladder in ranks:
        own = ladder[chosen]
        filters.append(places.setdefault((own.dtype, own.tobytes()), len(masks)))
        if filters[-1] == len(masks):  # no other ladder ranks the rows alike
            masks.append(own)
    for measure in () if group.signed else group.kept:
        name = rows.filter_of(measure.filter)
        if name not in places:
            passed = rows.passed(name)
            places[name] = -1 if passed is None else len(masks)
            if passed is not None:
                masks.append(passed[chosen])
        filters.append(places[name])
    values = [rows.values(value)[chosen] for value in values_of(group)]
    return RawRows(slices, slice_rows[chosen], keys[chosen], values, masks, filters)


def raw_batch(raw: RawRows) -> pa.RecordBatch:
    """Encodes raw rows as the record batch of a packet."""
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
    """Decodes raw rows from the record batch of a packet."""
    named = dict(zip(batch.schema.names, batch.columns, strict=True))
    values = [_unpacked(named[f"v{i}"]) for i in range(sum(name.startswith("v") for name in named))]
    masks = [named[f"f{i}"].to_numpy(zero_copy_only=False) for i in range(sum(name.startswith("f") for name in named))]
    return RawRows(slices, np.asarray(named["slice"]), np.asarray(named["key"]), values, masks, filters)


class _RawFacts:
    """Raw rows, or some of them, as `PartialsInput`: filters and values are looked up instead of evaluated."""

    def __init__(self, group: GroupPlan, raw: RawRows, rows: Ints | slice) -> None:
        self._masks: list[Mask] = []
        self._filters: dict[Expression | None, int] = {None: -1}
        if not group.signed:  # otherwise signatures separate the rows, and measures are kept without filters
            self._masks = [mask[rows] for mask in raw.masks]
            self._filters = {measure.filter: raw.filters[i] for i, measure in enumerate(group.kept)}
        self._values = {value: found[rows] for value, found in zip(values_of(group), raw.values, strict=True)}

    def filter_of(self, condition: Expression | None) -> int:
        return self._filters[condition]

    def passed(self, name: Hashable) -> Mask | None:
        return None if name == -1 else self._masks[int(str(name))]

    def values(self, expression: Expression) -> Array:
        return self._values[expression]


def piece_of_raw(group: GroupPlan, raw: RawRows, keys: int) -> Piece:
    """Computes the partial results of raw rows; `keys`: the number of their keys."""
    if not group.signed:
        return _piece(group, raw, slice(None), raw.slices, raw.slice_rows, keys)
    slice_count = max(len(raw.slices.start_us), 1)
    cells, _ = places_of(raw.key_rows.astype(np.int64) * slice_count + raw.slice_rows, keys * slice_count)
    pieces, filters = [], [name for ladder in group.ladders for name in ladder.filters]
    lengths = [len(ladder.filters) for ladder in group.ladders]
    ranks = [
        np.array(length) if place < 0 else raw.masks[place] for place, length in zip(raw.filters, lengths, strict=True)
    ]
    for bundle in classify_ranks(ranks, lengths, len(raw.key_rows), len(cells)):
        split = split_slices(raw.slices, raw.slice_rows[bundle.rows].astype(np.int64), bundle, filters)
        pieces.append(_piece(group, raw, bundle.rows, split.slices, split.rows, keys))
    return pieces[0] if len(pieces) == 1 else piece_of(merge(pieces, keys))


def _piece(group: GroupPlan, raw: RawRows, rows: Ints | slice, slices: Slices, slice_rows: Array, keys: int) -> Piece:
    """Computes the partial results of some of the rows; `slice_rows` are their positions in `slices`."""
    slice_count = max(len(slices.start_us), 1)
    cells = raw.key_rows[rows].astype(np.int64) * slice_count + slice_rows
    rolled = roll_up(group, Partials(_RawFacts(group, raw, rows), cells, keys * slice_count))
    return piece_of_cells(rolled, slices, 0, len(rolled.ids), 0)
