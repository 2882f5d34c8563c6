"""The key dictionary of an instance and group: assigns slots 0, 1, 2, … to keys in order of arrival.

Keys that arrive in one epoch are numbered by bucket, so that the keys that move with a bucket lie together. The keys
are `keys` sections of committed deltas: mapped typed columns with their hashes and buckets. Look-ups use an
open-addressing table, a cache that any worker can rebuild from the hashes: a base table in the host-local folder, and
a small one for newer keys. Losing the folder loses nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays import Ints, Mask, ordered
from millpond.state.keys.keys import Hashes, KeyColumns, equal_keys, hashes_of

HASH = "hash"
"""The column of a section of keys that holds their hashes."""

BUCKET = "bucket"
"""The column of a section of keys that tells the bucket of each: who takes over buckets need not look at the keys."""

WAS = "was"
"""The column of a section of keys that opens a generation: the slot each key had in the generation before."""

_SMALLEST_BASE = 4096

_LARGEST_RECENT = 8  # a table for up to an eighth of the keys is made in memory, in every epoch

_MARKED_AT_ONCE = 1 << 20


BucketOf: TypeAlias = Callable[[KeyColumns, int], Ints]
"""The buckets of so many keys."""


def key_columns(width: int) -> list[str]:
    """The names of the columns of a section of keys that have `width` columns."""
    return [*(f"k{i}" for i in range(width)), HASH, BUCKET]


def with_buckets(section: pa.RecordBatch, width: int, bucket_of: BucketOf) -> pa.RecordBatch:
    """A section of keys of `width` columns with their buckets, which the first ponds did not tell."""
    if BUCKET in section.schema.names:
        return section
    buckets = bucket_of(section.columns[:width], section.num_rows)
    return section.append_column(BUCKET, pa.array(buckets.astype(np.uint16)))


class _Table:
    """Open addressing with linear probing over `slot + 1`; 0 is empty."""

    def __init__(self, entries: npt.NDArray[np.int32]) -> None:
        self.entries = entries
        self._mask = np.uint64(len(entries) - 1)

    @classmethod
    def sized(cls, keys: int) -> _Table:
        return cls(np.zeros(1 << max(4, int(keys * 2 - 1).bit_length()), np.int32))

    def insert(self, hashes: Hashes, slots: Ints) -> None:
        """Place keys that are not there yet; of rows that meet at one place the last wins, the others go on."""
        at = self.start(hashes)
        entries = (slots + 1).astype(np.int32)
        rows = np.arange(len(slots))
        while len(rows):
            free = self.entries[at[rows]] == 0
            trying = rows[free]
            self.entries[at[trying]] = entries[trying]
            rows = rows[self.entries[at[rows]] != entries[rows]]
            self.next(at, rows)

    def renumber(self, first: int, now: Ints) -> None:
        """Slots from `first` on are others now."""
        later = np.flatnonzero(self.entries > first)
        self.entries[later] = now[self.entries[later] - 1 - first] + 1

    def probe(self, rows: Ints, at: Ints) -> Ints:
        """Entries at the probed places of `rows` (0: empty)."""
        found: Ints = self.entries[at[rows]].astype(np.int64)
        return found

    def start(self, hashes: Hashes) -> Ints:
        at: Ints = (hashes & self._mask).astype(np.int64)
        return at

    def next(self, at: Ints, rows: Ints) -> None:
        at[rows] = (at[rows] + 1) & np.int64(self._mask)


class KeyDictionary:
    """Slots of keys; new keys get the next ones. Not shared between threads.

    >>> keys = KeyDictionary([pa.string()], [], None, lambda keys, count: np.zeros(count, np.int64))
    >>> keys.number([pa.array(["b", "a"])]).tolist(), keys.number([pa.array(["a", "c"])]).tolist()
    ([0, 1], [1, 2])
    """

    def __init__(
        self, types: Sequence[pa.DataType], sections: Sequence[pa.RecordBatch], cache: Path | None,
        bucket_of: BucketOf, left: Ints | None = None,
    ) -> None:  # fmt: skip
        """`sections`: the committed `keys` batches in order, columns k0, k1, …, `hash` and `bucket`; `cache`: path
        prefix.

        `left`: slots whose keys are another instance's now: a key that comes back gets a slot of its own.
        """
        self._types = list(types)
        self._chunks: list[KeyColumns] = [batch.columns[: len(types)] for batch in sections]
        hashes = [np.asarray(batch.column(HASH)) for batch in sections]
        self._sections, self._bucket_of, self._new_buckets = sections, bucket_of, list[Ints]()
        self._hashes = np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
        self.committed = len(self._hashes)
        self._here = None if left is None else np.ones(self.committed, bool)
        if self._here is not None:
            self._here[left] = False
        self._base, base = self._load_base(cache)
        self._recent = _Table.sized(max(self.committed - base, 64))
        self._recent.insert(self._hashes[base:], np.arange(base, self.committed))
        self._recent_base = base

    def __len__(self) -> int:
        return len(self._hashes)

    def number(self, keys: KeyColumns, rows: int | None = None) -> Ints:
        """The slot of each key; `keys` are canonical and distinct among themselves. Unknown ones are added."""
        count = len(keys[0]) if keys else (1 if rows is None else rows)
        if not keys:
            return self._number_none(count)
        hashes = hashes_of(keys, count)
        slots = self._find(keys, hashes)
        unknown = np.flatnonzero(slots < 0)
        if len(unknown):
            slots[unknown] = self._add([column.take(pa.array(unknown)) for column in keys], hashes[unknown])
        return slots

    def _number_none(self, count: int) -> Ints:
        """Without key columns there is one key."""
        if not len(self._hashes):
            self._hashes = np.zeros(1, np.uint64)
            self._new_buckets.append(self._bucket_of([], 1))
        return np.zeros(count, np.int64)

    def _add(self, keys: KeyColumns, hashes: Hashes) -> Ints:
        slots = np.arange(len(self._hashes), len(self._hashes) + len(hashes))
        self._chunks.append(keys)
        self._new_buckets.append(self._bucket_of(keys, len(hashes)))
        self._hashes = np.concatenate([self._hashes, hashes])
        if 2 * (len(self._hashes) - self._recent_base) > len(self._recent.entries):
            self._recent = _Table.sized(2 * (len(self._hashes) - self._recent_base))
            self._recent.insert(
                self._hashes[self._recent_base :], np.arange(self._recent_base, len(self._hashes))
            )
        else:
            self._recent.insert(hashes, slots)
        return slots

    def _find(self, keys: KeyColumns, hashes: Hashes) -> Ints:
        slots = np.full(len(hashes), -1, np.int64)
        for table in (self._base, self._recent):
            rows = np.flatnonzero(slots < 0)
            if table is None or not len(rows):
                continue
            at = table.start(hashes)
            while len(rows):  # once, unless different keys have the same hash
                rows, found = self._same_hash(table, hashes, rows, at)
                same = self._same(keys, rows, found)
                if (here := self.here(found)) is not None:
                    same &= here
                slots[rows[same]] = found[same]
                rows = rows[~same]
                table.next(at, rows)
        return slots

    def _same_hash(self, table: _Table, hashes: Hashes, rows: Ints, at: Ints) -> tuple[Ints, Ints]:
        """Walk on from `at` to keys of the same hash: the rows that meet one, and its slot."""
        met: list[Ints] = []
        slots: list[Ints] = []
        while len(rows):
            entry = table.probe(rows, at)
            rows, entry = rows[entry > 0], entry[entry > 0] - 1
            hit = self._hashes[entry] == hashes[rows]
            met.append(rows[hit])
            slots.append(entry[hit])
            rows = rows[~hit]
            table.next(at, rows)
        return np.concatenate(met), np.concatenate(slots)

    def _same(self, keys: KeyColumns, rows: Ints, slots: Ints) -> Mask:
        if not len(rows):
            return np.zeros(0, bool)
        return equal_keys([column.take(pa.array(rows)) for column in keys], self.take(slots), len(rows))

    def here(self, slots: Ints) -> Mask | None:
        """Which of some slots have not left; None: all of them."""
        if self._here is None:
            return None
        new: Mask = slots >= self.committed
        here: Mask = new | self._here[np.where(new, 0, slots)]
        return here

    def by_bucket(self) -> Ints | None:
        """Give the keys that are new their slots anew, in the order of their buckets; by the slot each had, from
        `committed` on, the one it has now. None: they have that order.
        """
        buckets = np.concatenate([np.zeros(0, np.int64), *self._new_buckets])
        if not self._types or bool((buckets[1:] >= buckets[:-1]).all()):
            return None
        order, known = ordered(buckets), len(self._sections)
        now = np.empty(len(order), np.int64)
        now[order] = np.arange(self.committed, self.committed + len(order))
        columns = [pa.concat_arrays([chunk[i] for chunk in self._chunks[known:]]) for i in range(len(self._types))]
        self._chunks[known:] = [[column.take(pa.array(order)) for column in columns]]
        self._hashes = np.concatenate([self._hashes[: self.committed], self._hashes[self.committed :][order]])
        self._new_buckets = [buckets[order]]
        self._recent.renumber(self.committed, now)
        return now

    def take(self, slots: Ints) -> list[pa.Array]:
        """The key columns of some slots; only the sections that hold them are read."""
        if len(self._chunks) == 1:
            return [column.take(pa.array(slots)) for column in self._chunks[0]]
        starts = np.cumsum([0, *(len(columns[0]) for columns in self._chunks if columns)])
        owners = np.searchsorted(starts, slots, "right") - 1
        order = ordered(owners)
        bounds = np.searchsorted(owners[order], np.arange(len(starts)))
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        taken = []
        for i, kind in enumerate(self._types):
            parts = [
                self._chunks[owner][i].take(pa.array(slots[order[low:high]] - starts[owner]))
                for owner, (low, high) in enumerate(pairwise(bounds.tolist()))
                if low < high
            ]
            joined = pa.concat_arrays(parts) if parts else pa.array([], kind)
            taken.append(joined if bool((order[1:] > order[:-1]).all()) else joined.take(pa.array(back)))
        return taken

    def batch(self, first: int, end: int | None = None) -> pa.RecordBatch:
        """Keys `first` … `end - 1` (all) as a `keys` section: k0, k1, …, `hash` and `bucket`."""
        return self._section(np.arange(first, len(self._hashes) if end is None else end))

    def opening(self, slots: Ints) -> pa.RecordBatch:
        """Keys of ascending slots as the section that opens the next generation, where they are 0, 1, 2, …"""
        return self._section(slots).append_column(WAS, pa.array(slots.astype(np.int32)))

    def _section(self, slots: Ints) -> pa.RecordBatch:
        columns = self.take(slots)
        more = [pa.array(self._hashes[slots]), pa.array(self._buckets(slots))]
        return pa.RecordBatch.from_arrays([*columns, *more], names=key_columns(len(columns)))

    def _buckets(self, slots: Ints) -> npt.NDArray[np.uint16]:
        """The buckets of ascending slots; committed sections are looked at only if one of them is there."""
        first = self.committed if len(slots) and slots[0] >= self.committed else 0
        known = [] if first else [with_buckets(one, len(self._types), self._bucket_of) for one in self._sections]
        parts = [*(np.asarray(section.column(BUCKET)) for section in known), *self._new_buckets]
        return np.concatenate([np.zeros(0, np.uint16), *parts])[slots - first].astype(np.uint16)

    def _load_base(self, cache: Path | None) -> tuple[_Table | None, int]:
        """The newest base table that belongs to these keys; a new one, and no other, when too many came after it."""
        if cache is None or self.committed < _SMALLEST_BASE:
            return None, 0
        known, keys = self._stored_base(cache)
        if known is not None and self.committed - keys <= keys // _LARGEST_RECENT:
            return known, keys
        table = _Table.sized(self.committed)
        if known is not None and len(known.entries) == len(table.entries):
            table = _Table(np.array(known.entries))
        else:
            keys = 0
        table.insert(self._hashes[keys:], np.arange(keys, self.committed))
        _save(cache, f"{cache.name}-{self.committed}-{self._mark(self.committed):016x}.npy", table.entries)
        return table, self.committed

    def _stored_base(self, cache: Path) -> tuple[_Table | None, int]:
        """The largest whole table in the folder that is of the first of these keys, and how many those are."""
        for keys, path in sorted(_tables(cache), reverse=True):
            if keys > self.committed or path.stem.rpartition("-")[2] != f"{self._mark(keys):016x}":
                continue
            stored = _stored(path)
            if stored is not None and _is_whole(stored, keys, len(_Table.sized(keys).entries)):
                return _Table(stored), keys
        return None, 0

    def _mark(self, keys: int) -> int:
        """A number that tells the first keys from any others, by their hashes and places."""
        mark = np.uint64(0)
        for first in range(0, keys, _MARKED_AT_ONCE):
            hashes = self._hashes[first : min(first + _MARKED_AT_ONCE, keys)]
            places = np.arange(first, first + len(hashes), dtype=np.uint64)
            mark ^= np.bitwise_xor.reduce(hashes * (2 * places + np.uint64(1)))
        return int(mark)


def _tables(cache: Path) -> list[tuple[int, Path]]:
    """Tables in the folder, with the number of their keys."""
    found = []
    for path in cache.parent.glob(f"{cache.name}-*-*.npy"):
        keys = path.stem[len(cache.name) + 1 :].partition("-")[0]
        if keys.isdecimal():
            found.append((int(keys), path))
    return found


def _stored(path: Path) -> npt.NDArray[np.int32] | None:
    try:
        entries: npt.NDArray[np.int32] = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return entries


def _is_whole(entries: npt.NDArray[np.int32], keys: int, size: int) -> bool:
    """Whether a file that a crash may have emptied or torn still holds every slot; one pass over it."""
    return (
        entries.dtype == np.int32
        and entries.shape == (size,)
        and int(entries.min()) == 0
        and int(entries.max()) == keys
        and int(np.count_nonzero(entries)) == keys
        and int(entries.sum(dtype=np.int64)) == keys * (keys + 1) // 2
    )


def _save(cache: Path, name: str, entries: npt.NDArray[np.int32]) -> None:
    """Write-then-rename, and remove what was there before: one table per dictionary, whatever came and went.

    A full or missing folder only costs the next worker the same work; who still reads a removed table goes on.
    """
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        before = [*cache.parent.glob(f"{cache.name}-*-*.npy"), *cache.parent.glob(f".{cache.name}-*")]
        handle, temporary = tempfile.mkstemp(dir=cache.parent, prefix=f".{cache.name}-")
        with os.fdopen(handle, "wb") as file:
            np.save(file, entries)
        os.replace(temporary, cache.with_name(name))
        for path in before:
            if path.name != name:
                path.unlink(missing_ok=True)
    except OSError:
        return
