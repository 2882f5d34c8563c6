"""A `port.Folder` on a local disk: writes a temporary file, then fsync, hard link, and fsync of the folder.

A hard link is created atomically and fails if the name exists; nothing else is needed. Use it from one host only: over
NFS a link may be created although an error is reported (callers handle this), and another host may see changes late.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millpond.errors import PlaceError, of_machine
from millpond.local_path import no_link
from millpond.tokens import writer_token

_TEMPORARY = ".tmp-"


class LocalFolder:
    """A `port.Folder` on a local disk; a missing folder is created."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = writer_token()  # temporary files have unique names among all processes that share the folder
        self._attempts = itertools.count()
        with self._explained():
            path.mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent)

    @property
    def where(self) -> str:
        """The path of the folder."""
        return str(self._path)

    def create(self, name: str, data: bytes) -> bool:
        """Creates the file unless its name exists; see `port.Folder`."""
        with self._explained(), self._temporary(data) as temporary:
            try:
                os.link(temporary, self._path / name)
                created = True
            except FileExistsError:
                created = False
            # Also after a lost race: a driver that acts on the winner's record must find it again after a crash.
            sync_folder(self._path)
        return created

    def replace(self, name: str, data: bytes) -> None:
        """Writes the file, and replaces an older one; see `port.Folder`."""
        with self._explained(), self._temporary(data) as temporary:
            temporary.replace(self._path / name)
            sync_folder(self._path)

    def read(self, name: str) -> bytes | None:
        """Returns the content of the file, or None; see `port.Folder`."""
        with self._explained():
            try:
                with open(self._path / name, "rb", opener=no_link) as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def exists(self, name: str) -> bool:
        """Whether the file exists; see `port.Folder`."""
        with self._explained():
            return (self._path / name).exists()

    def names(self, after: str = "") -> list[str]:
        """Returns the names after `after`, except those of temporary files; see `port.Folder`."""
        with self._explained():
            return [name for name in os.listdir(self._path) if name > after and not name.startswith(_TEMPORARY)]

    def remove(self, name: str) -> None:
        """Removes the file if it exists; see `port.Folder`."""
        with self._explained():
            (self._path / name).unlink(missing_ok=True)

    @contextmanager
    def _temporary(self, data: bytes) -> Iterator[Path]:
        path = self._path / f"{_TEMPORARY}{self._token}-{next(self._attempts)}"
        try:
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise of_machine(error, self._path) or PlaceError(
                f"The folder {self._path} failed: {error}.",
                "It must be a writable local folder on a file system with hard links.",
            ) from error


def sync_folder(path: Path) -> None:
    """Write the names in a folder to the disk, so that they outlive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
