"""Instances of Linear Road's operators over a store: each has buckets of its own and may be a process of its own."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from linear_road import OPERATORS, Columns, Ints, Operator, Rows, together

from millpond.placement.slots import buckets_of, hash_tags, slots_of
from millpond.state.backends.redis import RedisStore
from millpond.state.ports.store import NEVER, Apply, BucketStore, ReadRequest, TableWrite

BUCKETS = 64
OPERATOR = {operator.name: operator for operator in OPERATORS}


def buckets(keys: Ints) -> Ints:
    """The bucket of each key, whose text is its digits."""
    return buckets_of(slots_of(pa.array(keys).cast(pa.string())), BUCKETS)


class Access(NamedTuple):
    """Rows read and written, those of them on the instance's own primary, and round trips to one primary each."""

    rows: int = 0
    local: int = 0
    trips: int = 0

    def plus(self, other: Access) -> Access:
        """Both together."""
        return Access(self.rows + other.rows, self.local + other.local, self.trips + other.trips)


class Cell(NamedTuple):
    """How the store is used: `shard[b]` has bucket b; messages per call (None: a batch); how far other shards are."""

    shard: tuple[int, ...]
    at_once: int | None
    remote_seconds: float


class Instance:
    """Runs operators over rows in `store`, as the neighbour of shard `own`, and counts."""

    def __init__(self, store: BucketStore, own: int, cell: Cell) -> None:
        self._store, self._own, self._cell = store, own, cell
        self._applied = dict.fromkeys(range(BUCKETS), NEVER)
        self.access = Access()

    def run(self, operator: Operator, batch: Columns) -> dict[str, Columns]:
        """The results of the operator for one batch."""
        results: dict[str, list[Columns]] = {}
        count = len(batch[operator.key])
        step = self._cell.at_once or max(1, count)
        for first in range(0, count, step):
            messages = {name: column[first : first + step] for name, column in batch.items()}
            for name, more in self._step(operator, messages).items():
                results.setdefault(name, []).append(more)
        return {name: together(parts) for name, parts in results.items()}

    def _step(self, operator: Operator, messages: Columns) -> dict[str, Columns]:
        keys, at = np.unique(messages[operator.key], return_inverse=True)
        places = buckets(keys)
        order = np.argsort(places, kind="stable")
        keys, places = keys[order], places[order]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        texts = [b"%d" % key for key in keys.tolist()]
        rows = self._read(operator, places, texts)
        before = rows.copy()
        results = operator.step(rows, back[at.ravel()], messages)
        self._write(operator, places, texts, rows, np.flatnonzero(rows != before))
        return results

    def _read(self, operator: Operator, places: Ints, texts: Sequence[bytes]) -> Rows:
        wanted = [ReadRequest(bucket, operator.name, texts[first:end]) for bucket, first, end in _runs(places)]
        self._count(places)
        found = self._store.read_many(wanted)
        none = bytes(operator.row.itemsize)
        data = bytearray().join([value or none for one in found for value in one.values])
        rows: Rows = np.frombuffer(data, operator.row)
        return rows

    def _write(self, operator: Operator, places: Ints, texts: Sequence[bytes], rows: Rows, changed: Ints) -> None:
        size, data = operator.row.itemsize, rows[changed].tobytes()
        values = [data[first : first + size] for first in range(0, len(data), size)]
        keys, places = [texts[i] for i in changed.tolist()], places[changed]
        steps = []
        for bucket, first, end in _runs(places):
            n = self._applied[bucket] = self._applied[bucket] + 1
            steps.append(Apply(bucket, n, n - 1, [TableWrite(operator.name, keys[first:end], values[first:end])]))
        if steps:
            self._count(places)
            outcomes = self._store.apply_many(steps)
            assert [one.applied for one in outcomes] == [step.n for step in steps], "somebody else wrote"

    def _count(self, places: Ints) -> None:
        shards = np.array(self._cell.shard)[places]
        touched = set(shards.tolist())
        self.access = self.access.plus(Access(len(places), int((shards == self._own).sum()), len(touched)))
        if self._cell.remote_seconds and touched != {self._own}:
            time.sleep(self._cell.remote_seconds)


def _runs(places: Ints) -> list[tuple[int, int, int]]:
    """Each bucket of a sorted array, with the first and the end of its run."""
    edges = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
    return [(int(places[first]), first, end) for first, end in pairwise(edges) if end > first]


class Process:
    """An instance in a process of its own, which takes one request after another."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, *request: Any) -> None:
        """Send `"open", address, own, cell`, `"take", operator, batches`, `"go"`, `"give"` or `"close"`."""
        self._line.send(request)

    def answer(self) -> Any:
        """What the request sent first brings; the process's own error if it failed."""
        found = self._line.recv()
        if isinstance(found, Exception):
            raise found
        return found

    def end(self) -> None:
        """End the process."""
        self._line.close()
        self._process.join(5)
        self._process.kill()


def _serve(line: Connection) -> None:
    store: BucketStore | None = None
    instance: Instance | None = None
    work: tuple[Operator, list[Columns]] | None = None
    results: list[dict[str, Columns]] = []
    while True:
        try:
            verb, *more = line.recv()
        except EOFError:
            return
        try:
            answer: Any = None
            if verb == "open":
                address, own, cell = more
                store = RedisStore(address, hash_tags(BUCKETS), check=False)
                instance = Instance(store, own, cell)
            elif verb == "take":
                work = OPERATOR[more[0]], more[1]
            elif verb == "go" and instance is not None and work is not None:
                results = [instance.run(work[0], batch) for batch in work[1]]
            elif verb == "give" and instance is not None:
                answer = results, instance.access
            elif verb == "close" and store is not None:
                store.close()
            line.send(answer)
        except Exception as error:
            line.send(error)
