"""Compares a query with its shadow: rows that only one of them emitted, of windows that both emit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints, Mask
from millpond.errors import UnsupportedQuery
from millpond.followers.cursors import ProcessFollower
from millpond.followers.record_rows import ReadSection, RowsGone, RowsReader, key_columns
from millpond.followers.sinks.text import json_objects
from millpond.log.manifest import Manifest
from millpond.log.records import ChangeRecord, Entry, EpochRecord
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec
from millpond.model.types import FARTHEST_US
from millpond.model.windows import RUNNING, Session, Sliced, Sliding
from millpond.plan.options.first_complete_window import FirstWindow, first_window
from millpond.plan.upstream.rows_as_stream import bounds_of
from millpond.reconfigure.changes import Promote, change_of
from millpond.runtime.epoch import closed_until
from millpond.runtime.packets.row_batches import row_column
from millpond.runtime.rows.shadow_diff import NET, sum_net

_FEW, _PARTS = 1 << 20, 64
"""Up to this many rows, from up to this many records, are summed among themselves only, not with all others."""

_NONE = pa.table({NET: pa.array([], pa.int64())})


class ColumnDifference(NamedTuple):
    """A column in which rows of a query and its shadow differ: the number of pairs of rows with the same key, and the
    largest difference of two numbers; None: the column has no numbers, or no two have a finite difference but 0.

    `greater`, `less`: the number of pairs in which the number of the shadow is greater or less.
    """

    column: str
    rows: int
    largest: float | None = None
    greater: int = 0
    less: int = 0


class Difference(NamedTuple):
    """The rows that only the query emitted and those that only its shadow emitted, as JSON texts, and the number of
    rows that both emitted. A row that was emitted several times is repeated. Both lists begin with the rows of `pairs`.

    `n`: the last record that is included. `since`: the record after which the two are compared. `pairs`: the number of
    differing rows of the query for which the shadow has one row with the same window and key; `columns`: those in which
    these pairs differ. `first`: the first window that is compared; None: the query has no windows of a fixed size, or
    emits rows before they close. `closed_us`: the compared windows end by this watermark. Rows of later windows, which
    the other version may still emit, are left out if they show their window.
    """

    n: int
    same: int
    only_query: list[str]
    only_shadow: list[str]
    since: int = 0
    pairs: int = 0
    columns: tuple[ColumnDifference, ...] = ()
    first: FirstWindow | None = None
    closed_us: int | None = None


class ShadowComparison(ProcessFollower):
    """Follower that compares a query and its shadow from record `since` on. Keeps the differing rows in memory, and for
    some recent records also rows that have cancelled out since.

    Differing rows of one record are summed on their own first, because most rows are emitted by both in the same
    epoch. They are summed with the accumulated rows only when they are more than 2^20 rows and more than the
    accumulated ones, so each row is processed about four times.

    `manifest`: that at record `since`; windows that were closed then are not compared.
    """

    def __init__(
        self, query: str, shadow: str, read: ReadSection, since: int, manifest: Manifest | None = None
    ) -> None:
        super().__init__(f"compare:{query}", since)
        self._query, self._shadow = query, shadow
        self._rows = RowsReader(read, "differing")
        manifest = Manifest() if manifest is None else manifest
        self._begin(since, manifest, manifest)

    def _begin(self, n: int, manifest: Manifest, closed: Manifest) -> None:
        """Compare from record `n` on, at which the log is at `manifest`, but no window that was closed at `closed`."""
        self._since, self._manifest, self._begun, self._closed = n, manifest, manifest, closed
        self._compared = 0
        self._differing = [_NONE]

    def _take(self, record: Entry, manifest: Manifest) -> None:
        change = change_of(record.record.change) if isinstance(record.record, ChangeRecord) else None
        if isinstance(change, Promote) and change.name == self._query:
            if isinstance(change.since_us, int):  # from this window on, both emit their rows afterwards
                self._begin(record.n, manifest, Manifest())
            else:
                self._swap()
        self._manifest = manifest
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

    def difference(self, keys: Sequence[str] = (), closed: Callable[[pa.Table], Mask] | None = None) -> Difference:
        """The difference until now, without windows; rows are paired by the columns `keys`.

        `closed`: which of some differing rows are of windows that both versions have closed; None: all are.
        """
        with self._lock:
            if len(self._differing) > 1:
                self._differing = [_summed(self._differing)]
            [whole], n, compared = self._differing, self._reached.n, self._compared
        if closed is not None and len(whole):
            chosen = closed(whole)
            compared -= int(np.abs(whole[NET].to_numpy()[~chosen]).sum())
            whole = whole.filter(pa.array(chosen))
        pairs, columns = _by_column(whole, keys)
        texts = _texts(whole)  # without the lock: this takes seconds for a million rows, while epochs apply records
        summed = sum_net(pa.table({"text": texts, NET: whole[NET]}), texts)  # different bits may have the same text
        rows, net = ([] if summed is None else summed[name].to_pylist() for name in ("text", NET))
        only = [
            [row for row, count in zip(rows, net, strict=True) for _ in range(max(0, side * count))]
            for side in (1, -1)
        ]  # fmt: skip
        same = (compared - sum(map(len, only))) // 2
        if len(pairs):
            paired = (texts.take(pa.array(one)).to_pylist() for one in pairs.T)
            only = [_first(rows, first) for rows, first in zip(only, paired, strict=True)]
        return Difference(n, same, only[0], only[1], self._since, len(pairs), columns)

    def with_windows(self, spec: PondSpec) -> Difference:
        """The difference until now, with the windows that are compared."""
        by_name = {query.name: query for query in spec.all_queries}
        both = [by_name[self._query], by_name[self._shadow]]
        manifest = self._manifest  # rows of later records are left out below, as their windows end later
        closed = [time for query in both if (time := closed_until(query, manifest)) is not None]
        closed_us = min(closed) if len(closed) == len(both) else None
        begun = (closed_until(query, self._closed) for query in both)
        begun_us = max((time for time in begun if time is not None), default=-FARTHEST_US)
        found = self.difference(_keys(both), partial(_closed_rows, both=both, begun_us=begun_us, closed_us=closed_us))
        windows = [window for query in both if (window := self._first_window(query, spec)) is not None]
        return found._replace(first=max(windows) if len(windows) == len(both) else None, closed_us=closed_us)

    def _first_window(self, query: AnyQuery, spec: PondSpec) -> FirstWindow | None:
        if not isinstance(query, Query):
            return None
        from_us, closed_us = spec.since.get(query.name), closed_until(query, self._begun)
        if from_us is None and closed_us is not None and query.window != RUNNING and isinstance(query.window, Sliced):
            from_us = query.window.first_open(closed_us)
        return first_window(query, from_us, closed_us, spec.streams)


def _closed_rows(rows: pa.Table, both: Sequence[AnyQuery], begun_us: int, closed_us: int | None) -> Mask:
    """Which differing rows are of windows that end after `begun_us` and by `closed_us`; all if some show no window.

    Windows that one version had closed when the comparison began end by `begun_us`. The other one may still emit them.
    """
    chosen, last_us = np.ones(len(rows), bool), -FARTHEST_US if closed_us is None else closed_us
    net = rows[NET].to_numpy()
    for query, of_query in zip(both, (net > 0, net < 0), strict=True):
        ends = _ends_of(query, rows)
        if ends is None:
            return np.ones(len(rows), bool)
        chosen &= ~of_query | ((begun_us < ends) & (ends <= last_us))
    return chosen


def _ends_of(query: AnyQuery, rows: pa.Table) -> Ints | None:
    """The end of the window of each row; None if rows do not show it."""
    if not isinstance(query, Query) or not isinstance(query.window, Sliced | Session):
        return None
    columns = {bound: name for name, bound in bounds_of(query).items()}
    if bound := next((bound for bound in ("end", "time") if bound in columns), None):
        return _times(rows, columns[bound]) + (bound == "time")
    if "start" in columns and isinstance(query.window, Sliding):
        return _times(rows, columns["start"]) + query.window.size_us
    return None


def _times(rows: pa.Table, name: str) -> Ints:
    [batch] = rows.combine_chunks().to_batches()
    return np.asarray(row_column(batch, name).cast(pa.int64()))


def _keys(queries: Iterable[AnyQuery]) -> tuple[str, ...]:
    """The columns that identify a row in both versions; () if there are none, or the two have different ones."""
    try:
        found = {key_columns(query) for query in queries}
    except UnsupportedQuery:
        return ()
    return found.pop() if len(found) == 1 else ()


def _first(rows: list[str], first: list[str]) -> list[str]:
    """The rows in an order that begins with some of them."""
    others = Counter(rows)
    others.subtract(first)
    return [*first, *others.elements()]


def _by_column(rows: pa.Table, keys: Sequence[str]) -> tuple[npt.NDArray[np.int64], tuple[ColumnDifference, ...]]:
    """Pairs of positions of differing rows with the same key, which both sides have once, and where they differ."""
    if not len(rows) or not set(keys) <= set(rows.column_names) or not keys:
        return np.zeros((0, 2), np.int64), ()
    codes = json_objects(rows.select(keys), omit_nulls=False).dictionary_encode().indices.to_numpy()
    net, entries = rows[NET].to_numpy(), np.bincount(codes)
    place = [np.full(len(entries), -1) for _ in range(2)]
    for places, side in zip(place, (1, -1), strict=True):
        chosen = np.flatnonzero(net == side)
        places[codes[chosen]] = chosen
    paired = np.flatnonzero((entries == 2) & (place[0] >= 0) & (place[1] >= 0))
    pairs = np.stack([places[paired] for places in place], axis=1)
    sides = [rows.take(pa.array(one)) for one in pairs.T]
    differs = pc.not_equal(*map(_texts, sides))  # different bits may have the same text
    sides, pairs = [side.filter(differs) for side in sides], pairs[np.asarray(differs)]
    columns = (_in_column(name, *sides) for name in rows.column_names if name not in (*keys, NET))
    return pairs, tuple(column for column in columns if column.rows)


def _in_column(name: str, query: pa.Table, shadow: pa.Table) -> ColumnDifference:
    texts = [json_objects(side.select([name]), omit_nulls=False) for side in (query, shadow)]
    differs = pc.not_equal(*texts)
    numbers = [side[name].filter(differs) for side in (query, shadow)]
    return ColumnDifference(name, pc.sum(differs).as_py() or 0, *_differences(*numbers))


def _differences(query: pa.ChunkedArray, shadow: pa.ChunkedArray) -> tuple[float | None, int, int]:
    """The largest finite difference, and None for 0: -0.0 and 0.0 differ as texts only. Only the result is rounded.

    And in how many pairs the number of the shadow is greater, and less.
    """
    kind = query.type
    if pa.types.is_integer(kind):
        exact = pa.decimal256(20)
    elif pa.types.is_decimal(kind):
        exact = pa.decimal256(kind.precision, kind.scale)
    elif pa.types.is_floating(kind):
        exact = pa.float64()
    else:
        return None, 0, 0
    greater, less = (pc.sum(compare(shadow, query)).as_py() or 0 for compare in (pc.greater, pc.less))
    apart = pc.abs(pc.subtract(query.cast(exact), shadow.cast(exact)))
    if pa.types.is_floating(exact):
        apart = apart.filter(pc.is_finite(apart))
    largest = pc.max(apart).as_py()
    return float(largest) if largest else None, greater, less


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
