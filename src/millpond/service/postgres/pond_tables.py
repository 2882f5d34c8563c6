"""The tables of a pond for SQL: the rows of served queries in `public`, and what the log says in `millpond`.

All rows of served queries that are read together are as of one record. The table `millpond.snapshot` has its number.
The pond is read as from any other process: its log, and its store beside the writer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from millpond.control.wiring.pond_reader import check_current
from millpond.control.wiring.stores_and_followers import open_rows
from millpond.control.wiring.truth import Truth
from millpond.errors import NotServingError, StoreError
from millpond.followers.view.documents import Documents, decoded, rows_of_one_record
from millpond.log.locations.address import Given
from millpond.model.query import Query
from millpond.model.spec import PondSpec
from millpond.reconfigure.lifecycle import current
from millpond.runtime.rows.window_rows import with_flat_windows
from millpond.service.postgres.client_catalog import SEARCH_PATH
from millpond.service.postgres.client_sql import distinct_names
from millpond.service.server.log_reader import LogReader
from millpond.state.backends.kinds import shown, store_kind, store_path
from millpond.state.ports.sharded import ShardedStore

PUBLIC, CATALOG = SEARCH_PATH

_CHANGES = 10_000
"""The most changes in `millpond.changes`, the newest ones."""

_TIME = pa.timestamp("us", "UTC")

_COLUMNS: Mapping[str, Mapping[str, pa.DataType]] = {
    "snapshot": {"pond": pa.string(), "record": pa.int64(), "catalog_record": pa.int64()},
    "queries": {
        "name": pa.string(), "kind": pa.string(), "state": pa.string(), "version": pa.int64(), "text": pa.string(),
        "streams": pa.string(), "sink": pa.string(), "serve": pa.bool_(), "complete_from": _TIME,
        "reason": pa.string(), "shadow": pa.string(), "time_zone": pa.string(),
    },
    "columns": {"query": pa.string(), "position": pa.int64(), "name": pa.string(), "type": pa.string()},
    "streams": {"name": pa.string(), "source": pa.string(), "newest": _TIME},
    "parameters": {
        "name": pa.string(), "value": pa.string(), "type": pa.string(), "source": pa.string(), "record": pa.int64(),
    },
    "changes": {
        "record": pa.int64(), "at": _TIME, "kind": pa.string(), "name": pa.string(), "who": pa.string(),
        "text": pa.string(), "value": pa.string(),
    },
}  # fmt: skip
"""The columns of the tables in the schema `millpond`."""


class Table(NamedTuple):
    """A table, by its schema and name."""

    schema: str
    name: str


class Listing(NamedTuple):
    """The tables of a pond with their columns, and the names of queries without one; `key` changes whenever they do."""

    key: object
    schemas: Mapping[Table, pa.Schema]
    unserved: frozenset[str]


class PondTables:
    """Reads the tables of the pond in a folder, in any thread; `store`: where its served rows are kept.

    Raises:
        NotServingError: nothing was run in the folder yet. CorruptError, StoreError, PlaceError: it cannot be read.
            All by every method.
    """

    def __init__(self, folder: Given, store: str) -> None:
        self._reader, self._store = LogReader(folder), store
        self._lock = threading.Lock()
        self._opened: tuple[object, ShardedStore] | None = None

    def listing(self) -> Listing:
        """The tables as of now."""
        truth, spec = _now(self._reader)
        served = _served(spec)
        schemas = {Table(CATALOG, name): pa.schema(list(columns.items())) for name, columns in _COLUMNS.items()}
        for name, query in served.items():
            schemas[Table(PUBLIC, name)] = _flat(pa.Table.from_batches([], Documents(query).schema)).schema
        unserved = frozenset(query.name for query in current(spec)) - {query.name for query in served.values()}
        return Listing((truth.pond, truth.manifest.spec, len(truth.manifest.changes)), schemas, unserved)

    def read(self, tables: Collection[Table]) -> dict[Table, pa.Table]:
        """The content of tables, all as of one moment; tables that are no longer there are left out.

        Raises:
            BusyError: the rows of served queries change too fast to be read as of one record.
            StoreError: the store cannot be read, or the pond no longer writes it.
        """
        reader = self._reader.frozen()  # no change of the pond may come between two tables
        truth, spec = _now(reader)
        served = _served(spec)
        wanted = {one.name: served[one.name] for one in tables if one.schema == PUBLIC and one.name in served}
        snapshot = Table(CATALOG, "snapshot") in tables
        record, rows = self._rows(truth, spec, wanted) if wanted or (snapshot and served) else (None, {})
        found = {Table(PUBLIC, name): table for name, table in rows.items()}
        for table in tables:
            if table.schema == CATALOG:
                one = {"pond": truth.pond, "record": record, "catalog_record": truth.manifest.n}
                content = [one] if table.name == "snapshot" else [*_CONTENTS[table.name](reader)]
                found[table] = pa.Table.from_pylist(content, pa.schema(list(_COLUMNS[table.name].items())))
        return found

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            if self._opened is not None:
                self._opened[1].close()
                self._opened = None

    def _rows(
        self, truth: Truth, spec: PondSpec, queries: Mapping[str, Query]
    ) -> tuple[int, dict[str, pa.Table]]:  # fmt: skip
        """The record as of which served rows are, and the rows of some queries, by the names of their tables."""
        names = [query.name for query in queries.values()] or [next(iter(_served(spec).values())).name]
        with self._lock:
            store = self._open(truth, spec)
            record, scanned = rows_of_one_record(store, range(spec.buckets), names)
            check_current(truth, self._store, store, range(spec.buckets), record)
        tables = {}
        for place, (name, query) in enumerate(queries.items()):
            batches = [*decoded(query, (bucket[place] for bucket in scanned))]
            tables[name] = _flat(pa.Table.from_batches(batches))
        return record, tables

    def _open(self, truth: Truth, spec: PondSpec) -> ShardedStore:
        """Open the store, or open it again if its file was replaced."""
        kind, path = store_kind(self._store), store_path(self._store, truth.folder)
        if kind.reach == "process" or (path is not None and not path.exists()):
            raise StoreError(
                f"The pond has no served rows in the store {path or shown(self._store)}.",
                "Name the store that the pond runs with (--store). It must be lmdb or redis://…, which other processes "
                "can read.",
            )
        key = truth.pond, None if path is None else path.stat().st_ino
        if self._opened is not None and self._opened[0] != key:
            self._opened[1].close()
            self._opened = None
        if self._opened is None:
            self._opened = key, open_rows(self._store, truth, spec, read_only=True)
        return self._opened[1]


def _now(reader: LogReader) -> tuple[Truth, PondSpec]:
    found = reader.now()
    if found is None:
        raise NotServingError("The pond has no query yet.", "Add one with `millpond add`.")
    return found


def _queries(reader: LogReader) -> Iterator[Mapping[str, Any]]:
    for one in reader.queries(lambda _: {}):
        yield {**_fields(one), "streams": ", ".join(one.streams), "complete_from": one.complete_from_us}


def _columns(reader: LogReader) -> Iterator[Mapping[str, Any]]:
    for one in reader.queries(lambda _: {}):
        for position, column in enumerate(one.columns, 1):
            yield {"query": one.name, "position": position, "name": column.name, "type": column.type}


def _streams(reader: LogReader) -> Iterator[Mapping[str, Any]]:
    for one in reader.streams():
        yield {**_fields(one), "newest": one.newest_us}


def _parameters(reader: LogReader) -> Iterator[Mapping[str, Any]]:
    for one in reader.parameters():
        yield {**_fields(one), "value": _text(one.value)}


def _changes(reader: LogReader) -> Iterator[Mapping[str, Any]]:
    for one in reader.history(_CHANGES):
        yield {**_fields(one), "at": one.at_us, "value": _text(one.value)}


_CONTENTS: Mapping[str, Callable[[LogReader], Iterable[Mapping[str, Any]]]] = {
    "queries": _queries, "columns": _columns, "streams": _streams, "parameters": _parameters, "changes": _changes,
}  # fmt: skip
"""The rows of the tables in the schema `millpond`, except `snapshot`."""


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _served(spec: PondSpec) -> dict[str, Query]:
    """The served queries in force, by the names of their tables."""
    queries = [query for query in current(spec) if isinstance(query, Query) and query.serve]
    queries.sort(key=lambda query: query.name, reverse=True)  # a name in lower case stays as it is
    return dict(zip(distinct_names([query.name for query in queries]), queries, strict=True))


def _flat(rows: pa.Table) -> pa.Table:
    flat = with_flat_windows(rows)
    return flat.rename_columns(distinct_names(flat.column_names))
