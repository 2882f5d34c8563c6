"""Checks the files that instances wrote, and transfers files through a store to hosts that do not see the folder.

This is the driver's side; a file is checked before a record names it.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from millpond.errors import FilesLostError, HostError
from millpond.log.locations.objects import Objects
from millpond.log.manifest import Manifest
from millpond.log.records import Receipt
from millpond.runtime.task.state_locations import place_of
from millpond.state.ports.file_store import FileStore
from millpond.state.ports.files import REACH_CURE, UNSHARED_CURE, Files

_TRIES = 3
"""How often an epoch is attempted if the store loses files of its state."""

Deltas: TypeAlias = list[tuple[Receipt, bytes]]


class Carrier:
    """Transfers files between the pond's `folder`, which only the driver sees, and the `store` that all instances
    reach.

    `note`: a text about the last files that the store has lost, if any.
    """

    def __init__(self, folder: Path, store: FileStore) -> None:
        self._folder, self._files, self._store = folder, Files(folder), store
        self.note: str | None = None

    def run(self, manifest: Manifest, attempt: Callable[[], Deltas]) -> Deltas:
        """Runs the job of an epoch, and copies its deltas to the folder; retries after putting back lost files.

        Raises:
            FilesLostError: the store has lost files in every attempt.
        """
        for _ in range(_TRIES - 1):
            try:
                return self._taken(attempt())
            except FilesLostError:
                self.restore_missing(manifest)
        return self._taken(attempt())

    def _taken(self, deltas: Deltas) -> Deltas:
        self.take(receipt for receipt, _ in deltas)
        return deltas

    def take(self, receipts: Iterable[Receipt]) -> None:
        """Copies the deltas of an epoch to the folder, before its record names them.

        Raises:
            FilesLostError: the store has lost a delta, or its content differs from the receipt.
        """
        written = [receipt for receipt in receipts if receipt.file is not None]
        found = self._store.take_many([receipt.file or "" for receipt in written])
        for receipt, data in zip(written, found, strict=True):
            if data is None or hashlib.sha256(data).hexdigest() != receipt.digest:
                raise FilesLostError(f"The store has lost {receipt.file}.", "The epoch runs again.")
            self._files.write(receipt.file or "", [data])

    def restore_missing(self, manifest: Manifest) -> int:
        """Copies files with live sections that are missing in the store to it; returns the number of files."""
        lacking = self._store.lacking(sorted(live_files(manifest)))
        for name in lacking:
            self._put(name)
        if lacking:
            self.note = f"{len(lacking)} files that the store had lost were put back, at record {manifest.n}"
        return len(lacking)

    def _put(self, name: str) -> None:
        self._store.put(name, [(self._folder / name).read_bytes()], kept=True)

    def begin(self, manifest: Manifest) -> None:
        """Synchronizes the store with `manifest`: adds missing files, and removes files that no record names.

        Files that another driver, which still runs, has pruned in the meantime are skipped.
        """
        for name in self._store.lacking(sorted(live_files(manifest))):
            with suppress(FileNotFoundError):
                self._put(name)
        self.note = None
        self._store.remove_many(self._store.names() - live_files(manifest))

    def add(self, names: Iterable[str]) -> None:
        """Copies files of the folder to the store before a record names them."""
        for name in names:
            self._put(name)

    def remove(self, names: Iterable[str]) -> None:
        """Removes files from the store that were deleted from the folder."""
        self._store.remove_many(names)


OpenFiles: TypeAlias = Callable[[], Files]
"""Opens the pond's files; it is called in workers, so it must be importable there."""


class FileRoute(NamedTuple):
    """How workers open the pond's files, and the carrier that transfers them (None: all hosts share the folder)."""

    open_files: OpenFiles
    carrier: Carrier | None


class FileTransport:
    """Gives instances access to the files of the pond in `folder`: by `route`, until a host does not see the folder.

    From then on files are transferred by the route that `through_store` returns, if it is given. `digests`: whether the
    driver also compares the digest of each delta with its receipt, which is only useful if tasks run on other hosts.
    `objects`: where the files are if the pond is in an object store.
    """

    def __init__(
        self, folder: Path, route: FileRoute, through_store: Callable[[], FileRoute] | None = None, *,
        digests: bool = True, objects: Objects | None = None,
    ) -> None:  # fmt: skip
        self._folder, self._route, self._through_store, self._digests = folder, route, through_store, digests
        self._objects = objects
        self._switch = threading.Lock()

    @property
    def open_files(self) -> OpenFiles:
        """The function by which workers open the pond's files."""
        return self._route.open_files

    @property
    def carrier(self) -> Carrier | None:
        """The carrier that transfers files between hosts, if these do not share the folder."""
        return self._route.carrier

    @property
    def can_carry(self) -> bool:
        """Whether files can be transferred to hosts that do not see the folder."""
        return self.carrier is not None or self._through_store is not None

    def begin(self, manifest: Manifest) -> None:
        """Synchronizes the store with the manifest, if files are transferred through a store."""
        if self.carrier is not None:
            self.carrier.begin(manifest)

    def run(self, manifest: Manifest, attempt: Callable[[], Deltas]) -> Deltas:
        """Runs the job of an epoch; when this returns, its deltas are in the folder and match their receipts.

        A backfill runs its jobs by this, too, in a thread beside the epochs.

        Raises:
            HostError: a host does not see the folder, and no store can transfer its files.
            FilesLostError: the store has lost files in every attempt.
        """
        if self.carrier is None:
            try:
                deltas = attempt()
                self._check(receipt for receipt, _ in deltas)
                return deltas
            except HostError as error:
                if self._through_store is None:
                    raise
                self._carry(manifest, error)
        assert self.carrier is not None
        return self.carrier.run(manifest, attempt)

    def add(self, names: Iterable[str]) -> None:
        """Copies files of the folder to the store, if there is one, so that every host can read them."""
        if self.carrier is not None:
            self.carrier.add(names)

    def remove(self, names: Iterable[str]) -> None:
        """Removes files that were deleted from the folder from the store, if there is one."""
        if self.carrier is not None:
            self.carrier.remove(names)

    def _carry(self, manifest: Manifest, error: HostError) -> None:
        with self._switch:
            if self.carrier is not None:  # an epoch or a backfill has switched in the meantime
                return
            assert self._through_store is not None
            route = self._through_store()
            assert route.carrier is not None
            route.carrier.begin(manifest)
            route.carrier.note = f"{error.what} The store transfers files since record {manifest.n}."
            self._route = route

    def _check(self, receipts: Iterable[Receipt]) -> None:
        if self._objects is not None:
            check_objects(self._objects, [receipt for receipt in receipts if receipt.file is not None])
            return
        for receipt in receipts:
            if receipt.file is None:
                continue
            path = self._folder / receipt.file
            if not _is_there(path, receipt.size) or (self._digests and _digest(path) != receipt.digest):
                raise HostError(
                    f"Instance {receipt.instance} wrote {receipt.file}, but on the driver's host {socket.gethostname()}"
                    f" {path} is missing or differs.",
                    UNSHARED_CURE,
                )


def check_objects(objects: Objects, receipts: Sequence[Receipt]) -> None:
    """Checks by HEAD requests that objects exist and have their size, before a record names them.

    Their content needs no check: the store accepts an object as a whole or not at all, compares the digest that the
    request is signed with, and no other attempt writes the same name. The request shows that driver and task mean the
    same store. Each host compares the digest when it copies the object.

    Raises:
        HostError: an object is missing, or has another size.
    """
    names = [receipt.file or "" for receipt in receipts]
    for receipt, size in zip(receipts, objects.sizes(names), strict=True):
        if size != receipt.size:
            raise HostError(
                f"Instance {receipt.instance} wrote {receipt.file}, but {objects.where} has"
                f" {'no such object' if size is None else f'{size} bytes of it'}.",
                REACH_CURE,
            )


def _is_there(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def live_files(manifest: Manifest) -> set[str]:
    """The files with live sections: deltas, and records that contain sections."""
    return {place_of(section).file for section in manifest.sections.values()}
