"""Changes the number of a pond's instances, the owners of its buckets, and the stores of its served rows."""

from __future__ import annotations

from millpond.control.pond.lifetime import Lifetime
from millpond.control.pond.request_change import ChangeRequests, named
from millpond.control.wiring.adapters import checked_store
from millpond.control.wiring.bucket_map import placed_now, unserved
from millpond.control.wiring.reader import read_truth
from millpond.errors import ChangeRefused
from millpond.placement.alignment import Owners, Placement
from millpond.placement.bucket_stores import OWN
from millpond.placement.moves import BucketMap
from millpond.reconfigure.change_price import ROWS_MOVE, Price
from millpond.reconfigure.change_queue import Make
from millpond.reconfigure.placement_changes import move, owned_by, scale


class BucketPlacement:
    """Where the buckets of one pond are; see `ChangeRequests` for when changes return."""

    def __init__(self, lifetime: Lifetime, requests: ChangeRequests) -> None:
        self._lifetime, self._requests = lifetime, requests

    def scale(self, instances: int, *, who: str | None = None, why: str = "asked") -> None:
        """Change the number of instances from the next epoch on.

        As few buckets migrate as an even distribution needs, and no result changes. `why` is stored in the history.

        Raises:
            ChangeRefused: the pond has this number of instances already, or fewer buckets.
        """
        self._requests.request(self._scaling(instances, named(who), why))

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

    def price_of_scale(self, instances: int) -> Price:
        """The price of `scale` if it were called now; nothing is changed.

        Raises:
            ChangeRefused: `scale` would be refused.
        """
        return self._requests.price(self._scaling(instances))

    def _scaling(self, instances: int, who: str = "", why: str = "") -> Make:
        followers = self._lifetime.open().followers
        return lambda pond: scale(pond, instances, followers.shards(), who, why)

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
            StoreError: no query is served, the pond is not open, or the store cannot be asked.
        """
        opened = self._lifetime.opened
        if opened is None or opened.followers.store is None:
            raise unserved()
        location, requests = self._lifetime.location, opened.followers.requests()
        found = placed_now(*read_truth(location.address, location.cache), opened.followers.store)
        return found._replace(requests=requests.sent, local_requests=requests.local)


def _address(to: str) -> str:
    """The address of a store, with an absolute path, because it is also read from other folders."""
    return OWN if to == "own" else checked_store(to)
