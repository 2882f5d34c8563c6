"""Watches on which shard each bucket is, and proposes new owners when hash slots have stopped moving.

Only the thread of the view queries the store; the driver reads the result here, so a slow store delays no epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millpond.clock import lap_us
from millpond.errors import StoreError
from millpond.placement.alignment import Owners, placement_of, realigned
from millpond.placement.moves import BucketMap
from millpond.state.ports.elastic import elastic
from millpond.state.ports.store import BucketStore

LOOK_EVERY_US = 1_000_000
"""How long slots must have stayed in place before owners follow them, and how often they are checked."""


class WantedOwners(NamedTuple):
    """Proposed owners of all buckets, and the reason as text."""

    owners: Owners
    why: str


class SlotsWatch:
    """Tracks the shards of the buckets of one pond."""

    def __init__(self, buckets: int, *, every_us: int = LOOK_EVERY_US) -> None:
        self._buckets = buckets
        self._every_us = every_us
        self._looked_us: int | None = None
        self._seen: tuple[str, ...] = ()
        self._steady: tuple[str, ...] = ()
        self._fits: tuple[Owners, tuple[str, ...]] | None = None
        self.planned: tuple[str, ...] = ()
        """The shard to which each bucket moves by request; empty: none move. It is steady for owners."""
        self.servers: tuple[str, ...] = ()
        """All servers that may keep buckets; empty if the store cannot move buckets between servers."""

    def look(self, store: BucketStore) -> None:
        """Check the shards, unless that was done recently; a store that does not answer is queried again later."""
        now = lap_us()
        if self._looked_us is not None and now < self._looked_us + self._every_us:
            return
        self._looked_us = now
        try:
            seen = tuple(store.shards(range(self._buckets)))
        except StoreError:
            self._seen = self._steady = self.servers = ()
            return
        self.servers = _servers(store)
        # following slots that are still moving would migrate state several times
        self._steady = seen if seen == self._seen else ()
        self._seen = seen

    def arrived(self) -> None:
        """Note that every bucket has arrived at its planned shard, so that nothing has to be looked at twice."""
        self._seen = self._steady = self.planned

    @property
    def steady(self) -> tuple[str, ...]:
        """The shard of each bucket, or the one to which it moves by request; empty while slots move otherwise."""
        return self.planned or self._steady

    def wanted(self, now: BucketMap) -> WantedOwners | None:
        """Better owners than the current ones, if there are any; does not query the store."""
        owners, steady = now.owners, self.steady
        if not steady or self._fits == (owners, steady):
            return None
        better = realigned(owners, steady, now.instances)
        if better == owners:
            self._fits = owners, steady
            return None
        return WantedOwners(better, _why(owners, better, steady))


def _servers(store: BucketStore) -> tuple[str, ...]:
    """All servers that may keep buckets; none if the store, or its user, cannot move buckets between servers."""
    try:
        movable = elastic(store)
        return () if movable is None else tuple(movable.servers())
    except StoreError:
        return ()


def _why(before: Owners, after: Owners, shards: Sequence[str]) -> str:
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    rates = [placement_of(owners, shards).aligned for owners in (before, after)]
    return (
        f"slots of the store lie elsewhere: {moved:,} of {len(after):,} buckets follow them to instances of their "
        f"shards, {rates[0]:.1%} aligned before, {rates[1]:.1%} after"
    )
