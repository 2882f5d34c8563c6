"""Folder sinks: one file per record of the log, named by the record's number, exactly once.

The rows of record n become `part-<n>`, which appears as a whole, and only if there is no file of that name. So a reader
that lists the folder sees complete records only. Publishing a record again changes nothing, whichever process does it,
because the rows of record n are a pure function of the log.

The cursor file is written afterwards and may be lost; the highest number among the file names then replaces it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
import pyarrow as pa

from millpond.errors import ForeignPondError
from millpond.faults import reached
from millpond.followers.cursors import CursorFile, follower_name, is_next
from millpond.followers.part_folders import PartFolder, part_folder
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.context import SinkContext
from millpond.followers.sinks.file_formats import Format, format_of
from millpond.log.cursor import NOTHING_APPLIED, Cursor, cursor_at
from millpond.log.locations.address import Address
from millpond.log.manifest import Manifest
from millpond.log.port import numbered_name
from millpond.log.records import Entry

MARKER_NAME = "_millpond"
CURSOR_NAME = "_millpond_cursor"
_MARKER_VERSION = 1
_PART = re.compile(r"part-(\d{20})\.[a-z]+")


class Marker(msgspec.Struct, frozen=True):
    """The content of the file `_millpond`: the owner of the folder, and whether it is for late rows."""

    pond: str
    query: str
    format: str
    version: int = _MARKER_VERSION
    late: bool = False


class FolderSink:
    """Writes rows to a folder, which is created if missing. A new folder starts after record `since`.

    Raises:
        ForeignPondError: the folder belongs to another pond or query, or holds files and has no owner.
        PlaceError: the folder cannot be written.
    """

    def __init__(
        self,
        query: str,
        pond_id: str,
        address: Address,
        form: Format,
        rows: RowsReader,
        since: int = NOTHING_APPLIED,
        late: bool = False,
    ) -> None:
        self.name = follower_name(query, late)
        self._query = query
        self._address = address
        self._form = form
        self._rows = rows
        self._cursor_file = CursorFile(address / CURSOR_NAME)
        self._parts = part_folder(address)
        self._check_ours(Marker(pond_id, query, form.name, late=late))
        self._last_cursor = Cursor(since)
        self._parts.clean(self.cursor().n)

    @classmethod
    def open(cls, context: SinkContext) -> FolderSink:
        """Open the folder of a query's rows or late rows.

        Raises:
            UnsupportedQuery: the folder is not named, or an option or a column is not supported.
        """
        address = context.address
        form = format_of(context.sink, () if context.late else context.query.output)
        return cls(context.query.name, context.pond, address, form, context.rows, context.since, context.late)

    def cursor(self) -> Cursor:
        """See `Follower.cursor`: the highest of the cursor file, the parts' names and `since`."""
        self._last_cursor = _last_part(self._parts, self._cursor())
        return self._last_cursor

    def rewind(self, to: Cursor) -> str:
        """See `Reversible.rewind`: parts are named by records, so the parts of later records are deleted."""
        later = [name for name in self._parts.names() if (of := _PART.fullmatch(name)) and int(of[1]) > to.n]
        # the newest first, so that the remaining parts have no gap if this is interrupted
        self._parts.remove(sorted(later, reverse=True))
        self._cursor_file.write(to)
        self._last_cursor = to
        files = "1 file" if len(later) == 1 else f"{len(later)} files"
        return f"was set back to record {to.n} by deleting {files} of later records from {self._address}"

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`; a record without rows of this query creates no file."""
        if not is_next(self.name, self._cursor(), record):
            return
        table = self._table(record)
        if table is not None:
            reached("sink.before_tmp")
            self._create_part(n, table)
            reached("sink.after_link")
        cursor = cursor_at(record)
        self._save_cursor(cursor)
        reached("sink.after_cursor")
        self._last_cursor = cursor

    def _cursor(self) -> Cursor:
        # The file is read each time, because another publisher may be ahead of this one.
        return max(self._last_cursor, self._cursor_file.read())

    def _table(self, record: Entry) -> pa.Table | None:
        cure = f'Restore the folder, or skip them: write {{"n": <record>}} into its {CURSOR_NAME}.'
        return self._rows.needed(record, self._query, f"The folder {self._address}", cure)

    def _create_part(self, n: int, table: pa.Table) -> None:
        name = f"{_part_name(n)}{self._form.suffix}"
        self._parts.create(name, lambda file: self._form.write(table, file))

    def _save_cursor(self, cursor: Cursor) -> None:
        self._cursor_file.write(cursor)

    def _check_ours(self, ours: Marker) -> None:
        theirs = owner_of(self._parts, self._address)
        if theirs is None:
            self._check_nobodys(self._parts.names())
            self._parts.create(MARKER_NAME, lambda file: file.write(msgspec.json.encode(ours)))
            theirs = owner_of(self._parts, self._address) or ours
        if theirs != ours:
            raise foreign_folder(self._parts, self._address, theirs, f"{_content_of(ours)} of query {ours.query}")

    def _check_nobodys(self, names: Iterable[str]) -> None:
        foreign = sorted(name for name in names if not name.startswith((".", "_")))
        if foreign:
            raise ForeignPondError(
                f"The folder {self._address} holds files that are not Millpond's, such as {foreign[0]}.",
                "Choose an empty folder.",
            )


def owner_of(parts: PartFolder, address: Address) -> Marker | None:
    """The owner of a folder; None: it has none.

    Raises:
        ForeignPondError: its marker is damaged.
    """
    if (content := parts.read(MARKER_NAME)) is None:
        return None
    try:
        return msgspec.json.decode(content, type=Marker)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ForeignPondError(
            f"The file {address}/{MARKER_NAME} does not say whose folder this is: {error}.",
            "Restore it from a copy, or choose an empty folder.",
        ) from error


def foreign_folder(parts: PartFolder, address: Address, theirs: Marker, wanted: str) -> ForeignPondError:
    """The error that a folder for the `wanted` rows belongs to others.

    A folder without rows is not taken either, because the other pond may run, and would write files of the same names.
    """
    empty = _is_empty(parts)
    return ForeignPondError(
        f"The folder {address} {'is for' if empty else 'holds'} {_content_of(theirs)} of query {theirs.query} of pond "
        f"{theirs.pond}{', and has no rows yet' if empty else ''}.",
        f"{'Delete the folder if that pond is no longer used. ' if empty else ''}Choose another folder for the "
        f"{wanted}.",
    )


def _is_empty(parts: PartFolder) -> bool:
    return _last_part(parts, Cursor()).n == NOTHING_APPLIED


def _content_of(marker: Marker) -> str:
    return f"late rows ({marker.format})" if marker.late else marker.format


def folder_cursor(address: Address) -> int:
    """The record that a folder sink has reached, read from outside the pond; -1 if there is no folder yet.

    Raises:
        PlaceError: the folder cannot be read.
    """
    return _last_part(part_folder(address, make=False), CursorFile(address / CURSOR_NAME).read()).n


def _part_name(n: int) -> str:
    """The name of the part of record `n`, without its suffix."""
    return f"part-{numbered_name(n)}"


def _last_part(parts: PartFolder, known: Cursor) -> Cursor:
    """The cursor at the part with the highest number, or `known` if that is higher.

    An object store that lists names in order lists the later parts only.
    """
    names = parts.names(_part_name(known.n) if known.n >= 0 else "")
    numbers = [int(found[1]) for name in names if (found := _PART.fullmatch(name))]
    return max(known, Cursor(max(numbers, default=NOTHING_APPLIED)))
