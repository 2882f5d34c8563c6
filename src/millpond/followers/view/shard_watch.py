"""Watches on which shard each bucket lies, and proposes new owners when hash slots have stopped moving.

The thread of the view asks the store, and the driver only asks this module: a silent store delays no epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millpond.clock import Clock, lap_us
from millpond.errors import StoreError
from millpond.placement.alignment import Owners, placement_of, realigned
from millpond.placement.moves import BucketMap
from millpond.state.ports.store import BucketStore

LOOK_EVERY_US = 1_000_000
"""How long slots must have been where they are before owners follow them, and how often they are looked at."""


class Wanted(NamedTuple):
    """Owners that fit the shards, and why, for people."""

    owners: Owners
    why: str


class SlotsWatch:
    """Where the buckets of one pond lie."""

    def __init__(self, buckets: int, *, every_us: int = LOOK_EVERY_US, clock: Clock = lap_us) -> None:
        self._buckets = buckets
        self._every_us, self._clock = every_us, clock
        self._looked_us: int | None = None
        self._seen: tuple[str, ...] = ()
        self._steady: tuple[str, ...] = ()
        self._fits: tuple[Owners, tuple[str, ...]] | None = None

    def look(self, store: BucketStore) -> None:
        """Look at the shards, unless that was done a moment ago; a store that does not answer is asked again later."""
        now = self._clock()
        if self._looked_us is not None and now < self._looked_us + self._every_us:
            return
        self._looked_us = now
        try:
            seen = tuple(store.shards(range(self._buckets)))
        except StoreError:
            self._seen = self._steady = ()
            return
        # slots that are on their way would move state several times
        self._steady = seen if seen == self._seen else ()
        self._seen = seen

    @property
    def steady(self) -> tuple[str, ...]:
        """The shard of each bucket; empty while slots are on their way."""
        return self._steady

    def wanted(self, now: BucketMap) -> Wanted | None:
        """Better owners than those of now, if there are any; asks no store."""
        owners, steady = now.owners, self._steady
        if not steady or self._fits == (owners, steady):
            return None
        better = realigned(owners, steady, now.instances)
        if better == owners:
            self._fits = owners, steady
            return None
        return Wanted(better, _why(owners, better, steady))


def _why(before: Owners, after: Owners, shards: Sequence[str]) -> str:
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    rates = [placement_of(owners, shards).local_hit_rate for owners in (before, after)]
    return (
        f"slots of the store lie elsewhere: {moved:,} of {len(after):,} buckets follow them to instances of their "
        f"shards, local-hit rate {rates[0]:.1%} before, {rates[1]:.1%} after"
    )
