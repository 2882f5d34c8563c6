"""The store in the memory of this process, for tests, notebooks and ponds that no other process reads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from millpond.errors import StoreError
from millpond.state.backends.kinds import StoreContext
from millpond.state.ports.store import (
    NEVER,
    Apply,
    BucketStore,
    Outcome,
    ReadRequest,
    ReadResult,
    Rows,
    Stand,
    Statistics,
    TableWrite,
    Verdict,
    decide,
)


class MemoryStore(BucketStore):
    """Dictionaries under one lock. They end with the process, so a restart replays the records that the log retains."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._applied: dict[int, Stand] = {}
        self._rows: dict[tuple[int, str], dict[bytes, bytes]] = {}
        self._tables: set[str] = set()
        self._closed = False

    @classmethod
    def open(cls, _context: StoreContext) -> MemoryStore:
        """A new store."""
        return cls()

    def apply_many(self, steps: Sequence[Apply]) -> list[Outcome]:
        with self._opened():
            return [self._apply(step) for step in steps]

    def stands_many(self, buckets: Sequence[int]) -> list[Stand]:
        with self._opened():
            return [self._stand(bucket) for bucket in buckets]

    def read_many(self, requests: Sequence[ReadRequest]) -> list[ReadResult]:
        with self._opened():
            return [self._found(one) for one in requests]

    def scan(self, bucket: int, table: str) -> Rows:
        with self._opened():
            rows = self._rows.get((bucket, table), {})
            return Rows(self._stand(bucket).n, list(rows.keys()), list(rows.values()))

    def clear_many(self, buckets: Iterable[int]) -> None:
        cleared = set(buckets)
        with self._opened():
            for bucket in cleared:
                self._applied.pop(bucket, None)
            for place in [place for place in self._rows if place[0] in cleared]:
                del self._rows[place]

    def tables(self) -> frozenset[str]:
        with self._opened():
            return frozenset(self._tables)

    def drop_table(self, table: str, upto: int) -> None:
        with self._opened():
            mine = [place for place in self._rows if place[1] == table]
            for place in mine:
                if self._stand(place[0]).n <= upto:
                    del self._rows[place]
            if not any(place in self._rows for place in mine):
                self._tables.discard(table)

    def shards(self, buckets: Iterable[int]) -> list[str]:
        with self._opened():
            return ["memory" for _ in buckets]

    def statistics(self) -> Statistics:
        """See `BucketStore.statistics`; the bytes are those of keys and values only."""
        with self._opened():
            keys = sum(len(rows) for rows in self._rows.values())
            size = sum(len(key) + len(value) for rows in self._rows.values() for key, value in rows.items())
            return Statistics(keys, size)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._rows.clear()
            self._applied.clear()

    def _apply(self, step: Apply) -> Outcome:
        stored = self._stand(step.bucket).n
        verdict = decide(stored, step)
        if verdict is Verdict.APPLIED:
            for write in step.writes:
                self._write(step.bucket, write)
            self._applied[step.bucket], stored = Stand(step.n, step.mark), step.n
        return Outcome(step.bucket, verdict, stored)

    def _stand(self, bucket: int) -> Stand:
        return self._applied.get(bucket, Stand(NEVER))

    def _write(self, bucket: int, write: TableWrite) -> None:
        self._tables.add(write.table)
        rows = self._rows.setdefault((bucket, write.table), {})
        for key, value in zip(write.keys, write.values, strict=True):
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value

    def _found(self, request: ReadRequest) -> ReadResult:
        rows = self._rows.get((request.bucket, request.table), {})
        return ReadResult(self._stand(request.bucket).n, [rows.get(key) for key in request.keys])

    @contextmanager
    def _opened(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise StoreError("The memory store is closed.", "Open another; the view is rebuilt from the log.")
            yield
