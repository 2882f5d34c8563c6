"""One store composed of several: each bucket is kept in the store at its *place*, an address.

The place of a bucket may change while the store is in use (`route`). A reader in another process notices when a
bucket is empty where it was. Then it calls `fresh` for the current places and reads the missing rows again. Each
bucket has the guarantees of its own store; a read from several stores is not a consistent snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from millpond.errors import StoreError
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
)

T = TypeVar("T")
A = TypeVar("A")

Places: TypeAlias = tuple[str, ...]
"""The place (address) of each bucket."""


class ShardedStore(BucketStore):
    """Buckets in the stores at `places`; `opens` opens the store of a place when it is first used."""

    def __init__(
        self, opens: Callable[[str], BucketStore], places: Places, fresh: Callable[[], Places] | None = None
    ) -> None:
        self._opens, self._places, self._fresh = opens, places, fresh
        self._stores: dict[str, BucketStore] = {}
        self._closed = False
        self._opening = threading.Lock()

    @property
    def places(self) -> Places:
        """The current place of each bucket."""
        return self._places

    @property
    def note(self) -> str | None:
        """A description of the repairs that the stores have made themselves."""
        with self._opening:
            notes = [getattr(store, "note", None) for store in self._stores.values()]
        return "; ".join(note for note in notes if note) or None

    def route(self, places: Places) -> None:
        """Uses these places from the next call on."""
        self._places = places

    def at(self, place: str) -> BucketStore:
        """The store at a place, even if it has no buckets at present.

        Raises:
            StoreError, ForeignPondError: it cannot be opened, or this store is closed.
        """
        with self._opening:
            if self._closed:
                raise StoreError("The store is closed.", "Open it again.")
            if place not in self._stores:
                self._stores[place] = self._opens(place)
            return self._stores[place]

    def apply_many(self, steps: Sequence[Apply]) -> list[Outcome]:
        """See `BucketStore.apply_many`; if a store fails, later stores are not called; the call may be repeated."""
        return self._each(steps, [step.bucket for step in steps], lambda store, some: store.apply_many(some))

    def stands_many(self, buckets: Sequence[int]) -> list[Stand]:
        return self._each(buckets, buckets, lambda store, some: store.stands_many(some))

    def read_many(self, requests: Sequence[ReadRequest]) -> list[ReadResult]:

        def read(part: Sequence[ReadRequest]) -> list[ReadResult]:
            return self._each(part, [one.bucket for one in part], lambda store, own: store.read_many(own))

        return self._read_again(requests, read(requests), lambda one: one.applied, read)

    def scan(self, bucket: int, table: str) -> Rows:
        return self.scan_many([bucket], table)[0]

    def scan_many(self, buckets: Iterable[int], table: str) -> list[Rows]:

        def scan(part: Sequence[int]) -> list[Rows]:
            return self._each(part, part, lambda store, own: store.scan_many(own, table))

        wanted_buckets = list(buckets)
        return self._read_again(wanted_buckets, scan(wanted_buckets), lambda one: one.applied, scan)

    def scan_tables(self, buckets: Iterable[int], tables: Sequence[str]) -> list[list[Rows]]:

        def scan(part: Sequence[int]) -> list[list[Rows]]:
            return self._each(part, part, lambda store, own: store.scan_tables(own, tables))

        wanted_buckets = list(buckets)
        return self._read_again(wanted_buckets, scan(wanted_buckets), lambda found: found[0].applied, scan)

    def clear_many(self, buckets: Iterable[int]) -> None:
        wanted = list(buckets)
        self._each(wanted, wanted, lambda store, some: (store.clear_many(some), some)[1])

    def tables(self) -> frozenset[str]:
        return frozenset(table for store in self._all() for table in store.tables())

    def drop_table(self, table: str, upto: int) -> None:
        for store in self._all():
            store.drop_table(table, upto)

    def shards(self, buckets: Iterable[int]) -> list[str]:
        wanted = list(buckets)
        return self._each(wanted, wanted, lambda store, some: store.shards(some))

    def statistics(self) -> Statistics:
        found = [store.statistics() for store in self._all()]
        return Statistics(sum(one.keys for one in found), sum(one.stored_bytes for one in found))

    def close(self) -> None:
        with self._opening:
            self._closed = True
            for store in self._stores.values():
                store.close()

    def _all(self) -> list[BucketStore]:
        return [self.at(place) for place in dict.fromkeys(self._places)]

    def _each(
        self, requests: Sequence[A], buckets: Sequence[int], call: Callable[[BucketStore, Sequence[A]], Sequence[T]]
    ) -> list[T]:
        """Calls each store for its own buckets, and returns the answers in the order of `requests`."""
        places = self._places
        positions_by_place: dict[str, list[int]] = {}
        for position, bucket in enumerate(buckets):
            positions_by_place.setdefault(places[bucket], []).append(position)
        if len(positions_by_place) <= 1:
            return list(call(self.at(next(iter(positions_by_place), places[0])), requests))
        answers: dict[int, T] = {}
        for place, positions in positions_by_place.items():
            answers.update(zip(positions, call(self.at(place), [requests[i] for i in positions]), strict=True))
        return [answers[position] for position in range(len(requests))]

    def _read_again(
        self, requests: Sequence[A], results: list[T], applied: Callable[[T], int],
        read: Callable[[Sequence[A]], list[T]],
    ) -> list[T]:  # fmt: skip
        empty = [position for position, one in enumerate(results) if applied(one) == NEVER]
        if not empty or self._fresh is None:
            return results
        places = self._fresh()
        if places == self._places:
            return results
        self.route(places)
        for position, one in zip(empty, read([requests[i] for i in empty]), strict=True):
            results[position] = one
        return results
