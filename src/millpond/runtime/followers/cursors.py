"""Cursor files, and the rule by which every follower with a cursor applies records in order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from millpond.errors import PlaceError, TruthError, of_machine
from millpond.ids import writer_token
from millpond.log.follower import NOTHING_APPLIED


class _Stored(msgspec.Struct, frozen=True):
    n: int


class CursorFile:
    """A follower's cursor as the file `{"n": 17}`, replaced whole; a missing or damaged one reads as -1.

    It is not forced to the disk, unless it is `lasting`: whoever needs more than "about here" after a power failure
    must be able to recover without it.
    """

    def __init__(self, path: Path, *, lasting: bool = False) -> None:
        self.path, self._lasting = path, lasting

    def read(self) -> int:
        """The stored number, or -1; PlaceError when the folder cannot be read."""
        with explained(self.path.parent):
            try:
                return msgspec.json.decode(self.path.read_bytes(), type=_Stored).n
            except (FileNotFoundError, msgspec.MsgspecError):
                return NOTHING_APPLIED

    def write(self, n: int) -> None:
        """Store `n`; PlaceError when the folder cannot be written."""
        temporary = self.path.with_name(f".{self.path.name}-{writer_token()}")
        with explained(self.path.parent):
            try:
                write_file(temporary, msgspec.json.encode(_Stored(n)), lasting=self._lasting)
                os.replace(temporary, self.path)
            finally:
                temporary.unlink(missing_ok=True)


def write_file(path: Path, data: bytes, *, lasting: bool) -> None:
    """Write a file whole; a `lasting` one is on the disk before it gets its name."""
    with path.open("wb") as file:
        file.write(data)
        if lasting:
            file.flush()
            os.fsync(file.fileno())


def cursor_path(cursors: Path, query: str, kind: str = "cursor") -> Path:
    """The file in which a query's sink that has no folder of its own keeps its cursor."""
    return cursors / f"{quote(query, safe='')}.{kind}"


def is_next(follower: str, cursor: int, n: int) -> bool:
    """Whether record `n` is to be applied at `cursor`; False: it was already. TruthError: one is missing.

    >>> is_next("sink:a", 4, 5), is_next("sink:a", 5, 5)
    (True, False)
    """
    if n > cursor + 1:
        raise TruthError(
            f"The follower {follower} stands at record {cursor} and was handed {n}.",
            "Ask it for its cursor and go on from there.",
        )
    return n == cursor + 1


def follower_name(query: str, late: bool) -> str:
    """What the follower is called that carries a query's rows, or its late rows, to their sink."""
    return f"{'late' if late else 'sink'}:{query}"


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn an OSError within into an error of ours that names the folder."""
    try:
        yield
    except OSError as error:
        raise of_machine(error, folder) or PlaceError(
            f"The folder {folder} failed: {error}.", "It must be a local folder that the driver may write."
        ) from error
