"""Ranks values of any storable type: integers in the order of the values, as Spark orders them.

NULL is the least value, NaN the largest number, and there is one zero. Structs are compared field by field, arrays
element by element, a prefix first. Maps have no order in SQL; here they are compared as arrays of their entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints, Mask, distinct_rows, new_values
from millpond.kernels.columns import from_arrow
from millpond.model.aggregates import DIRECTIONS
from millpond.model.types import (
    INTERVAL,
    element_of,
    has_floats,
    is_array,
    is_decimal,
    is_float,
    is_map,
    is_struct,
    map_parts,
    struct_fields,
)
from millpond.state.layout.cells import order_codes

LEAST = np.iinfo(np.int64).min
"""The rank of NULL."""

_CODE_BYTES = 8


def ranks(column: pa.Array, kind: str, *, signed: bool = False) -> Ints:
    """Integer ranks in the order of the values, equal for equal values; NULL is `LEAST`.

    `signed`: whether -0.0 comes before 0.0, instead of being equal.
    """
    null = np.asarray(column.is_null())
    codes = _codes(column, kind, signed)
    if bool(((codes == LEAST) & ~null).any()):  # the least bigint must not look like NULL
        codes = _dense(codes)
    return np.where(null, LEAST, codes)


def ranks_and_signs(values: Sequence[tuple[pa.Array, str]]) -> list[Ints]:
    """Sort keys for columns given with their types, the last column major; signs of zeros are minor to all ranks."""
    signed = [signs(column, kind) for column, kind in values if has_floats(kind)]
    return [*signed, *(ranks(column, kind) for column, kind in values)]


def signs(column: pa.Array, kind: str) -> Ints:
    """A sort key that distinguishes the two zeros among values of equal rank."""
    if not is_float(kind):
        return ranks(column, kind, signed=True)
    found: Ints = (~np.signbit(from_arrow(pc.fill_null(column, 0.0), kind).data)).astype(np.int64)
    return found


def directed(codes: Ints, direction: str) -> list[Ints]:
    """Sort keys for a direction, the major key last: NULLs first or last, then the codes."""
    descending, nulls_last = divmod(DIRECTIONS.index(direction), 2)
    null = (codes == LEAST).astype(np.int64)
    return [~codes if descending else codes, null if nulls_last else -null]


def changed(keys: Sequence[Ints], order: Ints) -> Mask:
    """Where a sorted row differs in a key from the previous one; the first row does."""
    changes = np.zeros(len(order), bool)
    changes[:1] = True
    for key in keys:
        changes |= new_values(key[order])
    return changes


def _codes(column: pa.Array, kind: str, signed: bool) -> Ints:
    """Like `ranks`; the codes of NULLs are arbitrary."""
    if is_struct(kind):
        fields = zip(column.flatten(), struct_fields(kind), strict=True)
        parts = [ranks(part, field.type, signed=signed) for part, field in fields]
        return distinct_rows(parts)[1] if parts else np.zeros(len(column), np.int64)
    if is_array(kind):
        return _sequences(column.offsets, ranks(column.values, element_of(kind), signed=signed))
    if is_map(kind):
        entries = zip((column.keys, column.items), map_parts(kind), strict=True)
        return _sequences(column.offsets, distinct_rows([ranks(*entry, signed=signed) for entry in entries])[1])
    if is_decimal(kind) or kind in ("string", "binary"):
        return _of_dictionary(column)
    if kind == INTERVAL:
        column, kind = column.view(pa.int64()), "bigint"
    data = from_arrow(column, kind).data
    if not is_float(kind):
        whole: Ints = data.astype(np.int64)
        return whole
    codes = order_codes(data)
    return np.where((data == 0) & np.signbit(data), -1, codes) if signed else codes  # -1 is the code of no other value


def _sequences(offsets: pa.Array, items: Ints) -> Ints:
    """Ranks of sequences of items; sequence i has the items `offsets[i]` … `offsets[i + 1] - 1`.

    The rank of an item becomes eight bytes, the highest first, so that sequences are ordered like their bytes.
    """
    ends = np.asarray(offsets).astype(np.int64) * _CODE_BYTES
    data = _dense(items).astype(">u8")
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return _of_dictionary(pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends) - 1, buffers))


def _of_dictionary(column: pa.Array) -> Ints:
    encoded = column.dictionary_encode()
    place = np.empty(len(encoded.dictionary) + 1, np.int64)
    place[np.asarray(pc.sort_indices(encoded.dictionary))] = np.arange(len(encoded.dictionary))
    codes: Ints = place[np.asarray(encoded.indices.fill_null(0))]
    return codes


def _dense(codes: Ints) -> Ints:
    return distinct_rows([codes])[1]
