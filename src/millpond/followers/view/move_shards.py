"""Moves the hash slots of a store to the shards that the log names, in a thread, while the pond runs.

From a `Scale` with shards until a `Resharded`, the log states the shard of each bucket. So a driver that takes over
continues, and another request changes the direction at once. Before each portion of buckets, the thread checks that
this plan is still in force and that no other driver has claimed the pond.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from millpond.clock import lap_us
from millpond.errors import ChangeRefused, StoreError
from millpond.faults import reached
from millpond.followers.view.shard_watch import SlotsWatch
from millpond.placement.run_lengths import of_runs
from millpond.plan.explain.amounts import time_left
from millpond.state.ports.elastic import ElasticStore, elastic
from millpond.state.ports.store import BucketStore

BUCKETS_AT_ONCE = 16
"""How many buckets move before the log is checked again."""

_RETRY_SECONDS = 1.0
"""How long to wait before a move that the store refused is tried again."""


class ShardMover:
    """The move of hash slots of one open pond.

    `leads`: whether no other driver has claimed the pond. `arrived`: records that all slots are on their shards.
    """

    def __init__(
        self, store: BucketStore | None, watch: SlotsWatch | None, leads: Callable[[], bool],
        arrived: Callable[[Sequence[str]], object],
    ) -> None:  # fmt: skip
        self._store, self._watch, self._leads, self._arrived = store, watch, leads, arrived
        self._gate = threading.Condition()
        self._target: tuple[str, ...] = ()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._progress, self._error = "", ""

    @property
    def note(self) -> str | None:
        """The progress of the move, and the reason if it waits; None: no slots move."""
        return f"{self._progress}{self._error}" or None

    def aim(self, runs: Sequence[tuple[str, int]]) -> None:
        """Move slots to these shards from now on, as in `ChangeEffects.shards`; empty: move none."""
        target = tuple(of_runs(runs))
        if self._watch is not None:
            self._watch.planned = target
        with self._gate:
            self._target = target
            self._gate.notify_all()
            if target and self._store is not None and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shards", daemon=True)
                self._thread.start()

    def close(self, timeout: float = 10.0) -> None:
        """End the thread after its current portion; the plan stays in the log."""
        with self._gate:
            self._closed = True
            self._gate.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while (target := self._next_target()) is not None:
            try:
                self._move(target)
            except ChangeRefused:
                continue  # another request came first
            except Exception as error:  # whatever it is, the plan is in the log, and this thread carries it out
                self._error = f"; it is tried again: {error}"
                self._wait_to_retry(target)

    def _wait_to_retry(self, target: tuple[str, ...]) -> None:
        with self._gate:
            self._gate.wait_for(lambda: self._closed or self._target != target, _RETRY_SECONDS)

    def _next_target(self) -> tuple[str, ...] | None:
        with self._gate:
            if self._closed or not self._target:
                self._thread, self._progress, self._error = None, "", ""
                return None
            return self._target

    def _move(self, target: tuple[str, ...]) -> None:
        self._progress = "hash slots are about to move"
        store = self._elastic()
        store.finish()
        for server in dict.fromkeys(target):
            store.check_server(server)
        done, self._error, began = 0, "", lap_us()
        for server, buckets in portions(target):
            if not self._is_current(target):
                return
            left = time_left(done, len(target), lap_us() - began)
            self._progress = f"hash slots of {done:,} of {len(target):,} buckets are on their shards{left}"
            store.move_shard(buckets, server)
            reached("shards.portion")
            done += len(buckets)
        self._progress = "all hash slots are on their shards"
        if self._is_current(target):
            if self._watch is not None:
                self._watch.arrived()
            self._arrived(target)

    def _elastic(self) -> ElasticStore:
        found = None if self._store is None else elastic(self._store)
        if found is None:
            raise StoreError(
                "The store of the pond has no shards that can be moved.", "End it: `millpond scale --shards stay`."
            )
        return found

    def _is_current(self, target: tuple[str, ...]) -> bool:
        if not self._leads():
            self._closed = True
        return not self._closed and self._target == target


def portions(target: Sequence[str], most: int = BUCKETS_AT_ONCE) -> Iterator[tuple[str, list[int]]]:
    """Consecutive buckets of one shard, at most this number at once.

    >>> list(portions("aaab", 2))
    [('a', [0, 1]), ('a', [2]), ('b', [3])]
    """
    for server, run in groupby(range(len(target)), target.__getitem__):
        buckets = list(run)
        yield from ((server, buckets[first : first + most]) for first in range(0, len(buckets), most))
