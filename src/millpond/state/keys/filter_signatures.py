"""Signatures: which of a group's filters an event passes, as one number per distinct set of filters.

A group with many distinct filters has no columns per filter. Its cells are split by signature, and a measure under a
filter is the sum over the signatures that pass it. So state grows with the events, not with the filters.

A signature consists of a rank in each ladder of filters (see `plan.groups.filter_ladders`): it passes the filters up to
that rank. The number of a set of filters is the sum of a 63-bit hash of each filter in it (Zobrist 1970), so equal sets
have equal numbers everywhere and at all times. If two different sets have the same number, this is detected when they
meet, and they are never mixed.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints, Mask
from millpond.errors import CorruptError

UNSIGNED = 0
"""The signature of cells that are not split, and have columns of measures with their filters."""

_BITS = np.uint64((1 << 63) - 1)

_AT_ONCE = 1 << 22

Ranks: TypeAlias = npt.NDArray[Any]
"""Ranks by signature (row) and ladder (column), as unsigned integers."""


class Signatures(NamedTuple):
    """A table of signatures: `ids` (ascending), and the rank of signature i in ladder l as `ranks[i, l]`.

    `filters` are ids of filters, ladder by ladder, the widest filter of each first; `lengths` are the lengths of the
    ladders.
    """

    filters: tuple[str, ...]
    lengths: tuple[int, ...]
    ids: Ints
    ranks: Ranks

    def take(self, ids: Ints) -> Signatures:
        """The signatures of the table that are in `ids`."""
        kept = np.isin(self.ids, ids)
        return self if kept.all() else self._replace(ids=self.ids[kept], ranks=self.ranks[kept])

    def ranks_of(self, ids: Ints) -> Ranks:
        """The ranks of signatures `ids`; 0 for signatures that are not in the table, such as `UNSIGNED`."""
        if not len(self.ids):
            return np.zeros((len(ids), len(self.lengths)), self.ranks.dtype)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        found: Ranks = self.ranks[at]
        found[self.ids[at] != ids] = 0
        return found

    def passing(self, filters: Sequence[str], ids: Ints) -> Mask:
        """Whether signatures `ids` (rows) pass each of `filters` (columns); `UNSIGNED` passes none."""
        places = self.places
        found = np.zeros((len(ids), len(filters)), bool)
        known = [i for i, name in enumerate(filters) if name in places]
        if known:
            ladders, steps = np.array([places[filters[i]] for i in known]).T
            found[:, known] = self.ranks_of(ids)[:, ladders] > steps
        return found

    @property
    def places(self) -> dict[str, tuple[int, int]]:
        """The position of each filter: its ladder, and the number of wider filters in that ladder."""
        return _places(self.filters, self.lengths)


@lru_cache(64)
def _places(filters: tuple[str, ...], lengths: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    steps = ((ladder, step) for ladder, length in enumerate(lengths) for step in range(length))
    return dict(zip(filters, steps, strict=True))


class Stored(msgspec.Struct, omit_defaults=True):
    """A table of signatures as text in a header: `bits` are packed row by row, deflated, and encoded in base 64.

    A row contains the rank in each ladder, in as many bits as the length of the ladder needs. `lengths` None: each
    ladder has one filter.
    """

    filters: list[str]
    ids: list[int]
    bits: str
    lengths: list[int] | None = None


def narrowest(lengths: Sequence[int]) -> np.dtype[Any]:
    """The narrowest type for ranks in ladders of these lengths."""
    return np.min_scalar_type(max(lengths, default=0))


def numbered(filters: Sequence[str], ranks: Ranks, lengths: Sequence[int] = ()) -> tuple[Signatures, Ints]:
    """The table of signatures for the distinct rows of `ranks`, each of which is a set of `filters`; and their numbers.

    Without `lengths`, each filter is its own ladder, and ranks are bits.
    """
    lengths = tuple(lengths) or (1,) * len(filters)
    ids = (_sums(tuple(filters), lengths, ranks) & _BITS).astype(np.int64)
    ids[ids == UNSIGNED] = 1
    return _checked(tuple(filters), lengths, ids, ranks.astype(narrowest(lengths), copy=False)), ids


def _sums(filters: tuple[str, ...], lengths: tuple[int, ...], ranks: Ranks) -> npt.NDArray[np.uint64]:
    """The sum of the hashes (words) of all filters in each set, modulo 2**64."""
    sums = np.zeros(len(ranks), np.uint64)
    words, bases = _running_words(filters, lengths)
    step = max(1, _AT_ONCE // max(1, len(lengths)))
    for first in range(0, len(ranks), step):
        some = ranks[first : first + step]
        rows, ladders = np.nonzero(some)
        if len(rows):
            found = words[bases[ladders] + some[rows, ladders]]
            starts = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
            sums[first + rows[starts]] = np.add.reduceat(found, starts)
    return sums


@lru_cache(8)
def _running_words(filters: tuple[str, ...], lengths: tuple[int, ...]) -> tuple[npt.NDArray[np.uint64], Ints]:
    """The sums of the first 0, 1, … words of each ladder, ladder by ladder; and the position of each ladder in them."""
    words = np.array([_word(name) for name in filters], np.uint64)
    ends = np.cumsum(lengths)
    running = [np.append(np.uint64(0), np.cumsum(words[end - n : end])) for end, n in zip(ends, lengths, strict=True)]
    bases = np.cumsum([0, *(length + 1 for length in lengths)])[:-1]
    return (np.concatenate(running) if running else words), bases


@lru_cache(1 << 16)
def _word(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def union(tables: Sequence[Signatures]) -> Signatures:
    """One table with the signatures of all these tables.

    Raises:
        CorruptError: two different sets of filters have the same number.
    """
    tables = list({id(table): table for table in tables}.values())
    if len(tables) == 1:
        return tables[0]
    if any(table[:2] != tables[0][:2] for table in tables):
        tables = _alike(tables)
    filters, lengths = tables[0][:2]
    ids = np.concatenate([table.ids for table in tables])
    return _checked(filters, lengths, ids, np.concatenate([table.ranks for table in tables]))


def _alike(tables: Sequence[Signatures]) -> list[Signatures]:
    """The tables with common ladders: two filters share one if each table has both in one ladder, or has neither."""
    ladders: dict[tuple[int, ...], list[str]] = {}
    every = [table.places for table in tables]
    for name in dict.fromkeys(name for table in tables for name in table.filters):
        ladders.setdefault(tuple(places.get(name, (-1,))[0] for places in every), []).append(name)
    ordered = [
        sorted(names, key=lambda name: next(places[name][1] for places in every if name in places))
        for names in ladders.values()
    ]
    filters, lengths = tuple(name for names in ordered for name in names), tuple(map(len, ordered))
    return [Signatures(filters, lengths, table.ids, among(table, ordered)) for table in tables]


def among(table: Signatures, ladders: Sequence[Sequence[str]]) -> Ranks:
    """The ranks in other ladders; each is a part of one ladder of the table, or has none of the table's filters."""
    places = table.places
    ranks: Ranks = np.zeros((len(table.ids), len(ladders)), narrowest([len(names) for names in ladders]))
    own = [places.get(names[0], (-1, 0))[0] for names in ladders]
    whole = [at for at, names in enumerate(ladders) if own[at] >= 0 and len(names) == table.lengths[own[at]]]
    ranks[:, whole] = table.ranks[:, [own[at] for at in whole]]
    for at in sorted({at for at, place in enumerate(own) if place >= 0} - set(whole)):
        # for each rank of the table's ladder, the number of these filters up to that rank
        steps = np.array([places[name][1] for name in ladders[at]])
        below = np.searchsorted(steps, np.arange(table.lengths[own[at]] + 1)).astype(ranks.dtype)
        ranks[:, at] = below[table.ranks[:, own[at]]]
    return ranks


def _checked(filters: tuple[str, ...], lengths: tuple[int, ...], ids: Ints, ranks: Ranks) -> Signatures:
    distinct, first, where = np.unique(ids, return_index=True, return_inverse=True)
    if len(distinct) < len(ids) and not np.array_equal(ranks[first][where.reshape(-1)], ranks):
        raise CorruptError("Two sets of filters have one signature.", "Report this: it has a chance of 2**-63.")
    return Signatures(filters, lengths, distinct, ranks[first])


def to_stored(table: Signatures) -> Stored:
    """The table in stored form."""
    data = zlib.compress(np.packbits(_bits(table), axis=1).tobytes(), 1)
    lengths = None if set(table.lengths) <= {1} else list(table.lengths)
    return Stored(list(table.filters), table.ids.tolist(), base64.b64encode(data).decode(), lengths)


def _widths(lengths: Sequence[int]) -> Ints:
    """The number of bits of a rank in each ladder."""
    return np.array([length.bit_length() for length in lengths], np.int64)


def _shifts(widths: Ints) -> tuple[Ints, Ints]:
    """For each bit of a row, its ladder and its position in the rank."""
    ladders = np.repeat(np.arange(len(widths)), widths)
    ends = np.cumsum(widths)
    return ladders, ends[ladders] - 1 - np.arange(len(ladders))


def _bits(table: Signatures) -> Ranks:
    if set(table.lengths) <= {1}:
        return table.ranks
    ladders, shifts = _shifts(_widths(table.lengths))
    bits: Ranks = table.ranks[:, ladders] >> shifts.astype(table.ranks.dtype) & 1
    return bits


def from_stored(stored: Stored) -> Signatures:
    """The table from its stored form.

    Raises:
        CorruptError: the bits do not fit the filters.
    """
    lengths = (1,) * len(stored.filters) if stored.lengths is None else tuple(stored.lengths)
    widths = _widths(lengths)
    rows, columns = len(stored.ids), int(widths.sum())
    try:
        packed = np.frombuffer(zlib.decompress(base64.b64decode(stored.bits)), np.uint8)
        bits = np.unpackbits(packed.reshape(rows, -(-columns // 8)), axis=1, count=columns)
    except (ValueError, zlib.error) as error:
        raise CorruptError(f"A table of signatures does not read: {error}.", "Restore the file.") from error
    ranks = bits
    if stored.lengths is not None:
        ranks = np.zeros((rows, len(lengths)), narrowest(lengths))
        for ladder, (first, end) in enumerate(pairwise(np.cumsum([0, *widths]).tolist())):
            for column in range(first, end):
                ranks[:, ladder] = ranks[:, ladder] << 1 | bits[:, column]
    if sum(lengths) != len(stored.filters) or (ranks > np.array(lengths, ranks.dtype)).any():
        raise CorruptError("A table of signatures does not fit its filters.", "Restore the file.")
    return Signatures(tuple(stored.filters), lengths, np.array(stored.ids, np.int64), ranks)
