"""Sinks that only the process that runs a pond can provide: a function that takes rows, and tables in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from millpond.errors import QueryError, QueryTypeError, UserFunctionError
from millpond.followers.cursors import CursorPath, ProcessFollower, follower_name
from millpond.followers.record_rows import RowsGone, RowsReader
from millpond.followers.sinks.delivery import RepeatingDelivery
from millpond.log.cursor import NOTHING_APPLIED
from millpond.log.manifest import Manifest
from millpond.log.records import Entry

Foreach: TypeAlias = Callable[[pa.RecordBatch, int], object]
"""A user's function of the rows of an epoch (at least one) and the number of its record; its result is ignored."""


class ForeachSink(RepeatingDelivery):
    """Passes rows to a function; starts after record `since` if there is no cursor.

    Raises:
        QueryTypeError: the query has no function.
    """

    def __init__(self, query: str, rows: RowsReader, cursor: CursorPath, function: Foreach | None, since: int) -> None:
        if function is None:
            raise QueryTypeError(
                f"The rows of {query} go to a function, and there is none.",
                f"Call pond.foreach({query!r}, function) before the pond is opened.",
            )
        super().__init__(query, rows, f"The function of {query}", cursor, since)
        self._function = function

    def _hand_over(self, record: Entry, table: pa.Table) -> None:
        (rows,) = table.combine_chunks().to_batches()
        try:
            self._function(rows, record.n)
        except Exception as error:
            raise UserFunctionError(
                f"The function that takes the rows of {self._query} raised {type(error).__name__} in epoch {record.n}: "
                f"{' '.join(str(error).split())}.",
                "It is called again with this epoch before any later one.",
            ) from error


class MemorySink(ProcessFollower):
    """Keeps the rows of each record as Arrow tables, for tests and notebooks; thread-safe."""

    def __init__(self, query: str, rows: RowsReader, since: int = NOTHING_APPLIED, late: bool = False) -> None:
        super().__init__(follower_name(query, late), since)
        self._query = query
        self._rows = rows
        self._epochs: list[tuple[int, pa.Table]] = []

    def _take(self, record: Entry, manifest: Manifest) -> None:
        """Keep the rows of a record; rows that were pruned before this process started are skipped."""
        try:
            table = self._rows.table(record, self._query)
        except RowsGone:
            return
        if table is not None:
            self._epochs.append((record.n, table))

    def epochs(self) -> list[tuple[int, pa.Table]]:
        """The number and the rows of each record that had any, in order."""
        with self._lock:
            return list(self._epochs)

    def table(self) -> pa.Table:
        """All rows until now, in the order of records; a table without columns before the first row."""
        tables = [table for _, table in self.epochs()]
        return pa.concat_tables(tables) if tables else pa.table({})


class MemoryTables:
    """The memory sinks of a pond by query name."""

    def __init__(self) -> None:
        self._sinks: dict[str, MemorySink] = {}

    def add(self, query: str, sink: MemorySink) -> None:
        """Add a sink; it replaces an earlier sink of the same name."""
        self._sinks[query] = sink

    def __contains__(self, query: str) -> bool:
        return query in self._sinks

    def table(self, query: str) -> pa.Table:
        """All rows of a query until now; QueryError if it has no memory sink."""
        return self.sink(query).table()

    def sink(self, query: str) -> MemorySink:
        """The sink of a query; QueryError if it has no memory sink."""
        if query not in self._sinks:
            raise QueryError(
                f"The query {query} keeps no rows in memory.",
                "Read them where its sink writes them, or add the query with `pond.add` and without a sink.",
            )
        return self._sinks[query]
