"""The port to rows that other programs keep under keys of their own: read and merged, many at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import TypeAlias

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
    def close(self) -> None:
        """Close every connection."""
