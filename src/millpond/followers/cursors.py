"""Keeps the cursors of followers, in files or in the process, and checks that records are applied in order."""

from __future__ import annotations

import os
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import msgspec

from millpond.errors import CorruptError, PlaceError, TruthError, of_machine
from millpond.local_path import replaced
from millpond.log.cursor import Cursor, check_applied, cursor_at, named
from millpond.log.locations.address import Address
from millpond.log.manifest import Manifest
from millpond.log.records import Entry

CursorPath: TypeAlias = Path | Address
"""Where cursors of a pond are: a path of this machine, or an address in an object store."""


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    n: int
    mark: str = ""
    check: str = ""

    @classmethod
    def of(cls, cursor: Cursor) -> _Stored:
        """The content of the file of a cursor, with its checksum."""
        return cls(cursor.n, cursor.mark, f"{zlib.crc32(f'{cursor.n} {cursor.mark}'.encode()):08x}")

    def cursor(self) -> Cursor:
        """The cursor; files of older versions, and those that an operator wrote, have no checksum.

        Raises:
            ValidationError: the checksum does not match.
        """
        found = Cursor(self.n, self.mark)
        if self.check not in ("", self.of(found).check):
            raise msgspec.ValidationError("its checksum does not match")
        return found


class CursorFile:
    """A follower's cursor as the file, or object, `{"n": 17, "mark": "…", "check": "…"}`, replaced atomically.

    A missing file reads as -1. The file is not synced to the disk, unless it is `lasting`: a follower that needs more
    than an approximate cursor after a power failure must be able to recover it otherwise. So a damaged file also reads
    as -1, except that a damaged lasting file is an error.
    """

    def __init__(self, path: CursorPath, *, lasting: bool = False) -> None:
        self.path, self._lasting = local_of(path), lasting

    def read(self) -> Cursor:
        """The stored cursor; PlaceError if the folder cannot be read, CorruptError if a lasting file is damaged."""
        with explained(self.path.parent):
            try:
                data = _content(self.path)
                return Cursor() if data is None else msgspec.json.decode(data, type=_Stored).cursor()
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                if not self._lasting:
                    return Cursor()
                raise CorruptError(
                    f"The cursor of a sink, {self.path}, is damaged: {error}.",
                    'Restore it from a copy, or write {"n": <record>} into it: the last record whose rows were taken.',
                ) from error

    def write(self, cursor: Cursor) -> None:
        """Store a cursor; PlaceError if the folder cannot be written."""
        path, data = self.path, msgspec.json.encode(_Stored.of(cursor))
        if isinstance(path, Address):
            path.parent.objects().put(path.name, data)
            return
        with explained(path.parent), replaced(path) as draft:
            write_file(draft, data, lasting=self._lasting)


def _content(path: CursorPath) -> bytes | None:
    if isinstance(path, Address):
        return path.parent.objects().get(path.name)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def local_of(path: CursorPath) -> CursorPath:
    """The path of an address on this machine; other addresses as they are."""
    return path.path if isinstance(path, Address) and path.path is not None else path


def make_folder(folder: CursorPath) -> None:
    """Create the folder of cursors, unless it is a prefix; PlaceError: it cannot be created."""
    if isinstance(path := local_of(folder), Path):
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)


def write_file(path: Path, data: bytes, *, lasting: bool) -> None:
    """Write a file, which the caller then gives its name; a `lasting` file is synced to the disk."""
    with path.open("wb") as file:
        file.write(data)
        if lasting:
            file.flush()
            os.fsync(file.fileno())


def cursor_path(cursors: CursorPath, query: str, kind: str = "cursor") -> CursorPath:
    """The cursor file of a query's sink that has no folder of its own."""
    return cursors / f"{quote(query, safe='')}.{kind}"


def is_next(follower: str, cursor: Cursor, record: Entry) -> bool:
    """Whether a record is the next one after `cursor`; False: it was applied already.

    Raises:
        AheadError: a different record with the same number was applied.
        TruthError: an earlier record is missing.
    """
    if record.n > cursor.n + 1:
        raise TruthError(
            f"{named(follower)} is at record {cursor.n} and was given {record.n}.",
            "Read its cursor and continue from there.",
        )
    check_applied(follower, cursor, record)
    return record.n == cursor.n + 1


def follower_name(query: str, late: bool) -> str:
    """The name of the follower that writes a query's rows, or its late rows, to their sink."""
    return f"{'late' if late else 'sink'}:{query}"


@contextmanager
def explained(folder: CursorPath | str) -> Iterator[None]:
    """Convert an OSError in this context into a MillpondError that names the folder."""
    try:
        yield
    except OSError as error:
        raise of_machine(error, folder) or PlaceError(
            f"The folder {folder} failed: {error}.", "It must be a local folder that the driver may write."
        ) from error


class ProcessFollower(ABC):
    """A thread-safe follower whose cursor and what it makes of the records after `since` are only in this process."""

    def __init__(self, name: str, since: int) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._reached = Cursor(since)

    def cursor(self) -> Cursor:
        """See `Follower.cursor`; `since` in a new process."""
        with self._lock:
            return self._reached

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        with self._lock:
            if is_next(self.name, self._reached, record):
                self._take(record, manifest)
                self._reached = cursor_at(record)

    @abstractmethod
    def _take(self, record: Entry, manifest: Manifest) -> None:
        """Apply the next record; the lock is held."""
