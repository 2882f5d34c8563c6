"""The port to places that hold whole objects: object stores and HDFS."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PARALLEL = 16
"""The most requests at once of one call."""


class Objects(ABC):
    """The objects whose names begin with one prefix; `where` is their address as a user would write it.

    A name may contain slashes. An object appears as a whole, or not at all. Whoever reads one gets the bytes that were
    written, because the store or its client compares a digest or checksums.

    Raises:
        PlaceError: the store cannot be reached, or refuses (any method).
    """

    where: str

    @abstractmethod
    def below(self, name: str) -> Objects:
        """The objects whose names begin with `name` and a slash."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Creates an object unless its name exists; True if this call created it.

        False: the object exists. It may be of this call, if a reply was lost.
        """

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Writes an object, and replaces an older one."""

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """The content of an object, or None if it does not exist."""

    @abstractmethod
    def get_file(self, name: str, path: Path) -> bool:
        """Writes the content of an object to `path`; False if it does not exist.

        Raises:
            CorruptError: the content does not have the digest that the object carries.
        """

    @abstractmethod
    def size(self, name: str) -> int | None:
        """The size of an object in bytes, by one request; None if it does not exist."""

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """The sizes of several objects; the requests run in parallel."""
        return in_parallel(self.size, names, PARALLEL)

    @abstractmethod
    def list(self, after: str = "") -> Iterator[tuple[str, int]]:
        """The names and sizes of the objects whose names sort after `after`."""

    @abstractmethod
    def rename(self, name: str, to: str) -> None:
        """Gives an object another name."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Removes objects; a missing one is not an error."""


def in_parallel(request: Callable[[str], T], names: Sequence[str], most: int) -> list[T]:
    """The results of `request` for each name, in order; at most `most` requests run at once, a single one here."""
    if len(names) < 2:
        return [request(name) for name in names]
    with ThreadPoolExecutor(min(most, len(names)), thread_name_prefix="objects") as pool:
        return [*pool.map(request, names)]


class ObjectFolder:
    """A `port.Folder` of objects."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    @property
    def where(self) -> str:
        """The address of the folder, for messages."""
        return self._objects.where

    def create(self, name: str, data: bytes) -> bool:
        """Creates the object unless its name exists; see `port.Folder`."""
        return self._objects.create(name, data)

    def replace(self, name: str, data: bytes) -> None:
        """Writes the object, and replaces an older one; see `port.Folder`."""
        self._objects.put(name, data)

    def read(self, name: str) -> bytes | None:
        """Returns the content of the object, or None; see `port.Folder`."""
        return self._objects.get(name)

    def exists(self, name: str) -> bool:
        """Whether the object exists, by one request; see `port.Folder`."""
        return self._objects.size(name) is not None

    def names(self, after: str = "") -> list[str]:
        """Returns the names after `after` by listing the prefix; see `port.Folder`."""
        return [name for name, _ in self._objects.list(after)]

    def remove(self, name: str) -> None:
        """Removes the object if it exists; see `port.Folder`."""
        self._objects.remove([name])
