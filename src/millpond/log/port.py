"""The log as numbered files in one folder: `Log.append(n, record)`, on any `Folder` that supports create-if-absent.

A hint file (`_last`) says where readers begin their search for the last record.

Guaranteed:
  * of all appends with one number `n`, by any threads, processes or hosts, at most one record is ever visible, never
    two;
  * a record becomes visible atomically, and its content never changes afterwards; only its body may be removed when
    it is no longer needed (`drop_bodies`);
  * when `append` returns `Won` or `Lost`, the record at `n` survives a crash of this process, and a crash of the
    machine as far as the folder does (local disks: fsync of the file and of the folder);
  * `Lost.winner` contains the bytes of the record at `n`. They may be the caller's own, if the reply to a first try
    was lost and an internal retry found that record; the caller can compare the bytes.

Not guaranteed:
  * an `append` that raises an error has an unknown outcome: it may have won, or may still win later;
  * another process may read a record before it is synced to the disk of the writer's host;
  * numbers are not checked: `protocol.Writer` ensures that a log has no holes;
  * the hint may be missing, outdated or damaged; a crash may leave temporary files, which are never read.

There are no expiry times, locks or leases, and nothing depends on a clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from millpond.errors import CorruptError

HINT_NAME = "_last"
_NAME_DIGITS = 20
_NUMBERED = re.compile(rf"\d{{{_NAME_DIGITS}}}")
_HINT = re.compile(rb"\d{1,20}")


class Folder(Protocol):
    """A flat folder of small immutable files, which an adapter implements; the module docstring lists the guarantees.

    Raises:
        PlaceError: the folder cannot be reached, read or written (any method).
    """

    @property
    def where(self) -> str:
        """The address of the folder as a user would write it, for messages."""

    def create(self, name: str, data: bytes) -> bool:
        """Creates the file with all of `data`, durably, unless the name exists; True if this call created it."""

    def replace(self, name: str, data: bytes) -> None:
        """Writes the file atomically, and replaces an older one; for derived files, and records without bodies."""

    def read(self, name: str) -> bytes | None:
        """Returns the content of the file, or None if there is no such file."""

    def exists(self, name: str) -> bool:
        """Whether the file exists, without reading it."""

    def names(self, after: str = "") -> list[str]:
        """Returns the names that sort after `after`, in any order; may be slow, so it is never called within an epoch.
        """

    def remove(self, name: str) -> None:
        """Removes the file if it exists; for derived files and files of tests only."""


@dataclass(frozen=True, slots=True)
class Won:
    """The record now exists at its number, and was written by this call."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A record already exists at the number; `winner` are its bytes, which may equal those of this call."""

    winner: bytes


def numbered_name(n: int) -> str:
    """Returns the file name of number `n`: 20 decimal digits, so that names sort like numbers.

    >>> numbered_name(7)
    '00000000000000000007'
    """
    if n < 0:
        raise ValueError(f"a record's number is never negative: {n}")
    return f"{n:0{_NAME_DIGITS}d}"


def numbers_in(folder: Folder, after: int = -1) -> list[int]:
    """Returns the numbers in the folder above `after`, ascending, by a listing; other names are ignored."""
    names = folder.names(numbered_name(after) if after >= 0 else "")
    return sorted(int(name) for name in names if _NUMBERED.fullmatch(name))


def read_hint(folder: Folder) -> int | None:
    """Returns the number in the hint file, or None if it is missing or damaged; the number may be outdated."""
    data = folder.read(HINT_NAME)
    if data is None or _HINT.fullmatch(data) is None:
        return None
    return int(data)


def write_hint(folder: Folder, n: int) -> None:
    """Writes `n` to the hint file, as the number at which the next reader starts to probe."""
    folder.replace(HINT_NAME, b"%d" % n)


class Log:
    """The numbered records of one folder, the only source of truth."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    @property
    def where(self) -> str:
        """The address of the log's folder as a user would write it, for messages."""
        return self._folder.where

    def describe(self, n: int) -> str:
        """A description of record `n` and its file, for messages."""
        return f"Record {n} of the log, {self.where}/{numbered_name(n)},"

    def append(self, n: int, record: bytes) -> Won | Lost:
        """Creates `record` at number `n` unless one exists.

        Raises:
            PlaceError: the outcome is unknown.
        """
        if self._folder.create(numbered_name(n), record):
            return Won()
        winner = self._folder.read(numbered_name(n))
        if winner is None:
            raise CorruptError(
                f"Record {n} in {self.where} exists, and cannot be read.",
                "Restore the folder; records are never removed.",
            )
        return Lost(winner)

    def read(self, n: int) -> bytes | None:
        """Returns the bytes of record `n`, or None if it does not exist yet."""
        return self._folder.read(numbered_name(n))

    def last(self, hint: int | None = None) -> int | None:
        """Returns the highest number present, or None for an empty log.

        Starts at the higher of `hint` and the hint file, and probes forward in O(log distance). The folder is listed
        only if neither names an existing record. Assumes a log without holes.
        """
        for start in sorted({hint, read_hint(self._folder)} - {None}, key=lambda n: n or 0, reverse=True):
            if start is not None and self._exists(start):
                return self._probe(start)
        numbers = numbers_in(self._folder)
        return numbers[-1] if numbers else None

    def highest(self, after: int) -> int | None:
        """Returns the highest number present above `after`, even after a hole; None: there is none.

        A store that lists names in order does not list the records up to `after`, which may be millions.
        """
        return max(numbers_in(self._folder, after), default=None)

    def write_hint(self, n: int) -> None:
        """Writes the hint for the next reader; a wrong hint only costs time."""
        write_hint(self._folder, n)

    def _exists(self, n: int) -> bool:
        return self._folder.exists(numbered_name(n))

    def _probe(self, present: int) -> int:
        stride = 1
        while self._exists(present + stride):
            present += stride
            stride *= 2
        while stride > 1:
            stride //= 2
            if self._exists(present + stride):
                present += stride
        return present
