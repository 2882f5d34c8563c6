"""Delta Lake sink: the rows of a record are one commit that contains the record's number.

The commit contains `txn(millpond-<pond>-<query>, n)`, Delta's own protection against repeated writes. It is made
against the table version in which that number was read, or not at all. Of two publishers one is refused and then
finds nothing left to do. A file in the pond repeats the number, because records without rows make no commit. The
record's mark is stored in that file and with the commit.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from millpond.errors import StoreError, UnsupportedQuery
from millpond.followers.cursors import CursorPath
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.context import SinkContext
from millpond.followers.sinks.delivery import FileDelivery
from millpond.log.cursor import NOTHING_APPLIED, Cursor, ahead, cursor_at
from millpond.log.records import Entry
from millpond.model.selection import AnyQuery
from millpond.model.types import INTERVAL


class DeltaSink(FileDelivery):
    """Writes rows to the table at `path`, which the first rows create; starts after record `since`."""

    def __init__(
        self, query: AnyQuery, pond_id: str, path: Path, rows: RowsReader, cursor: CursorPath,
        since: int = NOTHING_APPLIED,
    ) -> None:  # fmt: skip
        super().__init__(query.name, rows, f"The table {path}", cursor, since)
        self._path, self._app = path, f"millpond-{pond_id}-{query.name}"
        self._table: DeltaTable | None = None

    @classmethod
    def open(cls, context: SinkContext) -> DeltaSink:
        """Open the sink of a query.

        Raises:
            UnsupportedQuery: Delta Lake has no type for a column.
        """
        for item in context.query.output:
            if INTERVAL in item.expression.type:
                raise UnsupportedQuery(
                    f"Delta Lake has no type for the column {item.name}, which is or contains an interval.",
                    "Cast it to string.",
                )
        return cls(context.query, context.pond, context.path, context.rows, context.cursor_file, context.since)

    def cursor(self) -> Cursor:
        """See `Follower.cursor`: the higher one of the table's number and the file's.

        Raises:
            StoreError: the table cannot be read.
        """
        known, n = super().cursor(), self._committed()
        return known if n <= known.n else Cursor(n, self._mark_of(n))

    def rewind(self, to: Cursor) -> str:
        """See `Reversible.rewind`: Delta keeps the number of what it has."""
        raise ahead(
            self.name, self.cursor(), to.n,
            f"Rows after record {to.n} cannot be taken back from the table {self._path}. Restore the folder "
            "`log` from a newer copy, or begin a new pond that writes to a new table.",
        )  # fmt: skip

    def close(self) -> None:
        """Discard the cached state of the table."""
        self._table = None

    def _hand_over(self, record: Entry, table: pa.Table) -> None:
        n = record.n
        if self._committed(table.schema) >= n:
            return
        assert self._table is not None
        metadata = {"query": self._query, "epoch": str(n), "mark": cursor_at(record).mark}
        named = CommitProperties(
            custom_metadata=metadata, max_commit_retries=0,
            app_transactions=[Transaction(self._app, n)],
        )  # fmt: skip
        try:
            write_deltalake(self._table, table, mode="append", commit_properties=named)
        except (DeltaError, OSError, ValueError) as error:
            raise self._failed(error) from error

    def _committed(self, schema: pa.Schema | None = None) -> int:
        """The number in the newest version of the table; -1 if there is none. With a `schema` the table is created."""
        try:
            if schema is not None and self._table is None:
                DeltaTable.create(str(self._path), schema, mode="ignore")
            if self._table is None:
                self._table = DeltaTable(str(self._path))
            else:
                self._table.update_incremental()
            found = self._table.transaction_version(self._app)
        except TableNotFoundError:
            self._table = None
            return NOTHING_APPLIED
        except (DeltaError, OSError, ValueError) as error:
            raise self._failed(error) from error
        return NOTHING_APPLIED if found is None else int(found)

    def _mark_of(self, n: int) -> str:
        """The mark stored with the commit of a number; needed only after a crash, otherwise the file has it."""
        assert self._table is not None
        mine = {"query": self._query, "epoch": str(n)}
        try:
            found = (one for one in self._table.history() if mine.items() <= one.items())
        except (DeltaError, OSError, ValueError) as error:
            raise self._failed(error) from error
        return str(next(found, {}).get("mark", ""))

    def _failed(self, error: Exception) -> StoreError:
        self._table = None
        return StoreError(
            f"The Delta table {self._path} did not take rows of {self._query}: {' '.join(str(error).split())}.",
            "It is tried again; if the table has other columns, choose another folder.",
        )
