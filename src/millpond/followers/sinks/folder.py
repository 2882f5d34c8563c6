"""Folder sinks: one file per record of the log, named by the record's number, exactly once.

The rows of record n become `part-<n>`. The file is written under a hidden name, flushed to disk, and linked to its
final name; linking fails if the name exists. So a reader that lists the folder sees complete records only. Publishing
a record again changes nothing, whichever process does it, because the rows of record n are a pure function of the
log.

The cursor file is written afterwards and may be lost; the highest number among the file names then replaces it.
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
from millpond.followers.cursors import CursorFile, explained, follower_name, is_next, write_file
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.context import SinkContext
from millpond.followers.sinks.file_formats import Format, format_of
from millpond.ids import writer_token
from millpond.log.cursor import NOTHING_APPLIED, Cursor, cursor_at
from millpond.log.manifest import Manifest
from millpond.log.places.local_folder import sync_folder
from millpond.log.port import numbered_name
from millpond.log.records import Entry

MARKER_NAME = "_millpond"
CURSOR_NAME = "_millpond_cursor"
_MARKER_VERSION = 1
_PART = re.compile(r"part-(\d{20})\.[a-z]+")
_TEMPORARY = re.compile(r"\.part-(\d{20})-[0-9a-f]+")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class Marker(msgspec.Struct, frozen=True):
    """The content of the file `_millpond`: the owner of the folder, and whether it is for late rows."""

    pond: str
    query: str
    format: str
    version: int = _MARKER_VERSION
    late: bool = False


class FolderSink:
    """Writes rows to a folder, which is created if missing. A new folder starts after record `since`.

    ForeignPondError: the folder belongs to another pond or query, or holds files and has no owner. PlaceError: the
    folder cannot be written.
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
            self._reached = max(Cursor(since), _highest_part(path))
            self._remove_leftovers()

    @classmethod
    def open(cls, context: SinkContext) -> FolderSink:
        """Open the folder of a query's rows or late rows.

        Raises:
            UnsupportedQuery: the folder is not named, or an option or a column is not supported.
        """
        path = context.path
        form = format_of(context.sink, () if context.late else context.query.output)
        return cls(context.query.name, context.pond, path, form, context.rows, context.since, context.late)

    def cursor(self) -> Cursor:
        """See `Follower.cursor`: the highest of the cursor file, the parts' names and `since`."""
        with explained(self._path):
            self._reached = max(self._reached, _highest_part(self._path))
        return self._cursor()

    def rewind(self, to: Cursor) -> str:
        """See `Reversible.rewind`: parts are named by records, so the parts of later records are deleted."""
        with explained(self._path):
            later = [name for name in os.listdir(self._path) if (of := _PART.fullmatch(name)) and int(of[1]) > to.n]
            # the newest first, so that the remaining parts have no gap if this is interrupted
            for name in sorted(later, reverse=True):
                (self._path / name).unlink(missing_ok=True)
            sync_folder(self._path)
        self._cursor_file.write(to)
        self._reached = to
        files = "1 file" if len(later) == 1 else f"{len(later)} files"
        return f"was set back to record {to.n} by deleting {files} of later records from {self._path}"

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`; a record without rows of this query creates no file."""
        if not is_next(self.name, self._cursor(), record):
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
        cursor = cursor_at(record)
        self._save_cursor(cursor)
        reached("sink.after_cursor")
        self._reached = cursor

    def _cursor(self) -> Cursor:
        # The file is read each time, because another publisher may be ahead of this one.
        return max(self._reached, self._cursor_file.read())

    def _table(self, record: Entry) -> pa.Table | None:
        cure = f'Restore the folder, or skip them: write {{"n": <record>}} into its {CURSOR_NAME}.'
        return self._rows.needed(record, self._query, f"The folder {self._path}", cure)

    def _write_temporary(self, n: int, table: pa.Table) -> Path:
        # Without the suffix, because `*.parquet` of some readers also matches hidden names.
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
        sync_folder(self._path)

    def _save_cursor(self, cursor: Cursor) -> None:
        self._cursor_file.write(cursor)

    def _remove_leftovers(self) -> None:
        # Only of visible records: another publisher may be writing a later one.
        reached = self._cursor().n
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
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ForeignPondError(
                f"The file {marker} does not say whose folder this is: {error}.",
                "Restore it from a copy, or choose an empty folder.",
            ) from error
        if theirs != ours:
            raise ForeignPondError(
                f"The folder {self._path} holds {_content_of(theirs)} of query {theirs.query} of pond {theirs.pond}.",
                f"Choose another folder for the {_content_of(ours)} of query {ours.query}.",
            )

    def _check_nobodys(self) -> None:
        foreign = sorted(name for name in os.listdir(self._path) if not name.startswith((".", "_")))
        if foreign:
            raise ForeignPondError(
                f"The folder {self._path} holds files that are not Millpond's, such as {foreign[0]}.",
                "Choose an empty folder.",
            )


def _content_of(marker: Marker) -> str:
    return f"late rows ({marker.format})" if marker.late else marker.format


def folder_cursor(path: Path) -> int:
    """The record that a folder sink has reached, read from outside the pond; -1 if there is no folder yet."""
    with explained(path):
        if not path.is_dir():
            return NOTHING_APPLIED
        return max(CursorFile(path / CURSOR_NAME).read(), _highest_part(path)).n


def _highest_part(path: Path) -> Cursor:
    numbers = [int(found[1]) for name in os.listdir(path) if (found := _PART.fullmatch(name))]
    return Cursor(max(numbers, default=NOTHING_APPLIED))


def _create(temporary: Path, name: Path) -> None:
    try:
        with suppress(FileExistsError):
            os.link(temporary, name)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # No hard links on this disk. Replacing is harmless, because the new file has the same rows.
        if not name.exists():
            os.replace(temporary, name)
