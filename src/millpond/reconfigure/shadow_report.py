"""Compares a query with its shadow: rows that only one of them emitted, of windows that both emit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millpond.followers.cursors import ProcessFollower
from millpond.followers.record_rows import ReadSection, RowsGone, RowsReader
from millpond.followers.sinks.text import json_objects
from millpond.log.manifest import Manifest
from millpond.log.records import ChangeRecord, Entry, EpochRecord
from millpond.reconfigure.changes import Promote, change_of
from millpond.runtime.rows.shadow_diff import NET, sum_net

_FEW, _PARTS = 1 << 20, 64
"""Up to this many rows, from up to this many records, are summed among themselves only, not with all others."""

_NONE = pa.table({NET: pa.array([], pa.int64())})


class Difference(NamedTuple):
    """The rows that only the query emitted and those that only its shadow emitted, as JSON texts, and the number of
    rows that both emitted. A row that was emitted several times is repeated.

    `n`: the last record that is included; the first is the record since which the two are compared.
    """

    n: int
    same: int
    only_query: list[str]
    only_shadow: list[str]


class ShadowComparison(ProcessFollower):
    """Follower that compares a query and its shadow from record `since` on. Keeps the differing rows in memory, and for
    some recent records also rows that have cancelled out since.

    Differing rows of one record are summed on their own first, because most rows are emitted by both in the same
    epoch. They are summed with the accumulated rows only when they are more than 2^20 rows and more than the
    accumulated ones, so each row is processed about four times.
    """

    def __init__(self, query: str, shadow: str, read: ReadSection, since: int) -> None:
        super().__init__(f"compare:{query}", since)
        self._query, self._shadow = query, shadow
        self._rows = RowsReader(read, "differing")
        self._compared = 0
        self._differing = [_NONE]

    def _take(self, record: Entry, manifest: Manifest) -> None:
        change = change_of(record.record.change) if isinstance(record.record, ChangeRecord) else None
        if isinstance(change, Promote) and change.name == self._query:
            self._swap()
        if isinstance(record.record, EpochRecord):
            self._take_rows(record, record.record, manifest)
        whole, *more = self._differing
        if len(more) > _PARTS or sum(map(len, more)) > max(_FEW, len(whole)):
            more = [_summed(more)]
            self._differing = [whole, *more] if len(more[0]) <= max(_FEW, len(whole)) else [_summed([whole, *more])]

    def _take_rows(self, entry: Entry, record: EpochRecord, manifest: Manifest) -> None:
        """Take the differing rows of an epoch; none while either version is quarantined, as its rows are missing."""
        names = self._query, self._shadow
        if any(name in manifest.quarantined for name in names):
            return
        try:
            table = self._rows.batches(entry, self._query)
        except RowsGone:
            return
        self._compared += sum(record.counts.get(name, {}).get("rows", 0) for name in names)
        if table is not None and len(fresh := _summed([table])):
            self._differing.append(fresh)

    def _swap(self) -> None:
        """Negate the counts: query and shadow were exchanged, so earlier rows of the one are now rows of the other."""
        self._differing = [
            part.drop_columns([NET]).append_column(NET, pc.negate(part[NET])) for part in self._differing
        ]  # fmt: skip

    def difference(self) -> Difference:
        """The difference until now."""
        with self._lock:
            self._differing = [whole] = [_summed(self._differing)]
            texts = _texts(whole)
            summed = sum_net(pa.table({"text": texts, NET: whole[NET]}), texts)  # different bits may have the same text
            rows, net = ([] if summed is None else summed[name].to_pylist() for name in ("text", NET))
            only = [
                [row for row, count in zip(rows, net, strict=True) for _ in range(max(0, side * count))]
                for side in (1, -1)
            ]
            same = (self._compared - sum(map(len, only))) // 2
            return Difference(self._reached.n, same, *only)


def _summed(parts: Sequence[pa.Table]) -> pa.Table:
    """Each row once with its net count, without rows whose count is 0. Uses one core, as epochs need the others."""
    some = [part for part in parts if len(part)]
    if not some:
        return _NONE
    rows = pa.concat_tables(some)
    summed = sum_net(rows)
    return sum_net(rows, _texts(rows)) if summed is None else summed


def _texts(rows: pa.Table) -> pa.Array:
    """Rows as JSON."""
    return json_objects(rows.drop_columns([NET]), omit_nulls=False)
