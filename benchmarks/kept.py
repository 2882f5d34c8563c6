"""One process that keeps windows of events for patterns, each in a list: of its own copies, or of references.

Started by `shared_state.py` with where events are (`heap`: a copy for each pattern; `memory`, `lmdb`, `redis`: once in
that store, under a number, and patterns keep numbers), the number of patterns, the folder of transactions, the store's
address. Each file is a step: its events are added, then all windows that its newest time has passed are answered, a
pattern at a time, as the paper does: one multi-get for all that close, here batched per bucket. Events that no window
holds any more are deleted. The last line is one JSON object: bytes of anonymous memory above those at the start and
bytes of the store, both the largest of any step; seconds of each step; results and a digest of them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import redis
from bank import SIZE_US, SLIDE_US, excluded, most_often

from millpond.arrays import Ints
from millpond.placement.slots import buckets_of, hash_tags, slots_of
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.backends.memory import MemoryStore
from millpond.state.backends.redis import RedisStore
from millpond.state.ports.store import NEVER, Apply, BucketStore, ReadRequest, TableWrite

BUCKETS = 16
TABLE = "events"

Place = tuple[int, str]
"""End of a window in microseconds, and customer."""


class Copies:
    """Each pattern has the events themselves."""

    def __init__(self, patterns: int) -> None:
        self._windows: list[dict[Place, list[bytes]]] = [defaultdict(list) for _ in range(patterns)]

    def add(self, events: pa.Table) -> None:
        """Keep the events of one step."""
        customers, kinds, ends = _columns(events)
        for pattern, windows in enumerate(self._windows):
            without = excluded(pattern)
            # a list of its own objects for each pattern, as operators have that work alone
            texts = events["event"].cast(pa.binary()).to_pylist()
            for customer, kind, text, last in zip(customers, kinds, texts, ends, strict=True):
                if kind != without:
                    for end in range(last, last - SIZE_US, -SLIDE_US):
                        windows[end, customer].append(text)

    def close(self, newest_us: int) -> Iterator[tuple[int, Place, bytes]]:
        """Answer the windows that end at or before a time, and forget them."""
        for pattern, windows in enumerate(self._windows):
            for place in [place for place in windows if place[0] <= newest_us]:
                yield pattern, place, most_often(windows.pop(place))

    def stored_bytes(self) -> int:
        """Bytes in a store."""
        return 0


class References:
    """Each pattern has numbers of events, which are in a store, in the bucket of their customer."""

    def __init__(self, patterns: int, kind: str, address: str) -> None:
        self._windows: list[dict[Place, array[int]]] = [defaultdict(lambda: array("q")) for _ in range(patterns)]
        self._store, self._address = _store(kind, address), address
        self._applied = dict.fromkeys(range(BUCKETS), NEVER)
        self._count = 0
        self._living: list[tuple[Ints, Ints, Ints]] = []

    def add(self, events: pa.Table) -> None:
        """Keep the events of one step, once."""
        customers, kinds, ends = _columns(events)
        numbers = self._count + np.arange(len(events))
        self._count += len(events)
        places = _buckets(customers)
        self._write(places, numbers, events["event"].cast(pa.binary()).to_pylist())
        self._living.append((places, numbers, np.array(ends)))
        for pattern, windows in enumerate(self._windows):
            without = excluded(pattern)
            for customer, kind, number, last in zip(customers, kinds, numbers.tolist(), ends, strict=True):
                if kind != without:
                    for end in range(last, last - SIZE_US, -SLIDE_US):
                        windows[end, customer].append(number)

    def close(self, newest_us: int) -> Iterator[tuple[int, Place, bytes]]:
        """Answer the windows that end at or before a time, and forget them and the events that are in no other."""
        for pattern, windows in enumerate(self._windows):
            closing = [place for place in windows if place[0] <= newest_us]
            if not closing:
                continue
            places = _buckets([customer for _, customer in closing]).tolist()
            wanted = [
                ReadRequest(bucket, TABLE, [b"%d" % number for number in windows.pop(place)])
                for bucket, place in zip(places, closing, strict=True)
            ]
            for place, found in zip(closing, self._store.read_many(wanted), strict=True):
                yield pattern, place, most_often([text for text in found.values if text is not None])
        for at, (places, numbers, ends) in enumerate(self._living):
            gone = ends <= newest_us
            self._write(places[gone], numbers[gone], [None] * int(gone.sum()))
            self._living[at] = places[~gone], numbers[~gone], ends[~gone]

    def stored_bytes(self) -> int:
        """Bytes in the store, where they are not this process's: pages of the file, the server's data."""
        if isinstance(self._store, RedisStore):
            with redis.Redis.from_url(self._address) as client:
                return int(client.info("memory")["used_memory_dataset"])
        return self._store.statistics().stored_bytes if isinstance(self._store, LmdbStore) else 0

    def _write(self, places: Ints, numbers: Ints, values: Iterable[bytes | None]) -> None:
        of: dict[int, tuple[list[bytes], list[bytes | None]]] = defaultdict(lambda: ([], []))
        for bucket, number, value in zip(places.tolist(), numbers.tolist(), values, strict=True):
            of[bucket][0].append(b"%d" % number)
            of[bucket][1].append(value)
        steps = []
        for bucket, (keys, some) in of.items():
            n = self._applied[bucket] = self._applied[bucket] + 1
            steps.append(Apply(bucket, n, n - 1, [TableWrite(TABLE, keys, some)]))
        self._store.apply_many(steps)


def anonymous_bytes() -> int:
    """Memory of this process that no file backs (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def digest_of(pattern: int, end_us: int, customer: str, text: bytes) -> int:
    """A result as a number; those of all results are combined by exclusive or, in any order."""
    line = b"%d,%d,%b,%b" % (pattern, end_us, customer.encode(), text)
    return int.from_bytes(hashlib.blake2b(line, digest_size=6).digest(), "big")


def _read(path: Path) -> pa.Table:
    return pq.read_table(path, use_threads=False)


def _columns(events: pa.Table) -> tuple[list[str], list[str], list[int]]:
    """Customers, kinds, and the end of the last window that each event is in."""
    times = events["ts"].cast(pa.int64()).to_numpy()
    last = times // SLIDE_US * SLIDE_US + SIZE_US
    return events["customer"].to_pylist(), events["kind"].to_pylist(), last.tolist()


def _buckets(customers: list[str]) -> Ints:
    return buckets_of(slots_of(pa.array(customers, pa.string())), BUCKETS)


def _store(kind: str, address: str) -> BucketStore:
    if kind == "redis":
        return RedisStore(address, hash_tags(BUCKETS))
    return LmdbStore(Path(address)) if kind == "lmdb" else MemoryStore()


def main(kind: str, patterns: int, source: Path, address: str) -> None:
    """Take all steps and print what was measured."""
    _read(min(source.glob("*.parquet")))  # what reading takes is not state
    kept: Copies | References = Copies(patterns) if kind == "heap" else References(patterns, kind, address)
    before, stored_before = anonymous_bytes(), kept.stored_bytes()
    heap, stored, seconds, results, digest = 0, 0, [], 0, 0
    for path in sorted(source.glob("*.parquet")):
        events = _read(path)
        newest = int(events["ts"].cast(pa.int64()).to_numpy().max())
        began = perf_counter()
        kept.add(events)
        del events
        # the state is largest before windows close
        heap, stored = max(heap, anonymous_bytes() - before), max(stored, kept.stored_bytes() - stored_before)
        for pattern, (end, customer), text in kept.close(newest):
            results, digest = results + 1, digest ^ digest_of(pattern, end, customer, text)
        seconds.append(perf_counter() - began)
    print(json.dumps({"heap": heap, "stored": stored, "seconds": seconds, "results": results, "digest": digest}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
