"""Chooses how instances reach a pond's files: in its folder if all hosts see it, otherwise through its store."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from millpond.control.wiring import Truth, files_on_network, instance_store, on_network
from millpond.errors import PlaceError
from millpond.model.spec import PondSpec
from millpond.placement.alignment import owners_in
from millpond.placement.slots import hash_tags
from millpond.runtime.carried import Carrier
from millpond.runtime.followers.shared_view import Settle, Share, catch_up, owners_of
from millpond.spark.hosts import is_on_every_host
from millpond.spark.session import Session
from millpond.spark.settle import settled
from millpond.spark.tasks import OpenFiles
from millpond.state.file_store import FileStore
from millpond.state.files import CarriedFiles, Files
from millpond.state.store import BucketStore


class Carriage(NamedTuple):
    """How workers open the pond's files, who brings these between hosts, and who moves a view on the network."""

    open_files: OpenFiles
    carrier: Carrier | None
    settle: Settle


def carriage(spark: Session, truth: Truth, spec: PondSpec, cached: Path, store: str) -> Carriage:
    """Instances use the pond's folder itself, if it is on every host; else a store on the network carries its files.

    Raises:
        PlaceError: other hosts see neither the folder nor such a store.
        StoreError: the store cannot be reached.
    """
    open_there = partial(_store_of, store, truth.pond)
    if is_on_every_host(spark, truth.folder):
        return Carriage(partial(Files, truth.folder), None, lambda share: settled(spark, share, open_there))
    if not on_network(store):
        raise PlaceError(
            f"{truth.folder} is not on every executor's host.",
            "Put the pond on a file system that all of them share, or give it a store that all reach (redis://…).",
        )
    # files of an instance that came later lie with those of another
    owners, tags = owners_in(spec), hash_tags(spec.buckets)
    homes = tuple(tags[owners.index(instance) if instance in owners else 0] for instance in range(spec.instances))
    carrier = Carrier(truth.folder, files_on_network(store, truth.pond, homes))
    return Carriage(
        partial(_instance_files, str(cached / truth.pond / "files"), store, truth.pond, homes), carrier,
        # the log is in a folder that only the driver sees
        lambda share: [catch_up(share, instance, open_there(share)) for instance in owners_of(share)],
    )  # fmt: skip


def _store_of(store: str, pond: str, share: Share) -> BucketStore:
    """The store as an instance writes to it, with the shards that its rows are on."""
    return instance_store(store, pond, len(share.owners), share.places)


def _instance_files(folder: str, store: str, pond: str, homes: tuple[str, ...]) -> CarriedFiles:
    return CarriedFiles(Path(folder), _opened(store, pond, homes))


@cache
def _opened(store: str, pond: str, homes: tuple[str, ...]) -> FileStore:
    """Opened once per worker process."""
    return files_on_network(store, pond, homes)
