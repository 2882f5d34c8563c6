"""The port of the log: one verb, `append(n, record) -> Won | Lost`, on any folder that can create-if-absent.

Guaranteed:
  * of all appends of one `n`, by any threads, processes or hosts, exactly one record is ever visible;
  * a record is visible whole or not at all, and what it says never changes after it was first visible; only its body
    may be taken back when nothing needs it (`bodies`);
  * when `append` returns `Won`, or `Lost`, the record at `n` survives a crash of this process, and of the
    machine as far as the folder itself does (local disks: fsync of the file and of the folder);
  * `Lost.winner` holds the bytes that stand at `n`; they may be the caller's own, when the reply to a first
    try was lost and an inner retry met it. Comparing bytes tells which.

Not guaranteed:
  * an `append` that raises has an unknown outcome: it may have won, or may still win later;
  * another process may read a record a moment before it is safe from a power failure of the writer's host;
  * numbers are not checked: that a log has no holes is the business of `protocol.Writer`;
  * the hint may be missing, stale or damaged; a crash may leave temporary files, which are never read;
  * nothing here expires, locks or leases, and nothing depends on a clock.
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
    """A flat folder of small immutable files: what an adapter has to offer; see the module for guarantees.

    Every method raises PlaceError when the folder cannot be reached, read or written.
    """

    @property
    def where(self) -> str:
        """The folder as a user would write it, for messages."""

    def create(self, name: str, data: bytes) -> bool:
        """Create the file with all of `data`, durably, unless the name exists; True if this call did."""

    def replace(self, name: str, data: bytes) -> None:
        """Write the file whole, over any older one; for derived files, and records without their bodies."""

    def read(self, name: str) -> bytes | None:
        """Return the whole file, or None when there is none."""

    def exists(self, name: str) -> bool:
        """Tell whether the file is there, without reading it."""

    def names(self) -> list[str]:
        """Return all names, in any order; may be slow, so never on the path of an epoch."""

    def remove(self, name: str) -> None:
        """Remove the file if it is there; for derived and test files only."""


@dataclass(frozen=True, slots=True)
class Won:
    """The record now stands at its number, and was written by this call."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A record stood at the number already; `winner` is its bytes."""

    winner: bytes


def numbered_name(n: int) -> str:
    """Return the file name of number `n`: 20 decimal digits, so that names sort as numbers do.

    >>> numbered_name(7)
    '00000000000000000007'
    """
    if n < 0:
        raise ValueError(f"a record's number is never negative: {n}")
    return f"{n:0{_NAME_DIGITS}d}"


def numbers_in(folder: Folder) -> list[int]:
    """Return all numbers in the folder, ascending, by a full listing; other names are passed over."""
    return sorted(int(name) for name in folder.names() if _NUMBERED.fullmatch(name))


def read_hint(folder: Folder) -> int | None:
    """Return the number in the hint file, or None when it is missing or damaged; it proves nothing."""
    data = folder.read(HINT_NAME)
    if data is None or _HINT.fullmatch(data) is None:
        return None
    return int(data)


def write_hint(folder: Folder, n: int) -> None:
    """Leave `n` as the number where the next reader should start to probe."""
    folder.replace(HINT_NAME, b"%d" % n)


class Log:
    """The numbered records of one folder; the only place where something becomes true."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    @property
    def where(self) -> str:
        """The log's folder as a user would write it, for messages."""
        return self._folder.where

    def told(self, n: int) -> str:
        """Record `n` and its file, for messages."""
        return f"Record {n} of the log, {self.where}/{numbered_name(n)},"

    def append(self, n: int, record: bytes) -> Won | Lost:
        """Put `record` at number `n` unless one stands there; PlaceError means: outcome unknown."""
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
        """Return the bytes at number `n`, or None when nothing stands there yet."""
        return self._folder.read(numbered_name(n))

    def last(self, hint: int | None = None) -> int | None:
        """Return the highest number present, or None for an empty log.

        Starts at the higher of `hint` and the hint file and probes forward in O(log distance); only when
        neither names a record that exists is the folder listed. Assumes a log without holes.
        """
        for start in sorted({hint, read_hint(self._folder)} - {None}, key=lambda n: n or 0, reverse=True):
            if start is not None and self._exists(start):
                return self._probe(start)
        numbers = numbers_in(self._folder)
        return numbers[-1] if numbers else None

    def highest(self) -> int | None:
        """Return the highest number present, by a full listing: also one behind a hole; None for an empty log."""
        return max(numbers_in(self._folder), default=None)

    def write_hint(self, n: int) -> None:
        """Leave `n` as the place where the next reader starts to probe; costs time only if it is wrong."""
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
