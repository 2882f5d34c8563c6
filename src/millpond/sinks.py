"""What a package imports to add a sink: `examples/sqlite_sink` is a complete one, `CONTRIBUTING.md` explains it."""

from __future__ import annotations

from millpond.followers.cursors import is_next
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.context import SinkContext
from millpond.followers.sinks.delivery import Delivery, FileDelivery, RepeatingDelivery
from millpond.followers.sinks.kinds import SinkKind
from millpond.followers.sinks.rows_table import Changes, RowsTable
from millpond.log.cursor import Cursor, cursor_at
from millpond.log.records import Entry

__all__ = [
    "Changes",
    "Cursor",
    "Delivery",
    "Entry",
    "FileDelivery",
    "RepeatingDelivery",
    "RowsReader",
    "RowsTable",
    "SinkContext",
    "SinkKind",
    "cursor_at",
    "is_next",
]
