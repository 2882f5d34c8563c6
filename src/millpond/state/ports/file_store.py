"""The port of a store that transfers a pond's files between hosts: every instance can read what another one wrote.

It holds copies only. The truth is the pond's folder, which the driver sees; a store may lose any complete file at any
time. A file has the name that it has in the pond's folder, and never changes.

Guaranteed by every back-end:
  * `get_many` returns a file complete, as it was put, or None;
  * putting a file again changes nothing;
  * the *_many forms cost one round trip to each server, never one per file.

Not guaranteed:
  * that a file which was put still exists: a reader that misses one asks the driver to put it again;
  * that an unused file stays for longer than `UNNAMED_SECONDS`: the file of a lost attempt expires.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import pyarrow as pa

UNNAMED_SECONDS = 3600
"""How long a file stays that nobody takes."""

Parts: TypeAlias = Sequence[bytes | pa.Buffer]
"""The content of a file, one piece after another."""


class FileStore(ABC):
    """The port; see the module for what holds. StoreError: the store refused or vanished (any method)."""

    @abstractmethod
    def put(self, name: str, parts: Parts, *, kept: bool = False) -> None:
        """Store a file; unless it is `kept`, only until it is taken or `UNNAMED_SECONDS` have passed."""

    @abstractmethod
    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        """The files, None where one is not there."""

    @abstractmethod
    def take_many(self, names: Sequence[str]) -> list[bytes | None]:
        """As `get_many`; from now on they are kept until they are removed."""

    @abstractmethod
    def lacking(self, names: Iterable[str]) -> list[str]:
        """Those of the files that are not there."""

    @abstractmethod
    def names(self) -> set[str]:
        """Names of all files that may be there; some may be gone."""

    @abstractmethod
    def remove_many(self, names: Iterable[str]) -> None:
        """Remove the files; one that is not there is no error."""
