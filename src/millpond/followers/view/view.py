"""The view: the latest row per key of queries with `serve=True`, in a store that other programs read.

A row is kept in the table named like its query, in its bucket, under the text of its key (`__key`), as

    {"epoch": n, "window": [start, end], "row": {…}}

`window` is in microseconds since 1970 UTC; `row` contains the query's columns as the JSON sink writes them, with NULL
as `null`. Every bucket advances with every record, even without rows: its number is the record as of which its rows are
current. "Latest" relies on the windows of a key being emitted in the order of their ends, as final results are: within
a record the latest end wins, between records the later record. Updating results have a column `__deleted`. For these,
the latest end also wins against the stored row, and a deleted row is removed if it is the stored one.

The store's own numbers are the cursor. Data that the store has lost is replayed. A bucket may have applied records that
are not in the log, because the log lost them or was restored from an older copy. Such a bucket is cleared and rebuilt
from the retained rows. A number belongs to a record in the log if its mark, the first digits of the record's digest,
does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import CorruptError, StoreError
from millpond.faults import reached
from millpond.followers.record_rows import ReadSection, RowsGone, RowsReader
from millpond.followers.sinks.text import json_objects
from millpond.log.cursor import Cursor
from millpond.log.manifest import Manifest
from millpond.log.records import Entry, digest_of
from millpond.plan.options.output_modes import OP
from millpond.runtime.packets.row_batches import without_private_columns
from millpond.state.ports.store import NEVER, Apply, BucketStore, ReadRequest, Stand, TableWrite, Verdict

_MARK_DIGITS = 16

KEY, BUCKET, END, START, DELETED = "__key", "__bucket", "__end", "__start", "__deleted"


@dataclass(frozen=True, slots=True)
class Served:
    """The document of a key as of record `n`; None if the key has no row."""

    n: int
    document: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class ServedBucket:
    """All keys of a query in one bucket as of record `n`; `documents[i]` is the JSON text for `keys[i]`."""

    bucket: int
    n: int
    keys: list[str]
    documents: list[bytes]


class BucketsBehind(StoreError):
    """The store has lost what buckets had applied."""


class BucketRows(RowsReader):
    """The rows of some buckets, regardless of the instance that wrote them."""

    def __init__(self, read_section: ReadSection, buckets: Sequence[int]) -> None:
        super().__init__(read_section)
        self._buckets = pa.array(buckets, pa.int64())

    def batches(self, entry: Entry, query: str) -> pa.Table | None:
        table = super().batches(entry, query)
        if table is None or BUCKET not in table.column_names:  # the query is not served
            return table
        mine = table.filter(pc.is_in(table[BUCKET].cast(pa.int64()), self._buckets))
        return mine if len(mine) else None


class ViewFollower:
    """Keeps a store, or some of its buckets (`buckets` then lists them), at the head of the log.

    `served` returns the size of the window, in microseconds, of each query that is served now; the table of a query
    that is not in it any more is dropped at the next record. `head` reads the manifest at the head of the log. It must
    read the log each time; otherwise a driver that was overtaken would clear what its successor has applied. `read`
    returns the bytes of a record.
    """

    name = "view"

    def __init__(
        self,
        store: BucketStore,
        rows: RowsReader,
        buckets: int | Sequence[int],
        served: Callable[[], Mapping[str, int]],
        head: Callable[[], Manifest],
        read: Callable[[int], bytes | None],
    ) -> None:
        self._read = read
        self._store = store
        self._rows = rows
        self._buckets = range(buckets) if isinstance(buckets, int) else buckets
        self._owned = frozenset(self._buckets)
        self._served = served
        self._head = head
        self._known: frozenset[str] | None = None
        self._reached, self._live = NEVER, frozenset[tuple[int, str]]()

    @property
    def note(self) -> str | None:
        """What the store has repaired by itself, as text."""
        return getattr(self._store, "note", None)

    def known(self) -> Cursor:
        """See `Remote.known`: nothing, because the view repairs itself."""
        return Cursor()

    def cursor(self) -> Cursor:
        """See `Follower.cursor`: the lowest number of all buckets; clears buckets whose record is not in the log."""
        # In this order: the log, read later, has every record that was applied from it before.
        stands = self._store.stands_many(self._buckets)
        head = self._head()
        applied = np.array([stand.n for stand in stands], np.int64)
        rows = (section for section in head.sections.values() if section.kind == "rows")
        self._reached, self._live = head.n, frozenset((section.n, section.group) for section in rows)
        stray = {stand for stand in set(stands) if stand.n > head.n or not self._is_in_log(stand)}
        ahead = np.array([i for i, stand in enumerate(stands) if stand in stray], np.int64)
        if len(ahead):
            self._store.clear_many([self._buckets[i] for i in ahead.tolist()])
            applied[ahead] = NEVER
        start = min((n for n, _ in self._live), default=head.n + 1) - 1
        empty = np.flatnonzero(applied == NEVER)
        if len(empty) and start > NEVER:
            # No older rows are retained, so there is nothing to replay before this record.
            mark = self._mark_at(start)
            self._expect_applied([Apply(self._buckets[i], start, NEVER, (), mark) for i in empty.tolist()])
            applied[empty] = start
        return Cursor(int(applied.min()))

    def _is_in_log(self, stand: Stand) -> bool:
        if stand.n == NEVER or not stand.mark:
            return True
        return self._mark_at(stand.n) == stand.mark

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`; BucketsBehind if a bucket is behind: read the cursor again and replay."""
        news = self.show(n, record)
        if news:
            self._known = drop_unserved(self._store, frozenset(self._served()), self._known, n)

    def show(self, n: int, record: Entry) -> bool:
        """Bring the buckets from record `n` - 1 to `n`: at most one call to read from the store, and one to write.

        Returns whether the record was new to any bucket. BucketsBehind: see `apply`.
        """
        served = self._served()
        try:
            queries = [query for query in self._rows.queries(record) if query in served and self._counts(n, query)]
            found = {query: self._rows.batches(record, query) for query in queries}
        except RowsGone:
            self._start_over(record)
            return False
        tables = {query: table for query, table in found.items() if table is not None}
        writes: dict[int, list[TableWrite]] = {}
        stored = self._stored(tables)
        for query, table in tables.items():
            documents = (
                _newer_documents(table, n, served[query], stored[query]) if query in stored
                else latest_documents(table, n, served[query])
            )  # fmt: skip
            for bucket, keys, some in documents:
                if bucket not in self._owned:
                    raise CorruptError(f"A row of query {query} in record {n} is in bucket {bucket}.", "Report this.")
                writes.setdefault(bucket, []).append(TableWrite(query, keys, some))
        mark = view_mark(record.digest)
        steps = [Apply(bucket, n, n - 1, writes.get(bucket, ()), mark) for bucket in self._buckets]
        reached("view.before_apply")
        news = self._expect_applied(steps)
        reached("view.after_apply")
        return news

    def _counts(self, n: int, query: str) -> bool:
        """Whether rows belong to the current query: replayed rows may be of an earlier query of the same name."""
        return n > self._reached or (n, query) in self._live

    def _stored(self, tables: Mapping[str, pa.Table]) -> dict[str, dict[tuple[int, str], bytes | None]]:
        """The stored documents for the keys in `tables` of queries with updating results, read in one call."""
        wanted = []
        for query, table in tables.items():
            if DELETED in table.column_names:
                touched: dict[int, list[bytes]] = {}
                for bucket, key in sorted(set(zip(table[BUCKET].to_pylist(), table[KEY].to_pylist(), strict=True))):
                    touched.setdefault(bucket, []).append(key.encode())
                wanted += [ReadRequest(bucket, query, keys) for bucket, keys in touched.items()]
        stored: dict[str, dict[tuple[int, str], bytes | None]] = {one.table: {} for one in wanted}
        for one, found in zip(wanted, self._store.read_many(wanted) if wanted else (), strict=True):
            pairs = zip(one.keys, found.values, strict=True)
            stored[one.table].update({(one.bucket, key.decode()): value for key, value in pairs})
        return stored

    def _mark_at(self, n: int) -> str:
        data = self._read(n)
        return "" if data is None else view_mark(digest_of(data))

    def _start_over(self, record: Entry) -> None:
        n, mark = record.n, view_mark(record.digest)
        # Rows of n are pruned, so an older row might be outdated without any sign of it: no row is more correct.
        behind = [b for b, at in zip(self._buckets, self._store.applied_many(self._buckets), strict=True) if at < n]
        self._store.clear_many(behind)
        self._expect_applied([Apply(bucket, n, NEVER, (), mark) for bucket in behind])

    def _expect_applied(self, steps: Sequence[Apply]) -> bool:
        """Apply the steps; returns whether any was new. For a driver that was overtaken none is, and it must stop."""
        outcomes = self._store.apply_many(steps)
        behind = [outcome for outcome in outcomes if outcome.verdict is Verdict.BEHIND]
        if behind:
            raise BucketsBehind(
                f"{len(behind)} buckets of the view are behind, such as {behind[0].bucket} at {behind[0].applied}.",
                "They are replayed from the log.",
            )
        return any(outcome.verdict is Verdict.APPLIED for outcome in outcomes)


def view_mark(digest: str) -> str:
    """The mark of a record in a store, kept with each bucket's number: short, because there are many buckets."""
    return digest[:_MARK_DIGITS]


def drop_unserved(
    store: BucketStore, served: frozenset[str], known: frozenset[str] | None, n: int
) -> frozenset[str]:  # fmt: skip
    """Drop the tables of queries that are not served as of record `n`, unless this was done before (`known`); returns
    the served queries.
    """
    if served != known:
        for table in store.tables() - served:
            store.drop_table(table, n)
    return served


def latest_documents(table: pa.Table, n: int, size_us: int) -> Iterator[tuple[int, list[bytes], list[bytes | None]]]:
    """Yield (bucket, keys, documents) per bucket: for each key its row with the latest window end.

    `table` contains the columns `__key`, `__bucket`, `__end` (microseconds) and the query's own. If windows
    differ in size, it also contains `__start`.
    """
    last = _last_rows(table)
    latest = table.take(pa.array(last))
    ends = latest[END].combine_chunks()
    starts = latest[START].combine_chunks() if START in latest.column_names else pc.subtract(ends, size_us)
    operation = [OP] if DELETED in latest.column_names else []  # the document has no operation
    own = without_private_columns(latest).drop_columns(operation)
    documents = _wrapped(json_objects(own, omit_nulls=False), n, starts, ends)
    keys = pc.cast(latest[KEY], pa.binary()).to_pylist()
    texts = pc.cast(documents, pa.large_binary()).to_pylist()
    buckets = latest[BUCKET].to_numpy()
    starts = np.flatnonzero(np.diff(buckets, prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(buckets)], strict=True):
        yield int(buckets[start]), keys[start:end], texts[start:end]


def _newer_documents(
    table: pa.Table, n: int, size_us: int, stored: Mapping[tuple[int, str], bytes | None]
) -> Iterator[tuple[int, list[bytes], list[bytes | None]]]:
    """Like `latest_documents` for updating results: only documents that differ from the stored ones."""
    standing = table.filter(pc.invert(table[DELETED]))
    newest = {
        (bucket, key): document
        for bucket, keys, documents in (latest_documents(standing, n, size_us) if len(standing) else ())
        for key, document in zip(keys, documents, strict=True)
    }
    gone = table.filter(table[DELETED])
    deleted = set(zip(gone[KEY].to_pylist(), gone[END].to_pylist(), strict=True))
    changes: dict[int, list[tuple[bytes, bytes | None]]] = {}
    for (bucket, key), before in stored.items():
        document, end_us = newest.get((bucket, key.encode())), before if before is None else _ends(before)
        if end_us is not None and (key, end_us) in deleted:
            end_us = None
        if document is not None and (end_us is None or _ends(document) >= end_us):
            changes.setdefault(bucket, []).append((key.encode(), document))
        elif before is not None and end_us is None:
            changes.setdefault(bucket, []).append((key.encode(), None))
    for bucket, some in changes.items():
        yield bucket, [key for key, _ in some], [document for _, document in some]


def _ends(document: bytes) -> int:
    end: int = msgspec.json.decode(document)["window"][1]
    return end


def _last_rows(table: pa.Table) -> npt.NDArray[np.int64]:
    codes = pc.dictionary_encode(table[KEY].combine_chunks()).indices.to_numpy()
    buckets, ends = table[BUCKET].to_numpy(), table[END].to_numpy()
    order = np.lexsort((ends, codes, buckets))
    sorted_codes = codes[order]
    # A key has one bucket, so the row before a change of the key is the last row of that key.
    is_last = np.append(sorted_codes[1:] != sorted_codes[:-1], True)
    last: npt.NDArray[np.int64] = order[is_last]
    return last


def _wrapped(rows: pa.Array, n: int, starts: pa.Array, ends: pa.Array) -> pa.Array:
    start, end = (pc.cast(bound, pa.large_utf8()) for bound in (starts, ends))
    pieces = (f'{{"epoch":{n},"window":[', start, ",", end, '],"row":', rows, "}", "")
    large = [pa.scalar(piece, pa.large_utf8()) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*large)


def lookup(store: BucketStore, query: str, key: str, bucket: int) -> Served:
    """The latest row of one key; `key`: its text as in `__key`, `bucket`: the bucket of the key."""
    return lookup_many(store, query, [(key, bucket)])[0]


def lookup_many(store: BucketStore, query: str, keys: Sequence[tuple[str, int]]) -> list[Served]:
    """The latest rows of many (key, bucket) pairs in one batch, each with the record as of which it is current."""
    places: dict[int, list[int]] = {}
    for position, (_, bucket) in enumerate(keys):
        places.setdefault(bucket, []).append(position)
    wanted = [
        ReadRequest(bucket, query, [keys[position][0].encode() for position in positions])
        for bucket, positions in places.items()
    ]
    served: dict[int, Served] = {}
    for positions, found in zip(places.values(), store.read_many(wanted), strict=True):
        for position, value in zip(positions, found.values, strict=True):
            served[position] = Served(found.applied, None if value is None else msgspec.json.decode(value))
    return [served[position] for position in range(len(keys))]


def scan(store: BucketStore, query: str, buckets: int) -> Iterator[ServedBucket]:
    """Every key of a query, by bucket; each bucket has its own record as of which it is current."""
    for bucket in range(buckets):
        rows = store.scan(bucket, query)
        yield ServedBucket(bucket, rows.applied, [key.decode() for key in rows.keys], rows.values)
