"""Provides array helpers that several parts share: text columns as raw bytes, 128-bit integers as pairs of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

WIDE = np.dtype([("low", "<u8"), ("high", "<i8")])
"""A 128-bit integer in two's complement, in the layout of Arrow's decimal128."""

Wide: TypeAlias = npt.NDArray[np.void]
"""An array of dtype `WIDE`."""

IPC_READ = pa.ipc.IpcReadOptions(use_threads=False)
"""Options that decompress Arrow streams in the thread that reads them. A task has one core, and passing the columns of
a small batch to other threads takes ten times as long as decompressing them.
"""


def ipc_write(compression: str | None) -> pa.ipc.IpcWriteOptions:
    """Options that compress in the thread that writes, for the reason given at `IPC_READ`; the bytes do not change."""
    return pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)


_DENSE, _DENSE_FACTOR = 1 << 16, 8
"""Up to this table size, or this multiple of the number of values, filling a table is faster than sorting the values.
"""


def ordered(codes: npt.NDArray[np.integer]) -> Ints:
    """The positions of the codes in ascending order, as a stable argsort.

    Code and position are sorted as one integer if both fit into it, because plain integers sort ten times as fast.

    >>> ordered(np.array([2, 0, 2, 1])).tolist()
    [1, 3, 0, 2]
    """
    if not len(codes):
        return np.zeros(0, np.int64)
    low, bits = int(codes.min()), (len(codes) - 1).bit_length()
    if (int(codes.max()) - low) >> (63 - bits):
        return np.argsort(codes, kind="stable")
    packed = (codes.astype(np.int64) - low) << bits
    packed |= np.arange(len(codes))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def repeated(counts: Ints) -> tuple[Ints, Ints]:
    """Each position repeated as often as its count, and the number of each repetition, from 0.

    >>> [found.tolist() for found in repeated(np.array([2, 0, 3]))]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)


def new_values(values: npt.NDArray[Any]) -> Mask:
    """Where a value differs from the previous one; the first value counts as different.

    >>> new_values(np.array([1, 1, 3])).tolist()
    [True, False, True]
    """
    new = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return new


def distinct_of(values: npt.NDArray[np.integer]) -> Ints:
    """The distinct values, ascending.

    Since NumPy 2.3, `unique` hashes the values, which takes three to a hundred times as long as sorting them.

    >>> distinct_of(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    return firsts_of(np.sort(values))[0]


def firsts_of(ascending: npt.NDArray[np.integer]) -> tuple[Ints, Ints]:
    """The distinct values among ascending ones, and the first position of each.

    >>> [found.tolist() for found in firsts_of(np.array([1, 1, 3]))]
    [[1, 3], [0, 2]]
    """
    starts = np.flatnonzero(new_values(ascending))
    return ascending[starts].astype(np.int64, copy=False), starts


def places_among(parts: Sequence[npt.NDArray[np.integer]], bound: int | None = None) -> tuple[Ints, list[Ints]]:
    """The distinct values of all parts, ascending, and for each part the indices of its values in them; see
    `places_of`.

    >>> found, places = places_among([np.array([5, 9]), np.array([5, 1])])
    >>> found.tolist(), [place.tolist() for place in places]
    ([1, 5, 9], [[1, 2], [1, 0]])
    """
    found, places = places_of(np.concatenate(parts), bound)
    return found, np.split(places, np.cumsum([len(part) for part in parts])[:-1])


def places_of(values: npt.NDArray[np.integer], bound: int | None = None) -> tuple[Ints, Ints]:
    """The distinct values, ascending, and the index of each value in them.

    With a `bound`, the caller knows that no value is negative and all are below the bound; None means it is computed.

    >>> [found.tolist() for found in places_of(np.array([9, 5, 9]))]
    [[5, 9], [1, 0, 1]]
    """
    whole: Ints = values.astype(np.int64, copy=False)
    if bool((whole[1:] > whole[:-1]).all()):
        return whole, np.arange(len(whole))
    low, end = (int(whole.min()), int(whole.max()) + 1) if bound is None else (0, bound)
    if end - low <= max(_DENSE_FACTOR * len(whole), _DENSE):
        codes = whole - low if low else whole
        seen = np.zeros(end - low, bool)
        seen[codes] = True
        held = np.flatnonzero(seen)
        if len(held) == len(seen):
            return held + low, codes
        place = np.empty(len(seen), np.int64)
        place[held] = np.arange(len(held))
        return held + low, place[codes]
    order = ordered(whole)
    ascending = whole[order]
    new = new_values(ascending)
    return ascending[new], _numbered(order, new)


def distinct_rows(columns: Sequence[Ints]) -> tuple[list[Ints], Ints]:
    """The distinct rows of some columns, ascending, column by column; and the index of each row in them.

    This takes a tenth of the time of `np.unique` along an axis, which compares rows as bytes.

    >>> distinct, inverse = distinct_rows([np.array([2, 1, 2]), np.array([5, 6, 5])])
    >>> [column.tolist() for column in distinct], inverse.tolist()
    ([[1, 2], [6, 5]], [1, 0, 1])
    """
    rows = len(columns[0])
    varying = [column for column in columns if rows and (column != column[0]).any()]
    order = np.lexsort(varying[::-1]) if varying else np.arange(rows)
    new = np.zeros(rows, bool)
    new[:1] = True
    for column in varying:
        new |= new_values(column[order])
    return [column[order[new]] for column in columns], _numbered(order, new)


def _numbered(order: Ints, new: Mask) -> Ints:
    """The index of each row among the distinct rows; in `order`, a distinct row begins wherever `new` is set."""
    places = np.empty(len(order), np.int64)
    places[order] = np.cumsum(new) - 1
    return places


class TextBytes(NamedTuple):
    """UTF-8 bytes of a text column: row i is `data[starts[i] : starts[i] + lengths[i]]`; 8 bytes of padding follow."""

    data: npt.NDArray[np.uint8]
    starts: Ints
    lengths: Ints

    @property
    def words(self) -> npt.NDArray[np.uint64]:
        """The eight bytes from each position of `data` except the last seven, in little-endian order; not copied."""
        return np.lib.stride_tricks.as_strided(self.data[:8].view(np.uint64), (len(self.data) - 7,), (1,))


def text_bytes(texts: pa.Array) -> TextBytes:
    """The bytes of a string array; the content of a NULL row is arbitrary but within bounds."""
    if not len(texts):
        return TextBytes(np.zeros(8, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64))
    wide: Any = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    offsets = np.frombuffer(texts.buffers()[1], wide)[texts.offset : texts.offset + len(texts) + 1]
    held = texts.buffers()[2]
    first, end = int(offsets[0]), int(offsets[-1])
    data = np.zeros(end - first + 8, np.uint8)
    if held is not None:
        data[: end - first] = np.frombuffer(held, np.uint8)[first:end]
    starts = offsets[:-1].astype(np.int64) - first
    return TextBytes(data, starts, np.diff(offsets).astype(np.int64))


def occurrences(values: Ints) -> Ints:
    """For each element, how many equal elements precede it.

    >>> occurrences(np.array([4, 7, 4, 4, 7])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values), np.int64)
    found[order] = repeated(np.bincount(values))[1]
    return found
