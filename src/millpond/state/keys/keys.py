"""Keys as typed Arrow columns: their canonical form, hash and text.

NULL is one key, NaN is one key, and -0.0 is 0.0: in the gather, `canonical` makes equal keys equal bit by bit.
Afterwards a hash only locates candidates; the values of the columns decide whether keys are equal.

A column of keys may be dictionary-encoded: then a value that many keys share is read, hashed and transferred once. NULL
is a value of such a dictionary. Stored keys are never encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints, Mask, text_bytes

Hashes: TypeAlias = npt.NDArray[np.uint64]
KeyColumns: TypeAlias = Sequence[pa.Array]

SEPARATOR = "\x1f"
"""Separates the texts of the columns of a key."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0x632BE59BD9B4E019)
_FEW = 16
"""Up to this number of texts, a loop over the words of each is faster than a step over all of them."""
_WORDS_AT_ONCE = 1 << 16
_KEEP = np.array([(1 << (8 * n)) - 1 for n in range(8)] + [(1 << 64) - 1], np.uint64)


def plain(column: pa.Array) -> pa.Array:
    """The column without a dictionary."""
    return column.dictionary.take(column.indices) if pa.types.is_dictionary(column.type) else column


def rearranged(columns: Sequence[pa.Array], order: Ints) -> pa.Array:
    """The values of columns, one after the other, in another order and without a dictionary."""
    if not all(pa.types.is_dictionary(column.type) for column in columns):
        return pa.concat_arrays([plain(column) for column in columns]).take(pa.array(order))
    firsts = np.cumsum([0, *(len(column.dictionary) for column in columns)])
    indices = [np.asarray(column.indices) + first for column, first in zip(columns, firsts, strict=False)]
    values = pa.concat_arrays([column.dictionary for column in columns])
    return values.take(pa.array(np.concatenate(indices)[order]))


def canonical(column: pa.Array) -> pa.Array:
    """The key column with a single NaN and a single zero, also inside of structs and arrays."""
    if pa.types.is_struct(column.type) and column.type.num_fields:
        fields = [canonical(field) for field in column.flatten()]
        return pa.StructArray.from_arrays(fields, fields=list(column.type), mask=column.is_null())
    if pa.types.is_list(column.type):
        column = column.take(pa.array(np.arange(len(column)))) if column.offset else column
        items = canonical(column.values)
        return pa.ListArray.from_arrays(column.offsets, items, type=column.type, mask=column.is_null())
    if not pa.types.is_floating(column.type):
        return column
    data = column.to_numpy(zero_copy_only=False) + 0.0
    data[np.isnan(data)] = np.nan
    null = pc.is_null(column).to_numpy(zero_copy_only=False)
    return pa.array(data, column.type, mask=null if null.any() else None)


def hashes_of(columns: KeyColumns, rows: int) -> Hashes:
    """A 64-bit hash of each key, equal for equal canonical keys on every host and in every version of this format."""
    total = np.full(rows, _ODD, np.uint64)
    for column in columns:
        total = _mix(total * np.uint64(31) + _hashes(column))
    return total


def _hashes(column: pa.Array) -> Hashes:
    """A hash of each value of a column."""
    if pa.types.is_dictionary(column.type):
        of_values: Hashes = _hashes(column.dictionary)[np.asarray(column.indices)]
        return of_values
    if pa.types.is_string(column.type):
        found = _text_hash(column)
    elif pa.types.is_decimal(column.type):
        words = _words(column)
        found = _mix(_mix(words[:, 0]) * _ODD + words[:, 1])
    else:
        found = _mix(_bits(column))
    return np.where(np.asarray(pc.is_null(column)), _NULL, found) if column.null_count else found


def _mix(value: Hashes) -> Hashes:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = value ^ (value >> np.uint64(31))
    return mixed


def _bits(column: pa.Array) -> Hashes:
    """The bits of a fixed-width column, widened to 64."""
    if pa.types.is_boolean(column.type):
        return np.asarray(pc.fill_null(column, False)).astype(np.uint64)
    width: Any = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[column.type.bit_width]
    data = np.frombuffer(column.buffers()[1], width) if len(column) else np.zeros(0, width)
    return data[column.offset : column.offset + len(column)].astype(np.uint64)


def _words(column: pa.Array) -> Hashes:
    """The low and high words of a column of decimals."""
    data = np.frombuffer(column.buffers()[1], np.uint64) if len(column) else np.zeros(0, np.uint64)
    return data.reshape(-1, 2)[column.offset : column.offset + len(column)]


def _text_hash(column: pa.Array) -> Hashes:
    """Hashes texts, eight bytes at a time over all rows that are long enough; a few that are longer, one by one."""
    texts = text_bytes(column)
    words, starts, lengths = texts.words, texts.starts, texts.lengths
    total = _mix(lengths.astype(np.uint64) + _ODD)
    rows: Any = slice(None)
    for position in range(0, int(lengths.max()) if len(lengths) else 0, 8):
        if position:
            rows = np.flatnonzero(lengths > position)
            if len(rows) <= _FEW:
                for row in rows.tolist():
                    begin, end = int(starts[row]) + position, int(starts[row] + lengths[row])
                    total[row] = _continued(int(total[row]), words[begin:end:8], (end - begin) % 8 or 8)
                break
        left = np.minimum(lengths[rows] - position, 8)
        word = words[np.minimum(starts[rows] + position, len(words) - 1)] & _KEEP[np.maximum(left, 0)]
        mixed = _mix(total[rows] * _ODD + word)
        total[rows] = np.where(left > 0, mixed, total[rows])
    return total


def _continued(total: int, words: Hashes, last: int) -> int:
    """The hash of a text whose beginning has the hash `total`; only `last` bytes of its last word belong to it."""
    odd, every = int(_ODD), (1 << 64) - 1
    for first in range(0, len(words), _WORDS_AT_ONCE):
        portion = words[first : first + _WORDS_AT_ONCE].tolist()
        if first + _WORDS_AT_ONCE >= len(words):
            portion[-1] &= int(_KEEP[last])
        for word in portion:  # as `_mix`
            total = total * odd + word & every
            total = (total ^ total >> 30) * 0xBF58476D1CE4E5B9 & every
            total = (total ^ total >> 27) * 0x94D049BB133111EB & every
            total ^= total >> 31
    return total


def equal_keys(left: KeyColumns, right: KeyColumns, rows: int) -> Mask:
    """Compares two sets of canonical key columns row by row."""
    same = np.ones(rows, bool)
    for a, b in zip(map(plain, left), map(plain, right), strict=True):
        compared = pa.types.is_string(a.type) or pa.types.is_decimal(a.type)
        equal = np.asarray(pc.fill_null(pc.equal(a, b), False)) if compared else _bits(a) == _bits(b)
        if a.null_count or b.null_count:
            a_null, b_null = np.asarray(pc.is_null(a)), np.asarray(pc.is_null(b))
            equal = (equal & ~a_null & ~b_null) | (a_null & b_null)
        same &= equal
    return same


def texts_of(columns: KeyColumns, rows: int) -> pa.Array:
    """The text of each key, whose CRC16 is its hash slot; the texts of several columns are joined by U+001F."""
    texts = []
    for column in map(plain, columns):
        if pa.types.is_temporal(column.type):
            column = column.view(pa.int32() if pa.types.is_date(column.type) else pa.int64())
        texts.append(pc.fill_null(column.cast(pa.string()), ""))
    if not texts:
        return pa.array([""] * rows, pa.string())
    return texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, SEPARATOR)
