"""The port to rows that other programs keep by key: reads and merges many rows at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from millpond.errors import StoreError


class Absent(Enum):
    """Why there is no row: the key does not exist, has another type, or its server does not answer."""

    MISSING = "missing"
    WRONG_TYPE = "wrong type"
    VANISHED = "vanished"


class VanishedError(StoreError):
    """The server of a row does not answer; it may come back."""


Row: TypeAlias = list[bytes | None]
"""The values of the requested fields; for a JSON row, only its text."""


class Merge(NamedTuple):
    """A change of the row of a key: the fields to set (alternating field and value), and the fields to remove.

    For a row that is a string, `puts` contains only its text; if `puts` is empty, the row is deleted.
    """

    key: bytes
    slot: int
    puts: list[bytes]
    removes: list[bytes]


class Stamp(NamedTuple):
    """Identifies a write: the name of the pond, the number of the record, and the hash field that stores both."""

    pond: bytes
    n: int
    field: bytes

    @property
    def text(self) -> bytes:
        """The text that is stored with a row.

        >>> Stamp(b"p", 7, b"_epoch:q").text
        b'7 p'
        """
        return b"%d %b" % (self.n, self.pond)


class Merged(Enum):
    """The outcome of a `Merge`."""

    WRITTEN = 1
    ALREADY = 0
    WRONG_TYPE = -1


class KeyedRows(ABC):
    """Rows by key; several threads may use one object."""

    @abstractmethod
    def read(self, keys: Sequence[bytes], slots: Sequence[int], fields: Sequence[bytes]) -> list[Row | Absent]:
        """Reads the row of each key, with one pipeline to each server; rows are strings without `fields`, else hashes.

        `slots` are the hash slots of the keys. A hash with none of the fields counts as missing.

        Raises:
            StoreError: a server refuses this user.
        """

    @abstractmethod
    def merge(self, rows: Sequence[Merge], stamp: Stamp, *, whole: bool) -> list[Merged]:
        """Writes each row unless it has a stamp of the same pond that is not older; `whole`: strings, else hashes.

        Each row is written atomically, and a merge may be repeated. A string begins with its stamp: `{"_epoch":"7 p"`.

        Raises:
            StoreError: a server refused, or did not answer; some rows may have been written.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes all connections."""
