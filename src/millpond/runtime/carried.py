"""The driver's side of file transfer through a store: collects files of instances and restores lost ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from millpond.errors import FilesLostError
from millpond.log.manifest import Manifest
from millpond.log.records import Receipt
from millpond.runtime.remembered import place_of
from millpond.state.file_store import FileStore
from millpond.state.files import Files

_TRIES = 3
"""How often an epoch runs while the store loses files of its state."""

Deltas: TypeAlias = list[tuple[Receipt, bytes]]


class Carrier:
    """Between the pond's `folder`, which only the driver sees, and the `store` that every instance reaches.

    `note` says what the store has lost last.
    """

    def __init__(self, folder: Path, store: FileStore) -> None:
        self._folder, self._files, self._store = folder, Files(folder), store
        self.note: str | None = None

    def run(self, manifest: Manifest, attempt: Callable[[], Deltas]) -> Deltas:
        """What the instances of an epoch returned, their deltas in the folder; what the store loses is put back.

        Raises:
            FilesLostError: it goes on losing what is put there.
        """
        for _ in range(_TRIES - 1):
            try:
                return self._taken(attempt())
            except FilesLostError:
                self.put_back(manifest)
        return self._taken(attempt())

    def _taken(self, deltas: Deltas) -> Deltas:
        self.take(receipt for receipt, _ in deltas)
        return deltas

    def take(self, receipts: Iterable[Receipt]) -> None:
        """Bring the deltas of an epoch into the folder, before its record names them.

        Raises:
            FilesLostError: the store has lost one, or has another.
        """
        written = [receipt for receipt in receipts if receipt.file is not None]
        found = self._store.take_many([receipt.file or "" for receipt in written])
        for receipt, data in zip(written, found, strict=True):
            if data is None or hashlib.sha256(data).hexdigest() != receipt.digest:
                raise FilesLostError(f"The store has lost {receipt.file}.", "The epoch runs again.")
            self._files.write(receipt.file or "", [data])

    def put_back(self, manifest: Manifest) -> int:
        """Put what live sections are in, and the store lacks, there; returns how many files."""
        lacking = self._store.lacking(sorted(live_files(manifest)))
        for name in lacking:
            self._put(name)
        if lacking:
            self.note = f"{len(lacking)} files that the store had lost were put back, at record {manifest.n}"
        return len(lacking)

    def _put(self, name: str) -> None:
        self._store.put(name, [(self._folder / name).read_bytes()], kept=True)

    def begin(self, manifest: Manifest) -> None:
        """Bring the store to what `manifest` names: put back what it lacks, remove what no record names.

        What a driver that is still at work has pruned since is not missed.
        """
        for name in self._store.lacking(sorted(live_files(manifest))):
            with suppress(FileNotFoundError):
                self._put(name)
        self.note = None
        self._store.remove_many(self._store.names() - live_files(manifest))

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that are gone from the folder."""
        self._store.remove_many(names)


def live_files(manifest: Manifest) -> set[str]:
    """Where live sections are: deltas, and records that have some inside."""
    return {place_of(section).file for section in manifest.sections.values()}
