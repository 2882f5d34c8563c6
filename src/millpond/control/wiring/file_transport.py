"""Chooses how instances reach a pond's files, and runs the jobs by which they write view and Redis rows.

The files are in its object store, in its folder, or transferred through its store of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from millpond.control.wiring.stores_and_followers import files_on_network, instance_store
from millpond.control.wiring.truth import Truth
from millpond.errors import HostError, PlaceError
from millpond.followers.upserts import Upsert, Upserted
from millpond.followers.view.shared_view import Caught, Share, catch_up, owners_of
from millpond.model.spec import PondSpec
from millpond.placement.alignment import owners_in
from millpond.placement.slots import hash_tags
from millpond.runtime.joins.lookup_rows import OpenRows
from millpond.runtime.task.file_sync import Carrier, FileRoute, FileTransport
from millpond.spark.driver.store_jobs import update_view, upsert_rows
from millpond.spark.session.hosts import is_local, is_on_every_host
from millpond.spark.session.session import Session
from millpond.spark.session.task_hosts import TaskHosts
from millpond.state.backends.kinds import store_kind
from millpond.state.layout.delta import CheckFile, check_delta, check_listed
from millpond.state.ports.file_store import FileStore
from millpond.state.ports.files import UNSHARED_CURE, CarriedFiles, shared_files
from millpond.state.ports.object_files import files_of
from millpond.state.ports.store import BucketStore


class PondFiles(FileTransport):
    """Gives instances access to the pond's files, and decides whether they write a view on the network themselves."""

    def __init__(
        self, spark: Session, truth: Truth, route: FileRoute, through_store: Callable[[], FileRoute] | None,
        open_store: Callable[[Share], BucketStore], hosts: TaskHosts,
    ) -> None:  # fmt: skip
        objects = truth.address.objects() if truth.address.path is None else None
        super().__init__(truth.folder, route, through_store, digests=not is_local(spark), objects=objects)
        self._spark, self._pond, self._open_store, self._hosts = spark, truth.pond, open_store, hosts

    def settle(self, share: Share) -> Sequence[Caught]:
        """Bring the view to the newest record: by the instances, or by the driver if only the driver sees the log.

        Raises:
            HostError: a host does not see the folder, and no store can transfer its files.
        """
        if self.carrier is None:
            try:
                return update_view(self._spark, share, self._pond, self._open_store, self._hosts)
            except HostError:
                if not self.can_carry:
                    raise
        return [catch_up(share, instance, self._open_store(share)) for instance in owners_of(share)]

    def upsert(self, upsert: Upsert, opens: OpenRows) -> Sequence[Upserted] | None:
        """See `Instances.write`."""
        if self.carrier is not None:
            return None
        try:
            return upsert_rows(self._spark, upsert, opens, self._hosts)
        except HostError:
            return None


def pond_files(
    spark: Session, truth: Truth, spec: PondSpec, cached: Path, store: str, hosts: TaskHosts
) -> PondFiles:  # fmt: skip
    """The access to the pond's files: its object store, or its folder if all hosts see it, or a store on the network.

    `hosts`: those that the tasks which write a view prefer.

    Raises:
        PlaceError: other hosts see neither the folder nor such a store.
        StoreError: the store cannot be reached.
    """
    through_store = partial(_through_store, truth, spec, cached, store) if store_kind(store).files is not None else None
    if truth.address.path is None:
        # executors need no folder, and no store that carries files
        through_store = None
        route = FileRoute(files_of(truth.address, truth.folder, truth.run, one_host=is_local(spark)), None)
    elif is_on_every_host(spark, truth.folder):
        route = FileRoute(partial(shared_files, truth.folder, truth.pond), None)
    elif through_store is not None:
        route = through_store()
    else:
        raise PlaceError(f"{truth.folder} is not on every executor's host.", UNSHARED_CURE)
    return PondFiles(spark, truth, route, through_store, partial(_store_of, store, truth.pond), hosts)


def delta_check(truth: Truth) -> CheckFile:
    """How a driver checks the file of a delta when it opens the pond."""
    if truth.address.path is not None:
        return partial(check_delta, truth.address.path)
    return partial(check_listed, {name for name, _ in truth.files().written()}, str(truth.address))


def _through_store(truth: Truth, spec: PondSpec, cached: Path, store: str) -> FileRoute:
    # files of an instance that was added later share the hash tag of another instance
    owners, tags = owners_in(spec), hash_tags(spec.buckets)
    homes = tuple(tags[owners.index(instance) if instance in owners else 0] for instance in range(spec.instances))
    open_files = partial(_instance_files, str(cached / truth.pond / "files"), store, truth.pond, homes)
    return FileRoute(open_files, Carrier(truth.folder, files_on_network(store, truth.pond, homes)))


def _store_of(store: str, pond: str, share: Share) -> BucketStore:
    """The store to which an instance writes its share, with the places of the buckets."""
    return instance_store(store, pond, len(share.owners), share.places)


def _instance_files(folder: str, store: str, pond: str, homes: tuple[str, ...]) -> CarriedFiles:
    return CarriedFiles(Path(folder), _opened(store, pond, homes))


@cache
def _opened(store: str, pond: str, homes: tuple[str, ...]) -> FileStore:
    """The store of files, opened once per worker process."""
    return files_on_network(store, pond, homes)
