"""Moves served rows of some buckets to another store while the pond runs: copy, catch up, switch, delete."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from millpond.clock import lap_us
from millpond.control.wiring.stores_and_followers import Followers, instances_reach
from millpond.control.wiring.truth import Truth
from millpond.errors import ChangeRefused, StoreError
from millpond.faults import reached
from millpond.followers.record_rows import section_reader
from millpond.followers.view.move_rows import CatchingUp, copy, forget
from millpond.followers.view.view import BucketRows, ViewFollower
from millpond.log.manifest import load
from millpond.model.spec import PondSpec
from millpond.placement.bucket_stores import OWN, buckets_named, places_in
from millpond.placement.moves import maps_in
from millpond.plan.explain.amounts import time_left
from millpond.reconfigure.apply import plan_of
from millpond.reconfigure.catalog import in_force
from millpond.reconfigure.placement_changes import Moved
from millpond.runtime.migration.bucket_load import bucket_loads
from millpond.state.ports.sharded import ShardedStore

_PATIENCE_SECONDS = 60.0
"""How long to wait for the view to pass the switch; if it does not, the next opening deletes the old rows."""


class RowMover:
    """The moves of one open pond, one at a time; `store`: the address of its own store, `note`: a move's progress.

    Create it when the pond is claimed: it deletes rows that earlier moves have left behind.
    """

    def __init__(self, truth: Truth, followers: Followers, store: str) -> None:
        self._truth, self._followers, self._store = truth, followers, store
        self._one = threading.Lock()
        self._closed = False
        self.note: str | None = None
        if followers.store is not None:
            with suppress(StoreError):
                sweep(followers.store)

    def close(self) -> None:
        """End a move that is under way without the switch."""
        self._closed = True

    def buckets(self, selection: str, spec: PondSpec) -> tuple[int, ...]:
        """The buckets that the text `selection` names, those with the most load in the last epoch first.

        Raises:
            ChangeRefused: it names no bucket. StoreError: no query is served.
        """
        store = self._rows()
        named = buckets_named(selection, store.places, store.shards(range(spec.buckets)))
        manifest = load(self._truth.log, self._truth.manifests)
        instances = maps_in(spec, manifest)[0].instances
        loads = self._truth.sections(
            lambda now: bucket_loads(plan_of(spec), now, self._truth.files(), instances, spec.buckets), manifest
        )
        return tuple(np.array(named)[np.argsort(-loads[list(named)], kind="stable")].tolist())

    def price(self, buckets: Collection[int], to: str) -> Moved:
        """How many buckets would be copied, and about how many bytes if all buckets of a store are equally large."""
        store, size = self._rows(), 0.0
        leaving = [bucket for bucket in buckets if store.places[bucket] != to]
        for place in {store.places[bucket] for bucket in leaving}:
            mine = sum(store.places[bucket] == place for bucket in leaving)
            size += store.at(place).statistics().stored_bytes * mine / store.places.count(place)
        return Moved(len(leaving), round(size))

    def move(self, buckets: Sequence[int], to: str, switch: Callable[[], int]) -> None:
        """Move the rows of buckets to the store at `to`; `switch` has the change recorded, and returns its record.

        Raises:
            ChangeRefused, StoreError: nothing was changed; a new try starts from the beginning.
        """
        if instances_reach(self._store) and to != OWN and not to.startswith("env:") and not instances_reach(to):
            raise ChangeRefused(
                f"The instances write the rows of this pond themselves, and cannot reach {to}.", "Name a Redis."
            )
        if not self._one.acquire(blocking=False):
            raise ChangeRefused("Rows are being moved already.", "Try again when that move has ended.")
        try:
            self._move(buckets, to, switch)
        finally:
            self.note = None
            self._one.release()

    def _move(self, buckets: Sequence[int], to: str, switch: Callable[[], int]) -> None:
        store, truth = self._rows(), self._truth
        old, target = store.places, store.at(to)
        leaving = [bucket for bucket in buckets if old[bucket] != to]
        if not leaving:
            where = f"the store {to}" if to else "the pond's own store"
            raise ChangeRefused(f"These rows are in {where} already.", "Nothing is left to do.")
        head = partial(load, truth.log, truth.manifests)
        rows, served = BucketRows(section_reader(truth.files()), leaving), self._followers.attached.served
        view = ViewFollower(target, rows, leaving, lambda: dict(served), head, truth.log.read)
        catching = CatchingUp(view, truth.log, truth.manifests)
        reached("move.before")
        try:
            began = lap_us()
            copy(store, target, leaving, lambda done: self._goes_on(done, len(leaving), lap_us() - began))
            catching.apply_to_head()
            reached("move.caught_up")
            n = switch()
        except BaseException:
            with suppress(StoreError):
                self._give_up(leaving, to)
            raise
        reached("move.switched")
        with suppress(StoreError):  # the view also brings them to the head, and the next opening of the pond cleans up
            catching.apply_to_head()
            self.note = f"the rows are in place; the old ones are deleted when the view has passed record {n:,}"
            if self._followers.runner.wait(n, _PATIENCE_SECONDS):
                for place in {old[bucket] for bucket in leaving}:
                    forget(store.at(place), [bucket for bucket in leaving if old[bucket] == place])
        reached("move.forgotten")

    def _give_up(self, buckets: Sequence[int], to: str) -> None:
        """Delete the unused copies, except for buckets whose change was recorded despite the error."""
        places = places_in(in_force(load(self._truth.log, self._truth.manifests)))
        forget(self._rows().at(to), [bucket for bucket in buckets if places[bucket] != to])

    def _goes_on(self, done: int, of: int, took_us: int) -> bool:
        self.note = f"{done:,} of {of:,} buckets are copied{time_left(done, of, took_us)}"
        return not self._closed

    def _rows(self) -> ShardedStore:
        if self._followers.store is None:
            raise StoreError("No query of the pond is served, so no rows are kept.", "Serve one: 'serve' = 'true'.")
        return self._followers.store


def sweep(store: ShardedStore) -> None:
    """Delete rows that moves have left behind, in stores that still keep other buckets and in the pond's own store."""
    for place in dict.fromkeys((*store.places, OWN)):
        forget(store.at(place), [bucket for bucket, of in enumerate(store.places) if of != place])


def routed(store: ShardedStore, spec: PondSpec) -> None:
    """Set the store of each bucket as in the spec."""
    store.route(places_in(spec))
