"""The folders of folder sinks: on this machine, in an object store, or in HDFS. A file appears as a whole."""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from millpond.faults import reached
from millpond.followers.cursors import explained
from millpond.log.locations.address import Address
from millpond.log.locations.local_folder import sync_folder
from millpond.log.locations.objects import Objects
from millpond.tokens import writer_token

_LEFTOVER = re.compile(r"\.part-(\d{20})-[0-9a-f]+")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class PartFolder(ABC):
    """A flat folder whose files never change.

    Raises:
        PlaceError: the folder cannot be reached, read or written (any method).
    """

    @abstractmethod
    def names(self, after: str = "") -> list[str]:
        """The names that sort after `after`, in no order; none if the folder does not exist."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The content of a file, or None."""

    @abstractmethod
    def create(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        """Creates a file with what `write` writes, unless there is one of its name."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Removes files one after the other; a missing one is not an error."""

    @abstractmethod
    def clean(self, n: int) -> None:
        """Removes what writers of the parts up to record `n` have left unfinished."""


class LocalParts(PartFolder):
    """A folder of this machine. A file is written with a hidden name, flushed to disk, and linked to its final name."""

    def __init__(self, path: Path, *, make: bool) -> None:
        self._path = path
        if make:
            with explained(path):
                path.mkdir(parents=True, exist_ok=True)

    def names(self, after: str = "") -> list[str]:
        with explained(self._path), suppress(FileNotFoundError):
            return [name for name in os.listdir(self._path) if name > after]
        return []

    def read(self, name: str) -> bytes | None:
        with explained(self._path), suppress(FileNotFoundError):
            return (self._path / name).read_bytes()
        return None

    def create(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        # Without the suffix, because `*.parquet` of some readers also matches hidden names.
        temporary = self._path / f".{name.partition('.')[0]}-{writer_token()}"
        with explained(self._path):
            try:
                with temporary.open("xb") as file:
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                reached("sink.after_tmp")
                _link(temporary, self._path / name)
                sync_folder(self._path)
            finally:
                temporary.unlink(missing_ok=True)

    def remove(self, names: Iterable[str]) -> None:
        with explained(self._path):
            for name in names:
                (self._path / name).unlink(missing_ok=True)
            sync_folder(self._path)

    def clean(self, n: int) -> None:
        # Only of visible records: another publisher may be writing a later one.
        with explained(self._path):
            for name in os.listdir(self._path):
                found = _LEFTOVER.fullmatch(name)
                if found and int(found[1]) <= n:
                    (self._path / name).unlink(missing_ok=True)


class ObjectParts(PartFolder):
    """A prefix of an object store, or a folder of HDFS."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def names(self, after: str = "") -> list[str]:
        return [name for name, _ in self._objects.list(after) if "/" not in name]

    def read(self, name: str) -> bytes | None:
        return self._objects.get(name)

    def create(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        content = BytesIO()
        write(content)
        self._objects.create(name, content.getvalue())

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._objects.remove([name])

    def clean(self, n: int) -> None:
        """Nothing is left: the store, or `list` in HDFS, removes what is unfinished."""


def part_folder(address: Address, *, make: bool = True) -> PartFolder:
    """The folder at an address; `make`: a folder of this machine is made if it is missing.

    Raises:
        PlaceError: it cannot be made or reached.
    """
    return ObjectParts(address.objects()) if address.path is None else LocalParts(address.path, make=make)


def _link(temporary: Path, name: Path) -> None:
    try:
        with suppress(FileExistsError):
            os.link(temporary, name)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # No hard links on this disk. Replacing is harmless, because the new file has the same content.
        if not name.exists():
            os.replace(temporary, name)
