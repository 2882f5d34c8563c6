"""Reads the rows of a query in a record as Arrow, and finds the columns that identify them.

Results, late rows, dead letters and differences of a shadow are sections of their own kinds, with a reader each.
Followers that share a reader share its index.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pyarrow as pa

from millpond.arrays import IPC_READ
from millpond.errors import CorruptError, UnsupportedQuery, unreadable
from millpond.log.records import Entry, EpochRecord, Receipt, Section, SectionKind
from millpond.model.expressions import Call, Column, Expression, Foreign
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.windows import RUNNING, Calendar, Distinct, Processed, Window
from millpond.plan.groups.ranked_rows import keys_shown, numbered_rows
from millpond.runtime.packets.row_batches import without_private_columns
from millpond.state.ports.files import Files

ReadSection: TypeAlias = Callable[[int, Receipt, Section], pa.Buffer]
"""Reads the bytes of a section whose delta is a file, by `(n, receipt, section)`; FileNotFoundError: deleted."""

DATE_OF_START = "CAST(`window.start` AS DATE)"
"""What Spark evaluates for the key of a query by CAST(ts AS DATE)."""

_REMEMBERED_RECORDS = 8
_REMEMBERED_FILES = 1024

_Index: TypeAlias = dict[str, list[tuple[Receipt, Section]]]


class RowsGone(CorruptError):
    """The rows of a committed record are no longer there: pruned after every follower had them, or lost."""


class RowsReader:
    """Finds and reads the sections of one kind, such as `rows` or `late`; all followers of a pond share one reader.

    A record is indexed by query once, so that a thousand sinks do not each search a thousand sections. With `instance`,
    only sections that this instance wrote are found.
    """

    def __init__(
        self, read_section: ReadSection, kind: SectionKind = "rows", instance: int | None = None
    ) -> None:  # fmt: skip
        self._read_section = read_section
        self._kind = kind
        self._instance = instance
        self._lock = threading.Lock()
        self._indexes: OrderedDict[str, _Index] = OrderedDict()

    def queries(self, entry: Entry) -> list[str]:
        """The names of the queries with rows in the record, without quarantined queries."""
        return list(self._index(entry))

    def batches(self, entry: Entry, query: str) -> pa.Table | None:
        """All rows of a query in the record, private columns included, by instance; None: no rows.

        RowsGone: the log names a section whose bytes no longer exist. CorruptError: the bytes are not an Arrow stream.
        """
        tables = [self._read(entry, receipt, section) for receipt, section in self._index(entry).get(query, ())]
        tables = [table for table in tables if table.num_rows]
        if not tables:
            return None
        try:
            return pa.concat_tables(tables)
        except pa.ArrowInvalid as error:
            raise CorruptError(
                f"The rows of query {query} in record {entry.n} differ in their columns: {error}.",
                "Restore the pond's folder.",
            ) from error

    def table(self, entry: Entry, query: str) -> pa.Table | None:
        """All rows of a query in the record as its users see them: without private columns."""
        table = self.batches(entry, query)
        return None if table is None else without_private_columns(table)

    def needed(self, entry: Entry, query: str, place: str, cure: str) -> pa.Table | None:
        """Like `table`, for a sink at `place` that still needs the rows: if they were deleted, `cure` says what to do.

        CorruptError: the rows no longer exist, or cannot be read.
        """
        try:
            return self.table(entry, query)
        except RowsGone as error:
            raise CorruptError(f"{error.what} {place} does not have them.", cure) from error

    def _index(self, entry: Entry) -> _Index:
        with self._lock:
            index = self._indexes.get(entry.digest)
            if index is None:
                index = self._indexes[entry.digest] = _index_of(entry, self._kind, self._instance)
                if len(self._indexes) > _REMEMBERED_RECORDS:
                    self._indexes.popitem(last=False)
            return index

    def _read(self, entry: Entry, receipt: Receipt, section: Section) -> pa.Table:
        try:
            data = self._bytes(entry, receipt, section)
            with pa.ipc.open_stream(data, options=IPC_READ) as stream:
                return stream.read_all()
        except FileNotFoundError as error:
            raise RowsGone(
                f"The rows of query {section.group} in record {entry.n} no longer exist: {error}.",
                "They were pruned, or the pond's folder lost them.",
            ) from error
        except pa.ArrowInvalid as error:
            raise CorruptError(
                f"The rows of query {section.group} in record {entry.n} are no Arrow stream: {error}.",
                "Restore the pond's folder.",
            ) from error

    def _bytes(self, entry: Entry, receipt: Receipt, section: Section) -> pa.Buffer:
        if receipt.file is not None:
            return self._read_section(entry.n, receipt, section)
        # The record is loaded already, so its body need not be read again.
        return pa.py_buffer(entry.inline(receipt)[section.offset : section.offset + section.size])


def section_reader(files: Files) -> ReadSection:
    """A reader of sections of a pond's delta files; checks the digest of a file at its first read.

    FileNotFoundError: the file was deleted. CorruptError: it is damaged.
    """
    checked: OrderedDict[str, None] = OrderedDict()

    def read(_n: int, receipt: Receipt, section: Section) -> pa.Buffer:
        name = str(receipt.file)
        try:
            mapped = files.open(name)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise unreadable(files.where(name), error) from error
        if name not in checked:
            if hashlib.sha256(mapped).hexdigest() != receipt.digest:
                raise CorruptError(f"{files.where(name)} fails its digest.", "Restore the file from a copy.")
            checked[name] = None
            if len(checked) > _REMEMBERED_FILES:
                checked.popitem(last=False)
        return mapped.slice(section.offset, section.size)

    return read


def _index_of(entry: Entry, kind: SectionKind, instance: int | None) -> _Index:
    record = entry.record
    index: _Index = {}
    # An empty reason in `quarantined` ends a quarantine, so rows beside it count.
    if isinstance(record, EpochRecord):
        for receipt in sorted(record.receipts, key=lambda receipt: receipt.instance):
            if instance not in (None, receipt.instance):
                continue
            for section in receipt.sections:
                # late events are late, even if a result of the query failed
                raised = str(section.info.get("version", section.group))
                left_out = kind == "rows" and bool(record.quarantined.get(raised))
                if section.kind == kind and section.rows and not left_out:
                    index.setdefault(section.group, []).append((receipt, section))
    return index


def key_columns(query: AnyQuery) -> tuple[str, ...]:
    """The output columns whose values identify a row: its window, then its key.

    They are () for rows of single events and of processors, and if a result may have several rows.

    Raises:
        UnsupportedQuery: the query does not output all of these columns.
    """
    if isinstance(query, Query) and isinstance(query.window, Distinct) and query.updating:
        return _keys_of_event(query)
    if not isinstance(query, Query) or query.of_event or isinstance(query.window, Processed):
        return ()
    if query.unnested is not None and not query.changing:
        return ()
    shown = {part.name: item.name for item in query.output for part in _identifying(item.expression)}
    windows = [shown[name] for name in ("window", "window.start", "window.end") if name in shown]
    windows += [item.name for item in query.output if not windows and _is_date(item.expression, query.window)]
    keys = [shown.get(f"key:{place}") for place in range(len(query.keys))]
    windowless = not windows and query.window != RUNNING
    if windowless or None in keys:
        lacking = "its window" if windowless else "all its key columns"
        raise UnsupportedQuery(
            f"Rows of {query.name} cannot be identified: its output lacks {lacking}.", "Add them to its SELECT."
        )
    return tuple(dict.fromkeys([*windows, *(key for key in keys if key is not None)]))


def _is_date(output: Expression, window: Window) -> bool:
    """Whether an output column is the date of a window's start, and no two windows have one date."""
    dated = isinstance(output, Foreign) and output.sql == DATE_OF_START
    return dated and isinstance(window, Calendar) and window.unit != "day"  # a repeated midnight begins a day twice


def _keys_of_event(query: Query) -> tuple[str, ...]:
    """The output columns with the key of a row that shows one event of it.

    Raises:
        UnsupportedQuery: the query does not output all of them.
    """
    names = keys_shown(query)
    if isinstance(query.window, Distinct) and query.window.ranked is not None:
        number = numbered_rows(query)
        names = (*names, number[0] if number else None)
        if number is None:
            raise UnsupportedQuery(
                f"Rows of {query.name} cannot be identified: its output lacks the row_number() of the row.",
                "Rank by row_number(), and add it to its SELECT.",
            )
    if None in names:
        raise UnsupportedQuery(
            f"Rows of {query.name} cannot be identified: its output lacks all its key columns.",
            "Add them to its SELECT.",
        )
    return tuple(name for name in names if name is not None)


def _identifying(output: Expression) -> Iterator[Column]:
    """The keys and window bounds that an output column shows: itself, or those of which a struct is made."""
    if isinstance(output, Column):
        yield output
    elif isinstance(output, Call) and output.op == "struct":
        for part in output.args:
            yield from _identifying(part)
