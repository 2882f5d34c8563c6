"""The port of a store whose servers may be added and removed while it is used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from millpond.state.ports.sharded import ShardedStore
from millpond.state.ports.store import BucketStore


class ElasticStore(ABC):
    """A store that can move a bucket, with its number and rows, between its own servers.

    A bucket that moves stays readable and writable; calls that find it half moved wait and are repeated. `shards` names
    its server before and after. Other data that the servers keep beside a bucket moves with it.

    Raises:
        StoreError: the store refused or cannot be reached (any method).
    """

    @abstractmethod
    def servers(self) -> list[str]:
        """The names of all servers that may keep buckets, also of those that keep none."""

    @abstractmethod
    def check_server(self, name: str) -> None:
        """Check that a server may keep buckets: its version and its settings."""

    @abstractmethod
    def move_shard(self, buckets: Sequence[int], to: str) -> None:
        """Move buckets to the server `to`; a StoreError leaves each bucket complete, and the call may be repeated."""

    @abstractmethod
    def unfinished(self) -> int:
        """How many moves have begun and not ended, of any process."""

    @abstractmethod
    def finish(self) -> None:
        """Complete or revert the moves of processes that have ended."""


def elastic(store: BucketStore) -> ElasticStore | None:
    """The store, if it can move buckets between its servers; None: it cannot, or buckets are in several stores."""
    if isinstance(store, ShardedStore):
        places = {*store.places}
        return elastic(store.at(places.pop())) if len(places) == 1 else None
    return store if isinstance(store, ElasticStore) else None
