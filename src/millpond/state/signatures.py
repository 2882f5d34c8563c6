"""Signatures: which of a group's filters an event passes, as one number per distinct set of filters.

A group with many distinct filters keeps no column per filter. Its cells are split by signature, and a measure
under a filter is the sum over the signatures that pass it: state grows with the events, not with the filters.

The number of a set is the sum of a 63-bit hash of each filter in it (Zobrist 1970), so that equal sets have equal
numbers wherever and whenever they were met; two sets with one number are found when they meet, never mixed.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from millpond.arrays import Ints, Mask
from millpond.errors import CorruptError

UNSIGNED = 0
"""The signature of cells whose columns are of measures under their own filters."""

_BITS = np.uint64((1 << 63) - 1)


class Signatures(NamedTuple):
    """Signatures `ids` (ascending) and, for each, which of `filters` (ids of filters) it passes: bits[i, j]."""

    filters: tuple[str, ...]
    ids: Ints
    bits: Mask

    def take(self, ids: Ints) -> Signatures:
        """Those among `ids`."""
        kept = np.isin(self.ids, ids)
        return self if kept.all() else Signatures(self.filters, self.ids[kept], self.bits[kept])

    def passing(self, filters: Sequence[str], ids: Ints) -> Mask:
        """For signatures `ids` (rows) whether each of `filters` (columns) passes; UNSIGNED passes none."""
        places = {name: place for place, name in enumerate(self.filters)}
        found = np.zeros((len(ids), len(filters)), bool)
        known = [i for i, name in enumerate(filters) if name in places]
        if len(self.ids) and known:
            at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
            held = self.ids[at] == ids
            found[:, known] = self.bits[at][:, [places[filters[i]] for i in known]] & held[:, None]
        return found


class Stored(msgspec.Struct):
    """Signatures as text in a header: `bits` are packed row by row, deflated, in base 64."""

    filters: list[str]
    ids: list[int]
    bits: str


def numbered(filters: Sequence[str], bits: Mask) -> tuple[Signatures, Ints]:
    """The signatures of sets of `filters`, one set per row of `bits` and no two alike; and the number of each row."""
    words = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") for name in filters]
    ids = ((bits.astype(np.uint64) @ np.array(words, np.uint64)) & _BITS).astype(np.int64)
    ids[ids == UNSIGNED] = 1
    return _checked(tuple(filters), ids, bits), ids


def union(tables: Sequence[Signatures]) -> Signatures:
    """All signatures of some tables.

    Raises:
        CorruptError: two different sets of filters have one number.
    """
    tables = list({id(table): table for table in tables}.values())
    if len(tables) == 1:
        return tables[0]
    filters = tuple(dict.fromkeys(name for table in tables for name in table.filters))
    ids = np.concatenate([table.ids for table in tables])
    bits = np.concatenate([table.passing(filters, table.ids) for table in tables])
    return _checked(filters, ids, bits)


def _checked(filters: tuple[str, ...], ids: Ints, bits: Mask) -> Signatures:
    distinct, first, where = np.unique(ids, return_index=True, return_inverse=True)
    if len(distinct) < len(ids) and not np.array_equal(bits[first][where.reshape(-1)], bits):
        raise CorruptError("Two sets of filters have one signature.", "Report this: it has a chance of 2**-63.")
    return Signatures(filters, distinct, bits[first])


def to_stored(table: Signatures) -> Stored:
    """The table as it is written."""
    packed = zlib.compress(np.packbits(table.bits, axis=1).tobytes(), 1)
    return Stored(list(table.filters), table.ids.tolist(), base64.b64encode(packed).decode())


def from_stored(stored: Stored) -> Signatures:
    """The table as it was.

    Raises:
        CorruptError: the bits do not fit the filters.
    """
    shape = len(stored.ids), len(stored.filters)
    try:
        packed = np.frombuffer(zlib.decompress(base64.b64decode(stored.bits)), np.uint8)
        bits = np.unpackbits(packed.reshape(shape[0], -(-shape[1] // 8)), axis=1, count=shape[1])
    except (ValueError, zlib.error) as error:
        raise CorruptError(f"A table of signatures does not read: {error}.", "Restore the file.") from error
    return Signatures(tuple(stored.filters), np.array(stored.ids, np.int64), bits.astype(bool))
