"""Sinks that are folders of files: one file per record of the log, named by its number, exactly once.

The rows of record n become `part-<n>`; the file is written under a hidden name, forced to the disk, and then
linked to its name, which fails if the name exists. So a reader that lists the folder at any moment sees whole
records only, and a record that is published again, by whomever, changes nothing: the rows of n are a pure
function of the log, and the name says n.

The cursor file is written afterwards and may be lost: the highest number among the names then serves.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa

from millpond.errors import ForeignPondError
from millpond.faults import reached
from millpond.ids import writer_token
from millpond.log.follower import NOTHING_APPLIED
from millpond.log.manifest import Manifest
from millpond.log.port import numbered_name
from millpond.log.records import Entry
from millpond.runtime.followers.cursors import CursorFile, explained, follower_name, is_next, write_file
from millpond.runtime.followers.formats import Format
from millpond.runtime.followers.rows import RowsReader

MARKER_NAME = "_millpond"
CURSOR_NAME = "_millpond_cursor"
_MARKER_VERSION = 1
_PART = re.compile(r"part-(\d{20})\.[a-z]+")
_TEMPORARY = re.compile(r"\.part-(\d{20})-[0-9a-f]+")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class Marker(msgspec.Struct, frozen=True):
    """What the file `_millpond` says: whose folder this is, and whether it is that of late rows."""

    pond: str
    query: str
    format: str
    version: int = _MARKER_VERSION
    late: bool = False


class FolderSink:
    """Follows the log into a folder; made if it is missing. A new folder starts after record `since`.

    ForeignPondError: the folder is another pond's or query's, or holds files and is nobody's. PlaceError: it
    cannot be written.
    """

    def __init__(
        self,
        query: str,
        pond_id: str,
        path: Path,
        form: Format,
        rows: RowsReader,
        since: int = NOTHING_APPLIED,
        late: bool = False,
    ) -> None:
        self.name = follower_name(query, late)
        self._query = query
        self._path = path
        self._form = form
        self._rows = rows
        self._cursor_file = CursorFile(path / CURSOR_NAME)
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
            self._check_ours(Marker(pond_id, query, form.name, late=late))
            self._reached = max(since, _highest_part(path))
            self._remove_leftovers()

    def cursor(self) -> int:
        """See `Follower.cursor`: the highest of the cursor file, the parts' names and `since`."""
        with explained(self._path):
            self._reached = max(self._reached, _highest_part(self._path))
        return self._cursor()

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`; a record without rows for this query makes no file."""
        if not is_next(self.name, self._cursor(), n):
            return
        table = self._table(record)
        if table is not None:
            with explained(self._path):
                reached("sink.before_tmp")
                temporary = self._write_temporary(n, table)
                try:
                    reached("sink.after_tmp")
                    self._make_visible(temporary, n)
                    reached("sink.after_link")
                finally:
                    temporary.unlink(missing_ok=True)
        self._save_cursor(n)
        reached("sink.after_cursor")
        self._reached = n

    def _cursor(self) -> int:
        # The file is read each time, for another publisher may be ahead of us.
        return max(self._reached, self._cursor_file.read())

    def _table(self, record: Entry) -> pa.Table | None:
        cure = f'Restore the folder, or skip them: write {{"n": <record>}} into its {CURSOR_NAME}.'
        return self._rows.needed(record, self._query, f"The folder {self._path}", cure)

    def _write_temporary(self, n: int, table: pa.Table) -> Path:
        # Without the suffix, for some readers' `*.parquet` takes hidden names as well.
        temporary = self._path / f".part-{numbered_name(n)}-{writer_token()}"
        try:
            with temporary.open("xb") as file:
                self._form.write(table, file)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _make_visible(self, temporary: Path, n: int) -> None:
        part = self._path / f"part-{numbered_name(n)}{self._form.suffix}"
        _create(temporary, part)
        _sync_folder(self._path)

    def _save_cursor(self, n: int) -> None:
        self._cursor_file.write(n)

    def _remove_leftovers(self) -> None:
        # Only of records that are visible: another publisher may be at work on a later one.
        reached = self._cursor()
        for name in os.listdir(self._path):
            found = _TEMPORARY.fullmatch(name)
            if found and int(found[1]) <= reached:
                (self._path / name).unlink(missing_ok=True)

    def _check_ours(self, ours: Marker) -> None:
        marker = self._path / MARKER_NAME
        if not marker.exists():
            self._check_nobodys()
            temporary = self._path / f".marker-{writer_token()}"
            try:
                write_file(temporary, msgspec.json.encode(ours), lasting=True)
                _create(temporary, marker)
            finally:
                temporary.unlink(missing_ok=True)
        try:
            theirs = msgspec.json.decode(marker.read_bytes(), type=Marker)
        except msgspec.MsgspecError as error:
            raise ForeignPondError(
                f"The file {marker} does not say whose folder this is: {error}.", "Choose an empty folder."
            ) from error
        if theirs != ours:
            raise ForeignPondError(
                f"The folder {self._path} holds {_told(theirs)} of query {theirs.query} of pond {theirs.pond}.",
                f"Choose another folder for the {_told(ours)} of query {ours.query}.",
            )

    def _check_nobodys(self) -> None:
        foreign = sorted(name for name in os.listdir(self._path) if not name.startswith((".", "_")))
        if foreign:
            raise ForeignPondError(
                f"The folder {self._path} holds files that are not Millpond's, such as {foreign[0]}.",
                "Choose an empty folder.",
            )


def _told(marker: Marker) -> str:
    return f"late rows ({marker.format})" if marker.late else marker.format
def folder_cursor(path: Path) -> int:
    """The record that a folder sink has reached, read from outside; -1 where there is no folder yet."""
    with explained(path):
        if not path.is_dir():
            return NOTHING_APPLIED
        return max(CursorFile(path / CURSOR_NAME).read(), _highest_part(path))


def _highest_part(path: Path) -> int:
    numbers = [int(found[1]) for name in os.listdir(path) if (found := _PART.fullmatch(name))]
    return max(numbers, default=NOTHING_APPLIED)


def _create(temporary: Path, name: Path) -> None:
    try:
        with suppress(FileExistsError):
            os.link(temporary, name)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # No hard links here. Replacing is harmless, for it could only be by the same rows.
        if not name.exists():
            os.replace(temporary, name)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
