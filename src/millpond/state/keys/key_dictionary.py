"""The key dictionary of an instance and group: assigns slots 0, 1, 2, … to keys in order of arrival.

Keys that arrive in one epoch are numbered by bucket, so that the keys that migrate with a bucket are contiguous. The
keys are stored as `keys` sections of committed deltas: memory-mapped typed columns with hashes and buckets. Look-ups
use open-addressing tables: a base table in a host-local folder, and a small one for newer keys. Both are caches that
any worker can rebuild from the hashes, so losing the folder loses no data.
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
from millpond.state.keys.keys import Hashes, KeyColumns, equal_keys, hashes_of, plain, rearranged

HASH = "hash"
"""The column of a section of keys with their hashes."""

BUCKET = "bucket"
"""The column of a section of keys with their buckets, so that the target of a migration need not read the keys."""

WAS = "was"
"""The column of a section that opens a generation: the slot of each key in the previous generation."""

_SMALLEST_BASE = 4096

_LARGEST_RECENT = 8  # a table for up to an eighth of the keys is built in memory in every epoch

_MARKED_AT_ONCE = 1 << 20


BucketOf: TypeAlias = Callable[[KeyColumns, int], Ints]
"""A function that computes the buckets of keys, from their columns and their number."""


def key_columns(width: int) -> list[str]:
    """The column names of a section, for keys of `width` columns."""
    return [*(f"k{i}" for i in range(width)), HASH, BUCKET]


def with_buckets(section: pa.RecordBatch, width: int, bucket_of: BucketOf) -> pa.RecordBatch:
    """A section of keys of `width` columns, with their buckets added if it is of an early version that lacks them."""
    if BUCKET in section.schema.names:
        return section
    buckets = bucket_of(section.columns[:width], section.num_rows)
    return section.append_column(BUCKET, pa.array(buckets.astype(np.uint16)))


class _Table:
    """A hash table with open addressing and linear probing; entries are `slot + 1`, and 0 is empty."""

    def __init__(self, entries: npt.NDArray[np.int32]) -> None:
        self.entries = entries
        self._mask = np.uint64(len(entries) - 1)

    @classmethod
    def sized(cls, keys: int) -> _Table:
        return cls(np.zeros(1 << max(4, int(keys * 2 - 1).bit_length()), np.int32))

    def insert(self, hashes: Hashes, slots: Ints) -> None:
        """Inserts new keys. If several rows probe one entry, the last row takes it and the others continue."""
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
        """Changes each slot from `first` on to `now[slot - first]`."""
        later = np.flatnonzero(self.entries > first)
        self.entries[later] = now[self.entries[later] - 1 - first] + 1

    def probe(self, rows: Ints, at: Ints) -> Ints:
        """The entries at the probed positions of `rows` (0: empty)."""
        found: Ints = self.entries[at[rows]].astype(np.int64)
        return found

    def start(self, hashes: Hashes) -> Ints:
        at: Ints = (hashes & self._mask).astype(np.int64)
        return at

    def next(self, at: Ints, rows: Ints) -> None:
        at[rows] = (at[rows] + 1) & np.int64(self._mask)


class KeyDictionary:
    """Maps keys to slots; new keys get the next slots. Must not be shared between threads.

    >>> keys = KeyDictionary([pa.string()], [], None, lambda keys, count: np.zeros(count, np.int64))
    >>> keys.number([pa.array(["b", "a"])]).tolist(), keys.number([pa.array(["a", "c"])]).tolist()
    ([0, 1], [1, 2])
    """

    def __init__(
        self, types: Sequence[pa.DataType], sections: Sequence[pa.RecordBatch], cache: Path | None,
        bucket_of: BucketOf, departed: Ints | None = None,
    ) -> None:  # fmt: skip
        """`sections`: the committed `keys` batches in order, with columns k0, k1, …, `hash` and `bucket`.

        `cache`: the path prefix of stored tables. `departed`: slots of keys that have migrated to another instance; if
        such a key comes back, it gets a new slot.
        """
        self._types = list(types)
        self._chunks: list[KeyColumns] = [batch.columns[: len(types)] for batch in sections]
        hashes = [np.asarray(batch.column(HASH)) for batch in sections]
        self._sections, self._bucket_of, self._new_buckets = sections, bucket_of, list[Ints]()
        self._hashes = np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
        self.committed = len(self._hashes)
        self._here = None if departed is None else np.ones(self.committed, bool)
        if self._here is not None:
            self._here[departed] = False
        self._base, base = self._load_base(cache)
        self._recent = _Table.sized(max(self.committed - base, 64))
        self._recent.insert(self._hashes[base:], np.arange(base, self.committed))
        self._recent_base = base
        self._waiting: list[tuple[Hashes, Ints]] = []  # keys that no table has yet, because nothing has looked for them

    def __len__(self) -> int:
        return len(self._hashes)

    def number(self, keys: KeyColumns, rows: int | None = None, buckets: Ints | None = None) -> Ints:
        """The slots of `keys`, which must be canonical and distinct; unknown keys are added.

        `buckets`: the bucket of each key, if it need not be computed.
        """
        count = len(keys[0]) if keys else (1 if rows is None else rows)
        if not keys:
            return self._number_none(count)
        hashes = hashes_of(keys, count)
        slots = self._find(keys, hashes)
        unknown = np.flatnonzero(slots < 0)
        if len(unknown):
            new = [column.take(pa.array(unknown)) for column in keys]
            known = self._bucket_of(new, len(unknown)) if buckets is None else buckets[unknown]
            slots[unknown] = self._add(new, hashes[unknown], known)
        return slots

    def _number_none(self, count: int) -> Ints:
        """The slots of a group without key columns, which has one key."""
        if not len(self._hashes):
            self._hashes = np.zeros(1, np.uint64)
            self._new_buckets.append(self._bucket_of([], 1))
        return np.zeros(count, np.int64)

    def _add(self, keys: KeyColumns, hashes: Hashes, buckets: Ints) -> Ints:
        slots = np.arange(len(self._hashes), len(self._hashes) + len(hashes))
        self._chunks.append(list(keys))  # still encoded, so that the texts are copied once, in their last order
        self._new_buckets.append(buckets)
        self._hashes = np.concatenate([self._hashes, hashes])
        self._waiting.append((hashes, slots))
        return slots

    def _insert_waiting(self) -> None:
        if 2 * (len(self._hashes) - self._recent_base) > len(self._recent.entries):
            self._recent = _Table.sized(2 * (len(self._hashes) - self._recent_base))
            self._recent.insert(self._hashes[self._recent_base :], np.arange(self._recent_base, len(self._hashes)))
        else:
            for hashes, slots in self._waiting:
                self._recent.insert(hashes, slots)
        self._waiting.clear()

    def _find(self, keys: KeyColumns, hashes: Hashes) -> Ints:
        slots = np.full(len(hashes), -1, np.int64)
        self._insert_waiting()
        for table in (self._base, self._recent):
            rows = np.flatnonzero(slots < 0)
            if table is None or not len(rows):
                continue
            at = table.start(hashes)
            while len(rows):  # one iteration, unless different keys have the same hash
                rows, found = self._same_hash(table, hashes, rows, at)
                same = self._same(keys, rows, found)
                if (here := self.here(found)) is not None:
                    same &= here
                slots[rows[same]] = found[same]
                rows = rows[~same]
                table.next(at, rows)
        return slots

    def _same_hash(self, table: _Table, hashes: Hashes, rows: Ints, at: Ints) -> tuple[Ints, Ints]:
        """Probes on from `at` for keys with equal hashes; returns the rows that find one, and its slot."""
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
        """Which of these slots have keys that are still on this instance; None: all have."""
        if self._here is None:
            return None
        new: Mask = slots >= self.committed
        here: Mask = new | self._here[np.where(new, 0, slots)]
        return here

    def by_bucket(self) -> Ints | None:
        """Renumbers the new keys in the order of their buckets.

        Returns the new slot of each old slot from `committed` on; None if the keys are in this order already.
        """
        buckets = np.concatenate([np.zeros(0, np.int64), *self._new_buckets])
        if not self._types or bool((buckets[1:] >= buckets[:-1]).all()):
            return None
        order, known = ordered(buckets), len(self._sections)
        now = np.empty(len(order), np.int64)
        now[order] = np.arange(self.committed, self.committed + len(order))
        new = self._chunks[known:]
        self._chunks[known:] = [[rearranged([chunk[i] for chunk in new], order) for i in range(len(self._types))]]
        self._hashes = np.concatenate([self._hashes[: self.committed], self._hashes[self.committed :][order]])
        self._new_buckets = [buckets[order]]
        self._recent.renumber(self.committed, now)
        self._waiting = [(hashes, now[slots - self.committed]) for hashes, slots in self._waiting]
        return now

    def take(self, slots: Ints) -> list[pa.Array]:
        """The key columns of these slots; only sections that contain them are read."""
        if len(self._chunks) == 1:
            return [plain(column.take(pa.array(slots))) for column in self._chunks[0]]
        starts = np.cumsum([0, *(len(columns[0]) for columns in self._chunks if columns)])
        if len(slots) and bool((slots[1:] - slots[:-1] == 1).all()):
            return self._between(starts, int(slots[0]), int(slots[-1]) + 1)
        owners = np.searchsorted(starts, slots, "right") - 1
        order = ordered(owners)
        bounds = np.searchsorted(owners[order], np.arange(len(starts)))
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        taken = []
        for i, kind in enumerate(self._types):
            parts = [
                plain(self._chunks[owner][i].take(pa.array(slots[order[low:high]] - starts[owner])))
                for owner, (low, high) in enumerate(pairwise(bounds.tolist()))
                if low < high
            ]
            joined = pa.concat_arrays(parts) if parts else pa.array([], kind)
            taken.append(joined if bool((order[1:] > order[:-1]).all()) else joined.take(pa.array(back)))
        return taken

    def _between(self, starts: Ints, first: int, end: int) -> list[pa.Array]:
        """The key columns of the slots `first` … `end` - 1; those of one section are not copied."""
        low, high = (int(np.searchsorted(starts, slot, "right")) - 1 for slot in (first, end - 1))
        cuts = [(chunk, max(first - starts[chunk], 0), end - starts[chunk]) for chunk in range(low, high + 1)]
        columns = []
        for i in range(len(self._types)):
            parts = [plain(self._chunks[chunk][i][int(start) : int(stop)]) for chunk, start, stop in cuts]
            columns.append(parts[0] if len(parts) == 1 else pa.concat_arrays(parts))
        return columns

    def batch(self, first: int, end: int | None = None) -> pa.RecordBatch:
        """Keys `first` … `end - 1` (None: to the last) as a `keys` section: k0, k1, …, `hash` and `bucket`."""
        return self._section(np.arange(first, len(self._hashes) if end is None else end))

    def opening(self, slots: Ints) -> pa.RecordBatch:
        """Keys of ascending slots as the section that opens the next generation, in which their slots are 0, 1, 2, …"""
        return self._section(slots).append_column(WAS, pa.array(slots.astype(np.int32)))

    def _section(self, slots: Ints) -> pa.RecordBatch:
        columns = self.take(slots)
        more = [pa.array(self._hashes[slots]), pa.array(self._buckets(slots))]
        return pa.RecordBatch.from_arrays([*columns, *more], names=key_columns(len(columns)))

    def _buckets(self, slots: Ints) -> npt.NDArray[np.uint16]:
        """The buckets of ascending slots; committed sections are read only if the slots need them."""
        first = self.committed if len(slots) and slots[0] >= self.committed else 0
        known = [] if first else [with_buckets(one, len(self._types), self._bucket_of) for one in self._sections]
        parts = [*(np.asarray(section.column(BUCKET)) for section in known), *self._new_buckets]
        return np.concatenate([np.zeros(0, np.uint16), *parts])[slots - first].astype(np.uint16)

    def _load_base(self, cache: Path | None) -> tuple[_Table | None, int]:
        """The newest stored base table of these keys; if too many keys are newer, a new table that replaces it."""
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
        """The largest intact table in the folder for a prefix of these keys, and the length of the prefix."""
        for keys, path in sorted(_tables(cache), reverse=True):
            if keys > self.committed or path.stem.rpartition("-")[2] != f"{self._mark(keys):016x}":
                continue
            stored = _stored(path)
            if stored is not None and _is_whole(stored, keys, len(_Table.sized(keys).entries)):
                return _Table(stored), keys
        return None, 0

    def _mark(self, keys: int) -> int:
        """A number that identifies the first `keys` keys, by their hashes and positions."""
        mark = np.uint64(0)
        for first in range(0, keys, _MARKED_AT_ONCE):
            hashes = self._hashes[first : min(first + _MARKED_AT_ONCE, keys)]
            places = np.arange(first, first + len(hashes), dtype=np.uint64)
            mark ^= np.bitwise_xor.reduce(hashes * (2 * places + np.uint64(1)))
        return int(mark)


def _tables(cache: Path) -> list[tuple[int, Path]]:
    """The tables in the folder, each with its number of keys."""
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
    """Whether a file, which a crash may have emptied or torn, contains every slot; reads it once."""
    return (
        entries.dtype == np.int32
        and entries.shape == (size,)
        and int(entries.min()) == 0
        and int(entries.max()) == keys
        and int(np.count_nonzero(entries)) == keys
        and int(entries.sum(dtype=np.int64)) == keys * (keys + 1) // 2
    )


def _save(cache: Path, name: str, entries: npt.NDArray[np.int32]) -> None:
    """Writes a table, renames it into place, and removes older tables, so that a dictionary has one stored table.

    If the folder is full or missing, the next worker only has to build the table again. A process that has mapped a
    removed table can continue to read it.
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
