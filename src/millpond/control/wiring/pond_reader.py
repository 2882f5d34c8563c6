"""Reads a pond from another process without Spark: its queries, its progress, and the rows that it serves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path

import pyarrow as pa

from millpond.control.wiring.stores_and_followers import open_rows
from millpond.control.wiring.truth import Truth, existing_truth
from millpond.errors import ForeignPondError, QueryTypeError, StoreError, one_of
from millpond.followers.view.view import Served, lookup
from millpond.kernels.columns import arrow_type
from millpond.log.locations.address import Given, address_of
from millpond.log.port import Log
from millpond.log.records import EpochRecord, Record, decode
from millpond.model.query import Query
from millpond.model.spec import PondSpec
from millpond.plan.options.retention import spread_of
from millpond.reconfigure.catalog import in_force
from millpond.runtime.rows.served_keys import served_key
from millpond.state.backends.kinds import shown, store_kind, store_path
from millpond.state.ports.store import NEVER, BucketStore


def read_truth(given: Given, cache: Path | None = None) -> tuple[Truth, PondSpec]:
    """The pond at an address and its current spec; read-only. `cache`: see `open_truth`.

    Raises:
        ForeignPondError: there is no pond.
        CorruptError: its log cannot be read.
    """
    address = address_of(given)
    cure = "Name the folder that `millpond run` used, with --checkpoint."
    truth = existing_truth(address, cache)
    if truth is None:
        raise ForeignPondError(f"{address} holds no pond.", cure)
    if not truth.manifest.spec:
        raise ForeignPondError(f"The pond in {address} was never run.", cure)
    return truth, in_force(truth.manifest)


_MOST_BEHIND = 8
"""The most epochs that a store may be behind the log without being checked for progress."""

_TRIES, _PAUSE_SECONDS = 40, 0.05

SERVE_AGAIN = (
    "Add its text with serve=True under another name (`millpond add --serve`). If you drop it and add it again, "
    "the windows that are open now are never emitted."
)

RECORDS_READ = 1000
"""The number of newest records that reports read; older ones do not explain the present."""


def newest_records(log: Log, head: int) -> Iterator[tuple[int, Record]]:
    """The newest `RECORDS_READ` records up to `head`, the newest first, with their numbers."""
    for n in range(head, max(-1, head - RECORDS_READ), -1):
        yield n, decode(log.read(n) or b"", log.describe(n)).record


def look_up(folder: Given, query: str, key: Sequence[str], store: str = "lmdb") -> Served:
    """The latest row of a served query for a key whose values are given as text, in the order of the key.

    Raises:
        ForeignPondError: the folder contains no pond.
        QueryTypeError: the query does not exist or is not served, or the key does not fit it.
        StoreError: the store cannot be read, or the pond no longer writes it.
    """
    truth, spec = read_truth(folder)
    served = served_query(spec, query)
    columns = key_columns(served, key)
    if store_kind(store).reach == "process":
        raise StoreError(f"The store `{store}` is not seen from another process.", "Run the pond with `lmdb` or Redis.")
    opened = open_rows(store, truth, spec, read_only=True)
    try:
        stream = next(stream for stream in spec.streams if stream.name == served.stream)
        text, bucket = served_key(columns, 1, spec.buckets, spread_of(served, stream.partitioned_by))
        found = lookup(opened, query, text[0].as_py(), bucket[0].as_py())
        check_current(truth, store, opened, [bucket[0].as_py()], found.n)
        return found
    finally:
        opened.close()


def check_current(truth: Truth, given: str, store: BucketStore, buckets: Sequence[int], record: int) -> None:
    """Check that the pond still writes the rows of `buckets`, read as of `record` from the store that `given` names.

    A store that lacks many epochs has two seconds to apply another record: one that catches up does, and one that the
    pond has left does not. Other records do not count: they contain no rows, and a pond may stop before its view has
    applied them.

    Raises:
        StoreError: nothing was applied in that time.
    """
    if not _lacks_many_epochs(truth, record):
        return
    for _ in range(_TRIES):
        if max(store.applied_many(buckets)) > record:
            return
        time.sleep(_PAUSE_SECONDS)
    place = store_path(given, truth.folder) or shown(given)
    applied = "no record" if record == NEVER else f"record {record}"
    raise StoreError(
        f"The served rows in the store {place} are out of date: they are as of {applied}, and the newest epoch of "
        f"the pond is record {truth.manifest.epoch_n}.",
        "Name the store that the pond runs with (`--store`; of a table, the option `store`). If it is this one and the "
        "pond has stopped, run the pond: the view catches up. Of a pond that `millpond serve` runs, `millpond status` "
        "says why the view is behind.",
    )


def _lacks_many_epochs(truth: Truth, record: int) -> bool:
    """Whether more than `_MOST_BEHIND` of the newest records are epochs after `record`."""
    newest = truth.manifest.epoch_n
    if newest - record <= _MOST_BEHIND:  # a comparison that reads no record
        return False
    newer = takewhile(lambda numbered: numbered[0] > record, newest_records(truth.log, newest))
    epochs = (n for n, one in newer if isinstance(one, EpochRecord))
    return next(islice(epochs, _MOST_BEHIND, None), None) is not None


def served_query(spec: PondSpec, name: str) -> Query:
    """The served query of that name.

    Raises:
        QueryTypeError: no query has this name, or it is not served.
    """
    found = next((query for query in spec.all_queries if query.name == name), None)
    if found is None:
        raise QueryTypeError(f"The pond has no query {name!r}.", one_of(name, _served_names(spec)))
    if not isinstance(found, Query) or not found.serve:
        raise not_served(name, _served_names(spec))
    return found


def _served_names(spec: PondSpec) -> list[str]:
    return [query.name for query in spec.queries if query.serve]


def not_served(name: str, served: Sequence[str]) -> QueryTypeError:
    """The error for a query without served rows; `served`: the names of those with such rows."""
    others = f" {one_of(name, served)}" if served else ""
    return QueryTypeError(f"The query {name!r} is not served.", f"{SERVE_AGAIN}{others}")


def key_columns(query: Query, key: Sequence[str]) -> list[pa.Array]:
    """The values of a key, given as text in the order of the key, as columns of one row.

    Raises:
        QueryTypeError: the values do not fit the query's key.
    """
    if len(key) != len(query.keys):
        raise QueryTypeError(
            f"The key of {query.name} has {len(query.keys)} values, not {len(key)}.", "Give them in order."
        )
    columns = []
    for text, expression in zip(key, query.keys, strict=True):
        try:
            columns.append(pa.array([text]).cast(arrow_type(expression.type)))
        except pa.ArrowInvalid as error:
            raise QueryTypeError(f"{text!r} is no {expression.type}.", "Write it as Spark would.") from error
    return columns
