"""The port to rows that other programs keep under keys of their own: reads and merges many at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from millpond.errors import StoreError


class Absent(Enum):
    """Why there is no row: it is not there, it is something else, or its server does not answer."""

    MISSING = "missing"
    WRONG_TYPE = "wrong type"
    VANISHED = "vanished"


class VanishedError(StoreError):
    """The server of a row does not answer; it may come back."""


Row: TypeAlias = list[bytes | None]
"""Values of the fields that were asked for; of a JSON row its text alone."""


class Merge(NamedTuple):
    """What becomes of the row under a key: fields that are set, field and value in turn, and fields that are removed.

    Of a row that is a string, `puts` is its text alone; none: it goes.
    """

    key: bytes
    slot: int
    puts: list[bytes]
    removes: list[bytes]


class Stamp(NamedTuple):
    """Who writes: a pond's name, the number of the record, and the field of a hash in which both are kept."""

    pond: bytes
    n: int
    field: bytes

    @property
    def text(self) -> bytes:
        """What is kept with a row.

        >>> Stamp(b"p", 7, b"_epoch:q").text
        b'7 p'
        """
        return b"%d %b" % (self.n, self.pond)


class Merged(Enum):
    """What became of a `Merge`."""

    WRITTEN = 1
    ALREADY = 0
    WRONG_TYPE = -1


class KeyedRows(ABC):
    """Rows by key; several threads may use it."""

    @abstractmethod
    def read(self, keys: Sequence[bytes], slots: Sequence[int], fields: Sequence[bytes]) -> list[Row | Absent]:
        """The row of each key, in one pipeline to each server; without `fields` it is a string, else a hash.

        `slots` are the hash slots of the keys. A hash with none of the fields is missing.

        Raises:
            StoreError: a server refuses this user.
        """

    @abstractmethod
    def merge(self, rows: Sequence[Merge], stamp: Stamp, *, whole: bool) -> list[Merged]:
        """Write each row unless it has a stamp of the same pond that is not older; `whole`: strings, else hashes.

        Each row is atomic by itself, and may be merged again. A string begins with its stamp: `{"_epoch":"7 p"`.

        Raises:
            StoreError: a server refused, or did not answer; some rows may be written.
        """

    @abstractmethod
    def close(self) -> None:
        """Close every connection."""
