"""The protocol of sinks outside the pond's folder: write the rows of a record and the cursor together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pyarrow as pa

from millpond.faults import reached
from millpond.followers.cursors import CursorFile, CursorPath, follower_name, is_next, make_folder
from millpond.followers.record_rows import RowsReader
from millpond.log.cursor import Cursor, cursor_at
from millpond.log.manifest import Manifest
from millpond.log.records import Entry


def deliver(delivering: AbstractContextManager[None]) -> None:
    """Enter a context that writes rows on entry and stores the cursor on exit; a test may fail between the steps."""
    reached("delivery.before")
    with delivering:
        reached("delivery.written")
    reached("delivery.after")


class Delivery(ABC):
    """Base of followers that write to `place`, which is text for errors; `skip`: how to set the cursor by hand."""

    def __init__(self, query: str, rows: RowsReader, place: str, skip: str) -> None:
        self.name = follower_name(query, False)
        self._query, self._rows = query, rows
        self._place, self._skip = place, skip

    @abstractmethod
    def cursor(self) -> Cursor:
        """See `Follower.cursor`; connects if necessary."""

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`; a record without rows only advances the cursor."""
        if not is_next(self.name, self.cursor(), record):
            return
        cure = f"Restore the pond's folder, or skip them: {self._skip}."
        table = self._rows.needed(record, self._query, self._place, cure)
        deliver(self._delivering(record, table))

    @abstractmethod
    def _delivering(self, record: Entry, table: pa.Table | None) -> AbstractContextManager[None]:
        """A context that writes the rows of a record, if any, on entry, and stores the cursor on exit."""


class FileDelivery(Delivery):
    """A delivery whose cursor is a file of the pond, written after the rows were delivered: at least once."""

    def __init__(self, query: str, rows: RowsReader, place: str, cursor: CursorPath, since: int) -> None:
        super().__init__(query, rows, place, f'write {{"n": <record>}} into {cursor}')
        make_folder(cursor.parent)
        self._file, self._last_cursor = CursorFile(cursor, lasting=True), Cursor(since)

    def cursor(self) -> Cursor:
        # also what this process delivered, as a process that was overtaken may have written an older number
        return max(self._last_cursor, self._file.read())

    @contextmanager
    def _delivering(self, record: Entry, table: pa.Table | None) -> Iterator[None]:
        if table is not None:
            self._hand_over(record, table)
        yield
        self._last_cursor = cursor_at(record)
        if record.n > self._file.read().n:
            self._file.write(self._last_cursor)

    @abstractmethod
    def _hand_over(self, record: Entry, table: pa.Table) -> None:
        """Deliver the rows of a record."""


class RepeatingDelivery(FileDelivery):
    """For receivers that tolerate duplicates, also under another record number."""

    def rewind(self, to: Cursor) -> str:
        before = self.cursor().n
        self._last_cursor = to
        self._file.write(to)
        return f"receives the rows after record {to.n} again (it had those up to record {before})"
