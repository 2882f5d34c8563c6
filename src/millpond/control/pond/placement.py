"""Changes a pond's instances, the owners of its buckets, and the shards and stores of its served rows."""

from __future__ import annotations

from collections.abc import Sequence

from millpond.control.pond.lifetime import Lifetime
from millpond.control.pond.report import Reports
from millpond.control.pond.request_change import ChangeRequests, named
from millpond.control.wiring.bucket_map import placed_now, unserved
from millpond.control.wiring.pond_reader import read_truth
from millpond.control.wiring.stores_and_followers import checked_store
from millpond.errors import ChangeRefused
from millpond.placement.alignment import Owners, Placement
from millpond.placement.bucket_stores import OWN
from millpond.placement.moves import BucketMap
from millpond.placement.shards import assign_buckets, requested_shards
from millpond.reconfigure.change_price import ROWS_MOVE, Price
from millpond.reconfigure.change_queue import Make
from millpond.reconfigure.placement_changes import Moved, move, owned_by, resharded, scale
from millpond.state.ports.elastic import elastic


class BucketPlacement:
    """Where the buckets of one pond are; see `ChangeRequests` for when changes return."""

    def __init__(self, lifetime: Lifetime, requests: ChangeRequests, reports: Reports) -> None:
        self._lifetime, self._requests, self._reports = lifetime, requests, reports

    def scale(
        self, instances: int | None = None, *, shards: int | Sequence[str] | None = None, who: str | None = None,
        why: str = "requested",
    ) -> None:  # fmt: skip
        """Change the number of instances from the next epoch on, and the shards of a Redis cluster that keep rows.

        As few buckets migrate as an even distribution needs, and no result changes. `why` is stored in the history.
        `instances`: None for the present number. `shards`: how many primaries of the cluster share the hash slots, or
        which (`HOST:PORT`); they have joined the cluster, and may be empty. Slots move with their keys in the
        background, and state follows. It returns when the change is recorded; the next driver continues it.

        Raises:
            ChangeRefused: instances and shards are so already, there are fewer buckets or primaries, or the store is no
                cluster.
        """
        self._requests.request(self._scaling(instances, shards, named(who), why))

    def servers(self) -> tuple[str, ...]:
        """All primaries of the store's cluster that can keep rows, also empty ones, as the view has seen them last.

        Empty if rows are not kept by a cluster, or while slots move that the pond does not move.
        """
        slots = self._lifetime.open().followers.slots
        return () if slots is None or not slots.steady else slots.servers

    def stop_resharding(self, *, who: str | None = None) -> None:
        """End a move of hash slots where it is; from then on, owners of buckets follow the slots.

        Raises:
            ChangeRefused: no slots are moved.
        """
        self._requests.request(lambda pond: resharded(pond, (), named(who)))

    def assign(self, owners: Owners, instances: int, why: str, *, who: str | None = None) -> None:
        """Give each bucket the named owner, among `instances` instances, from the next epoch on.

        Raises:
            ChangeRefused: buckets or instances do not fit the pond; or the pond would undo the change, because it
                aligns buckets with the shards of its store.
        """
        if self._lifetime.open().followers.wanted(BucketMap(0, owners, instances)) is not None:
            raise ChangeRefused(
                "Some buckets would be owned by instances that are not of their shard.", "Move slots of the store."
            )
        self._requests.request(lambda pond: owned_by(pond, owners, instances, named(who), why))

    def price_of_scale(
        self, instances: int | None = None, *, shards: int | Sequence[str] | None = None
    ) -> Price:  # fmt: skip
        """The price of `scale` if it were called now; nothing is changed.

        Raises:
            ChangeRefused: `scale` would be refused.
        """
        price, opened = self._requests.price(self._scaling(instances, shards)), self._lifetime.open()
        if shards is None or opened.followers.store is None or opened.followers.slots is None:
            return price
        before, target = opened.followers.slots.steady, self._target(shards)
        movable = elastic(opened.followers.store)
        for server in dict.fromkeys(target):
            assert movable is not None
            movable.check_server(server)
        moved = sum(old != new for old, new in zip(before, target, strict=True))
        size = opened.followers.store.statistics().stored_bytes * moved // len(target)
        return price._replace(shards=tuple(dict.fromkeys(target)), slots=Moved(moved, size))

    def _scaling(
        self, instances: int | None, shards: int | Sequence[str] | None, who: str = "", why: str = ""
    ) -> Make:  # fmt: skip
        followers, target = self._lifetime.open().followers, () if shards is None else self._target(shards)
        return lambda pond: scale(pond, instances, followers.shards(), who, why, target)

    def _target(self, shards: int | Sequence[str]) -> tuple[str, ...]:
        """The shard of each bucket after a move to these shards."""
        slots = self._lifetime.open().followers.slots
        if slots is None or (slots.steady and not slots.servers):
            raise ChangeRefused(
                "The pond serves no query from a Redis cluster, or the user of its store may not see the primaries.",
                "Leave the shards out, or see docs/how-to/scale.md.",
            )
        if not slots.steady:
            raise ChangeRefused("Hash slots of the store are being moved.", "Ask again when they have settled.")
        return assign_buckets(slots.steady, requested_shards(shards, slots.steady, slots.servers))

    def move(self, what: str, to: str, *, who: str | None = None) -> None:
        """Move the served rows of some buckets to another store, while the pond runs.

        `what`: the number of a bucket, `FIRST-LAST`, or the shard that keeps the buckets, as `placement` names it.
        `to`: the address of a store, `env:NAME` for an address in the variable NAME (set here and wherever rows are
        read), or `own`, the pond's store. Returns when rows are read from there, and the old copies are deleted.

        Raises:
            ChangeRefused, StoreError: nothing was changed; it may be tried again.
        """
        opened, who = self._lifetime.open(), named(who)
        driver, moving = opened.driver, opened.moving
        if driver.in_epoch:
            raise ChangeRefused("Rows cannot be moved from within an epoch.", "Ask in another thread.")
        to, buckets = _address(to), moving.buckets(what, opened.spec)
        self._requests.price(lambda pond: move(pond, buckets, to, who))
        moving.move(buckets, to, lambda: driver.request(lambda pond: move(pond, buckets, to, who)).result())

    def price_of_move(self, what: str, to: str) -> Price:
        """The amount that `move` would copy if it were called now; nothing is changed.

        Raises:
            ChangeRefused, StoreError: `move` would be refused.
        """
        opened = self._lifetime.open()
        to, buckets = _address(to), opened.moving.buckets(what, opened.spec)
        price = self._requests.price(lambda pond: move(pond, buckets, to))
        return price._replace(cost=ROWS_MOVE, moved=opened.moving.price(buckets, to))

    def placement(self) -> Placement:
        """Which instance owns which buckets, on which shards of the store they are, and how many requests are local.

        Raises:
            StoreError: no query is served, the pond is not open, or the store does not answer.
        """
        opened = self._lifetime.opened
        if opened is None or opened.followers.store is None:
            raise unserved()
        location, requests = self._lifetime.location, opened.followers.requests() + self._reports.lookups
        found = placed_now(*read_truth(location.address, location.cache), opened.followers.store)
        return found._replace(requests=requests.sent, local_requests=requests.local)


def _address(to: str) -> str:
    """The address of a store, with an absolute path, because it is also read from other folders."""
    return OWN if to == "own" else checked_store(to)
