"""Removes the bodies of records that `followers.prune` no longer needs; headers stay.

    _bare      = JSON object                    of all records before `below`, only those in `kept` may have a body

The hint `_bare` is derived: if it is missing or damaged, every record is checked again. A body may be removed twice,
also by two drivers.
"""

from __future__ import annotations

import msgspec

from millpond.log.port import Folder, numbered_name
from millpond.log.records import without_body

HINT_NAME = "_bare"
_RECORDS_PER_HINT = 256
"""The number of added records and removed bodies after which the hint is written again."""


class _Hint(msgspec.Struct):
    below: int = 0
    kept: list[int] = []


class Bodies:
    """The records of the log in `folder` that may have a body."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._hint: _Hint | None = None
        self._unsaved = 0
        self._kept: set[int] = set()

    def upto(self, n: int) -> list[int]:
        """Returns the records up to `n` that may have a body, in any order.

        Raises:
            PlaceError: see `Folder`.
        """
        if self._hint is None:
            self._hint = _hint_in(self._folder)
            self._kept = set(self._hint.kept)
        self._unsaved += max(0, n + 1 - self._hint.below)
        self._kept.update(range(self._hint.below, n + 1))
        self._hint.below = max(self._hint.below, n + 1)
        return [number for number in self._kept if number <= n]

    def take_back(self, n: int) -> int:
        """Removes the body of record `n`; returns the number of bytes that were freed.

        Raises:
            CorruptError: the record is damaged.
            PlaceError: see `Folder`.
        """
        data = self._folder.read(numbered_name(n))
        bare = None if data is None else without_body(data, f"Record {n} of the log in {self._folder.where}")
        if data is not None and bare is not None:
            self._folder.replace(numbered_name(n), bare)
        self._kept.discard(n)
        self._unsaved += 1
        return 0 if data is None or bare is None else len(data) - len(bare)

    def save(self) -> None:
        """Writes the hint if enough has changed.

        Raises:
            PlaceError: see `Folder`.
        """
        if self._hint is not None and self._unsaved >= _RECORDS_PER_HINT:
            self._hint.kept = sorted(self._kept)
            self._folder.replace(HINT_NAME, msgspec.json.encode(self._hint))
            self._unsaved = 0


def _hint_in(folder: Folder) -> _Hint:
    try:
        return msgspec.json.decode(folder.read(HINT_NAME) or b"{}", type=_Hint)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Hint()
