"""The port of a store that transfers a pond's files between hosts: every instance can read what another one wrote.

It holds copies only. The truth is the pond's folder, which the driver sees; a store may lose any complete file at any
time. A file has the name that it has in the pond's folder, and never changes.

Guaranteed by every back-end:
  * `get_many` returns a complete file, as it was put, or None;
  * putting a file again changes nothing;
  * the *_many methods take one round trip to each server, not one per file.

Not guaranteed:
  * that a file which was put still exists: if a reader misses a file, the driver puts it again;
  * that an unused file stays for longer than `UNNAMED_SECONDS`: the file of a lost attempt expires.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import pyarrow as pa

UNNAMED_SECONDS = 3600
"""The lifetime of a file that is never taken, in seconds."""

Parts: TypeAlias = Sequence[bytes | pa.Buffer]
"""The content of a file as consecutive pieces."""


class FileStore(ABC):
    """The port; the module docstring lists its guarantees.

    Raises:
        StoreError: the store refused or cannot be reached (any method).
    """

    @abstractmethod
    def put(self, name: str, parts: Parts, *, kept: bool = False) -> None:
        """Stores a file; unless `kept`, it expires after `UNNAMED_SECONDS` if it is not taken."""

    @abstractmethod
    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        """The files; None for a missing file."""

    @abstractmethod
    def take_many(self, names: Sequence[str]) -> list[bytes | None]:
        """Like `get_many`; from now on the files are kept until they are removed."""

    @abstractmethod
    def lacking(self, names: Iterable[str]) -> list[str]:
        """The names of the missing files."""

    @abstractmethod
    def names(self) -> set[str]:
        """The names of all files that may exist; some may have expired."""

    @abstractmethod
    def remove_many(self, names: Iterable[str]) -> None:
        """Removes the files; a missing file is not an error."""
