"""Stores cursors in files, and checks that a follower applies records in order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from millpond.errors import CorruptError, PlaceError, TruthError, of_machine
from millpond.ids import writer_token
from millpond.log.cursor import Cursor, check_applied, named
from millpond.log.records import Entry


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    n: int
    mark: str = ""


class CursorFile:
    """A follower's cursor as the file `{"n": 17, "mark": "…"}`, replaced atomically; a missing file reads as -1.

    The file is not synced to the disk, unless it is `lasting`: a follower that needs more than an approximate cursor
    after a power failure must be able to recover it otherwise. So a damaged file also reads as -1, except that a
    damaged lasting file is an error.
    """

    def __init__(self, path: Path, *, lasting: bool = False) -> None:
        self.path, self._lasting = path, lasting

    def read(self) -> Cursor:
        """The stored cursor; PlaceError if the folder cannot be read, CorruptError if a lasting file is damaged."""
        with explained(self.path.parent):
            try:
                stored = msgspec.json.decode(self.path.read_bytes(), type=_Stored)
            except FileNotFoundError:
                return Cursor()
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                if not self._lasting:
                    return Cursor()
                raise CorruptError(
                    f"The cursor of a sink, {self.path}, is damaged: {error}.",
                    'Restore it from a copy, or write {"n": <record>} into it: the last record whose rows were taken.',
                ) from error
        return Cursor(stored.n, stored.mark)

    def write(self, cursor: Cursor) -> None:
        """Store a cursor; PlaceError if the folder cannot be written."""
        temporary = self.path.with_name(f".{self.path.name}-{writer_token()}")
        with explained(self.path.parent):
            try:
                write_file(temporary, msgspec.json.encode(_Stored(cursor.n, cursor.mark)), lasting=self._lasting)
                os.replace(temporary, self.path)
            finally:
                temporary.unlink(missing_ok=True)


def write_file(path: Path, data: bytes, *, lasting: bool) -> None:
    """Write a file atomically; a `lasting` file is synced to the disk before it gets its name."""
    with path.open("wb") as file:
        file.write(data)
        if lasting:
            file.flush()
            os.fsync(file.fileno())


def cursor_path(cursors: Path, query: str, kind: str = "cursor") -> Path:
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
            f"{named(follower)} stands at record {cursor.n} and was handed {record.n}.",
            "Ask it for its cursor and go on from there.",
        )
    check_applied(follower, cursor, record)
    return record.n == cursor.n + 1


def follower_name(query: str, late: bool) -> str:
    """The name of the follower that writes a query's rows, or its late rows, to their sink."""
    return f"{'late' if late else 'sink'}:{query}"


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Convert an OSError in this context into a MillpondError that names the folder."""
    try:
        yield
    except OSError as error:
        raise of_machine(error, folder) or PlaceError(
            f"The folder {folder} failed: {error}.", "It must be a local folder that the driver may write."
        ) from error
