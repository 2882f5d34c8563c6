"""The only writer of rows in a fold: counts them, compares them with those of a shadow, and adds them to the delta.

Every producer of rows makes `RowBatch`es: closed windows, sessions and frames, updating results, joins, stateless
queries, late events, dead letters, and differences to a shadow. Batches of one kind and owner become one section:

| kind        | rows of                                                     | read by                                  |
|-------------|-------------------------------------------------------------|------------------------------------------|
| `rows`      | a query; updates and corrections have an operation column   | sinks, view, queries over it, parameters |
| `late`      | a query's late events                                       | the late sink                            |
| `dead`      | malformed records, and events whose computed time is NULL   | the sink of dead letters                 |
| `differing` | a query or its shadow that only one of both emitted         | the shadow report                        |

Rows of a query are held until all of them are known (`flush`), because a query that fails emits none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints, Mask
from millpond.errors import MillpondError, OverflowedError, TooManyPairsError, UserFunctionError
from millpond.model.expressions import Literal, is_list, literal
from millpond.model.selection import AnyQuery
from millpond.plan.options.live_parameters import MOST_MEMBERS
from millpond.plan.upstream.parameter_feeds import Feed, Share, fed_type, merged
from millpond.runtime.packets.row_batches import RowBatch, RowKind, row_column, rows_stream, section_group
from millpond.runtime.rows.query_families import QueryRows
from millpond.runtime.rows.shadow_diff import ShadowDiff
from millpond.runtime.task.counters import Counters, stream_counts
from millpond.runtime.task.task_values import FoldTask
from millpond.state.layout.delta import DeltaWriter


class RowWriter:
    """Writes the rows of one fold; `reasons`: why queries failed, where it is not the usual reason."""

    def __init__(self, task: FoldTask, delta: DeltaWriter, counters: Counters) -> None:
        self.reasons: dict[str, str] = {}
        self._task, self._delta, self._counters = task, delta, counters
        self._failed: set[str] = set()
        self._queries: dict[str, AnyQuery] = {query.name: query for query in task.plan.all_queries}
        self._selections = {selection.name for selection in task.plan.selections}
        self._feeding_queries = {feed.query for feed in task.feeds}
        self._shadow_diff = ShadowDiff(task.plan, task.quarantined)
        self._buffered: dict[tuple[RowKind, str], list[pa.RecordBatch]] = {}
        self._unread: dict[str, int] = {}
        self._unread_of: dict[tuple[str, ...], Ints] = {}
        self._read: dict[str, bool] = {}
        self._masks: dict[tuple[str, ...], Mask] = {}

    def is_active(self, query: str) -> bool:
        """Whether a query has failed neither in this epoch nor in an earlier one."""
        return query not in self._task.quarantined and query not in self._failed

    def is_read(self, query: str) -> bool:
        """Whether the rows of a query are emitted, set a parameter, or are compared with a shadow."""
        if query not in self._read:
            self._read[query] = (
                self._is_emitted(query) or query in self._shadow_diff.names
                or self._task.replaced.get(query, query) in self._feeding_queries
            )  # fmt: skip
        return self._read[query]

    def are_read(self, queries: tuple[str, ...]) -> Mask:
        """See `is_read`, for each of the queries."""
        if queries not in self._masks:
            self._masks[queries] = np.array([self.is_read(query) for query in queries])
        return self._masks[queries]

    def collect(self, queries: tuple[str, ...], make: Callable[[], QueryRows]) -> bool:
        """Hold the rows of some queries that `make` returns; False if one of the queries raised an error.

        A query that raises an error alone has failed: its rows are dropped.
        """
        try:
            query_rows = make()
        except (OverflowedError, UserFunctionError, TooManyPairsError) as error:
            if len(queries) == 1:
                self._give_up(queries[0], error)
            return False
        for query, rows in query_rows.withheld.items():
            self._counters.of(query).withheld += rows
        if query_rows.unread is not None:
            self._unread_of[queries] = self._unread_of.get(queries, 0) + query_rows.unread
        self.hold(query_rows.rows)
        return True

    def hold(self, batches: Iterable[RowBatch]) -> None:
        """Hold rows until `flush`; rows of a query that nobody reads are only counted."""
        for batch in batches:
            if batch.kind == "rows" and not self.is_read(batch.owner):
                self._unread[batch.owner] = self._unread.get(batch.owner, 0) + batch.rows.num_rows
            else:
                self._buffered.setdefault((batch.kind, batch.owner), []).append(batch.rows)

    def flush(self) -> None:
        """Write the rows that are held, one section per query and kind, and count all rows."""
        for (kind, owner), batches in self._buffered.items():
            self._write(kind, owner, batches)
        for queries, counted in self._unread_of.items():
            for at in np.flatnonzero(counted).tolist():
                if self.is_active(queries[at]):
                    self._unread[queries[at]] = self._unread.get(queries[at], 0) + int(counted[at])
        for query, rows in self._unread.items():
            self._counters.of(query).rows += rows
        self._buffered, self._unread, self._unread_of = {}, {}, {}

    def write(self, batches: Iterable[RowBatch]) -> None:
        """Write rows of queries that cannot fail any more; those of one query and kind follow each other."""
        for _, run in groupby(batches, key=lambda batch: (batch.kind, batch.owner)):
            self.hold(run)
            self.flush()

    def finish(self) -> None:
        """Write the differences of queries and their shadows, when the rows of both are complete."""
        self.write(self._shadow_diff.batches())

    def _give_up(self, query: str, error: MillpondError) -> None:
        self._failed.add(query)
        self._counters.of(query).raised = 1
        if not isinstance(error, OverflowedError):  # the record of the epoch states the usual reason
            self.reasons[query] = str(error)
        self._buffered.pop(("rows", query), None)
        self._unread.pop(query, None)

    def _is_emitted(self, name: str) -> bool:
        """Whether the rows of a query are read after they are written: by the view, a sink or another query."""
        query = self._queries[name]
        return query.serve or not query.sink.goes_nowhere or name in self._task.upstream_queries

    def _write(self, kind: RowKind, owner: str, batches: Sequence[pa.RecordBatch]) -> None:
        rows = sum(batch.num_rows for batch in batches)
        self._count(kind, owner, rows)
        group, info = section_group(kind, owner), dict[str, str]()
        if kind == "rows":
            self._feed(owner, batches)
            self._shadow_diff.add(owner, batches)
            if not self._is_emitted(owner):
                return
            if owner in self._task.replaced:
                group, info = self._task.replaced[owner], {"version": owner}
        self._delta.add(kind, group, rows_stream(batches), rows, info)

    def _count(self, kind: RowKind, owner: str, rows: int) -> None:
        if kind == "rows" and owner not in self._selections:  # the gather has counted rows of stateless queries
            self._counters.of(owner).rows += rows
        elif kind == "late":
            self._counters.of(owner).late_rows += rows
        elif kind == "dead":
            self._counters.of(stream_counts(owner)).dead_letters += rows

    def _feed(self, query: str, batches: Sequence[pa.RecordBatch]) -> None:
        """Add what the rows of a query, or of a version of it, give to parameters."""
        name = self._task.replaced.get(query, query)
        for feed in self._task.feeds:
            share = share_of(feed, batches) if feed.query == name else None
            if share is not None:
                self._delta.fed[feed.name] = merged(self._delta.fed.get(feed.name), share)


def share_of(feed: Feed, batches: Sequence[pa.RecordBatch]) -> Share | None:
    """The value that one instance's rows of a query give a parameter: the newest time and the values at it, as texts.

    NULL and NaN are ignored. Of several values at the newest time, a parameter that is no list takes the largest. The
    values are None if there are more than `MOST_MEMBERS`; the result is None if there are no rows.
    """
    rows = [batch for batch in batches if batch.num_rows]
    if not rows:
        return None
    times = np.concatenate([np.asarray(row_column(batch, feed.time).cast(pa.int64())) for batch in rows])
    values = pa.concat_arrays([batch.column(feed.column) for batch in rows])
    newest = values.filter(pa.array(times == times.max())).unique().drop_null()
    if pa.types.is_floating(newest.type):
        newest = newest.filter(pc.invert(pc.is_nan(newest)))
    kind = fed_type(Literal(None, feed.kind))
    if not is_list(feed.kind) and len(newest):
        newest = pa.array([max(newest.to_pylist())], newest.type)
    if len(newest) > MOST_MEMBERS:
        return int(times.max()), None
    return int(times.max()), [str(literal(value, kind).text) for value in newest.to_pylist()]
