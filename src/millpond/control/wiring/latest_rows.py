"""Batch tables of Spark: `LatestRows` with the latest row per key of a served query, and rows in Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from millpond.control.wiring.pond_reader import check_current, read_truth, served_query
from millpond.control.wiring.stores_and_followers import keyed_rows, open_rows
from millpond.errors import QueryTypeError, StoreError
from millpond.followers.view.documents import decoded, served_columns
from millpond.log.locations.address import Given, address_of
from millpond.model.endpoints import REDIS
from millpond.runtime.joins.lookup_rows import OpenRows
from millpond.spark.sources.batch_table_reader import MakeTable
from millpond.spark.sources.keyed_tables import keyed_frame
from millpond.spark.sources.pond_tables import FORMAT, ServedFrames, ServedTable
from millpond.state.backends.kinds import shown, store_kind, store_path
from millpond.state.ports.keyed_rows import KeyedRows
from millpond.state.ports.store import BucketStore

EPOCH = "_epoch"
"""The column with the record as of which a row is current: that of its bucket, which advances with each record."""


class ServedRows:
    """The latest rows of a served query in the pond at `folder`; read-only.

    Raises:
        ForeignPondError: the folder contains no pond.
        QueryTypeError: the query does not exist, is not served, or has a column `_epoch`.
        StoreError: its store does not exist.
    """

    def __init__(self, folder: Given, query: str, store: str = "lmdb") -> None:
        self._truth, self._spec = read_truth(folder)
        self._query = served_query(self._spec, query)
        self.buckets, self._store = self._spec.buckets, store
        if any(column.name.lower() == EPOCH for column in served_columns(self._query)):
            raise QueryTypeError(f"A column of {query} is called {EPOCH}, as one of ours.", "Give it another name.")
        kind, place = store_kind(store), store_path(store, self._truth.folder)
        if kind.reach == "process" or (place is not None and not place.exists()):
            raise StoreError(
                f"The store {place or shown(store)} has no rows of {query}.",
                "Run its pond once. If the pond has another store, name it: store 'lmdb:PATH', 'redis://…'.",
            )

    @property
    def columns(self) -> str:
        """The names and types of the columns, as in CREATE TABLE."""
        named = [(column.name.replace("`", "``"), column.type) for column in served_columns(self._query)]
        return ", ".join(f"`{name}` {kind}" for name, kind in [*named, (EPOCH, "bigint")])

    def read(self, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """The current rows in buckets `low` … `high` - 1, all as of one record if the store supports that.

        Raises:
            StoreError: the pond no longer writes the store.
        """
        opened = open_rows(self._store, self._truth, self._spec, read_only=True)
        try:
            yield from self._batches(opened, range(low, high))
        finally:
            opened.close()

    def _batches(self, store: BucketStore, buckets: range) -> Iterator[pa.RecordBatch]:
        found = store.scan_many(buckets, self._query.name)
        check_current(self._truth, self._store, store, buckets, max(rows.applied for rows in found))
        epochs = np.repeat([rows.applied for rows in found], [len(rows.values) for rows in found])
        start = 0
        for rows in decoded(self._query, found):
            column = pa.array(epochs[start : start + len(rows)], pa.int64())
            schema = rows.schema.append(pa.field(EPOCH, pa.int64()))
            yield pa.RecordBatch.from_arrays([*rows.columns, column], schema=schema)
            start += len(rows)


class LatestRows(ServedTable):
    """`spark.read.format("millpond").option("path", pond).option("query", name)`: a batch table of a query's rows.

    Register it once: `spark.dataSource.register(millpond.LatestRows)`; in pond files it is registered already. Options:
    `path` is the pond's folder, `query` a query with `serve`, `store` where its rows are kept (default `lmdb`, in the
    folder), and `numPartitions` the number of reading tasks (default 1: all rows as of one epoch, in `_epoch`).
    """

    def served(self, options: Mapping[str, str]) -> ServedRows:
        for name in ("path", "query"):
            if name not in options:
                raise QueryTypeError(f"A table of the format millpond has no {name}.", f"Add the option {name}.")
        folder = address_of(options["path"])
        return ServedRows(folder, options["query"], options.get("store", "lmdb"))


def own_tables(store: str = "") -> dict[str, MakeTable]:
    """The table factories of one session, by format, for a pond with this store; "": for analysis only."""
    return {FORMAT: ServedFrames(LatestRows), REDIS: partial(keyed_frame, partial(rows_at, store))}


def rows_at(store: str, address: str | None) -> OpenRows:
    """Like `keyed_rows`, but reports an invalid address only when rows are read: `explain` needs no server."""
    try:
        return keyed_rows(store, address)
    except StoreError as error:
        return partial(_refused, error)


def _refused(error: StoreError) -> KeyedRows:
    raise error
