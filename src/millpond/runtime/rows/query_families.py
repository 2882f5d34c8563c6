"""Shares the computation of aggregates and rows among queries that differ only in their filters: query families."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask, ordered, repeated
from millpond.model.selection import foreign_above
from millpond.model.windows import Window
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log.event_aggregates import needs_events
from millpond.runtime.event_log.tallies import needs_tallies
from millpond.runtime.packets.row_batches import RowBatch
from millpond.runtime.windows.filter_chains import Chains
from millpond.state.keys.filter_signatures import Signatures

_COPIED = 1 << 22
"""The number of rows that are copied at once; it bounds memory."""


class QueryRows(NamedTuple):
    """The rows of some queries, and the number of rows that HAVING withheld, by query.

    `unread`: the number of rows of each query whose rows are not read, by its position among the queries.
    """

    rows: Sequence[RowBatch] = ()
    withheld: Mapping[str, int] = {}
    unread: Ints | None = None


class Family:
    """Queries that differ only in their filters, so their rows are computed together."""

    def __init__(self, group: GroupPlan, plans: Sequence[QueryPlan]) -> None:
        self.plans = plans
        self._group = group
        self._chains: tuple[Signatures, Chains] | None = None

    @property
    def first(self) -> QueryPlan:
        """One of the queries; used for the properties that all of them share."""
        return self.plans[0]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the queries."""
        return tuple(plan.query.name for plan in self.plans)

    @property
    def window(self) -> Window:
        """The window of all queries."""
        return self.first.query.window

    def chains(self, table: Signatures) -> Chains:
        """The chains of the queries, for the signatures in `table`."""
        if self._chains is None or self._chains[0] is not table:
            self._chains = table, Chains(self._group, self.plans, table)
        return self._chains[1]


_FORMER = 4
"""The most plans whose shape is cached, as a multiple of the number of a group's queries."""


def families(group: GroupPlan, plans: Sequence[QueryPlan]) -> list[Family]:
    """Divides `plans` into families; in a group without signatures, each query is a family of its own."""
    if not group.signed:
        return [Family(group, [plan]) for plan in plans]
    plans_by_shape: dict[_Shape, list[QueryPlan]] = {}
    shapes_of = _shapes_in(group.id)
    if len(shapes_of) > _FORMER * len(group.queries):
        shapes_of.clear()
    for plan in plans:
        if (shape := shapes_of.get(plan)) is None:
            shape = shapes_of[plan] = _shape_of(plan)
        plans_by_shape.setdefault(shape, []).append(plan)
    return [Family(group, members) for members in plans_by_shape.values()]


class _Shape(msgspec.Struct, frozen=True, cache_hash=True):
    """The properties that the queries of a family share; `single_query`: the name of a query that is its own family."""

    single_query: str
    common: tuple[Hashable, ...] = ()


@lru_cache(64)
def _shapes_in(_group: str) -> dict[QueryPlan, _Shape]:
    """The cache of a group's shapes, by plan.

    Plans stay the same from epoch to epoch, unless rows set a parameter. `families` clears the cache when it contains
    too many former plans.
    """
    return {}


def _shape_of(plan: QueryPlan) -> _Shape:
    query = plan.query
    # its events are selected by the filters of one query, or Spark evaluates expressions of its results
    if needs_events(plan) or needs_tallies(plan) or foreign_above(query):
        return _Shape(query.name)
    aggregates = tuple(msgspec.structs.replace(aggregate, filter=None) for aggregate in query.aggregates)
    common = query.window, plan.delay, plan.from_us, plan.before_us
    return _Shape("", (*common, aggregates, query.having, query.output, query.serve))


class Shares(NamedTuple):
    """Results that several queries share: result i belongs to the queries at `first[i]` … `until[i]` - 1 of `order`.

    `order` has positions of queries.
    """

    first: Ints
    until: Ints
    order: Ints

    @staticmethod
    def of_one(count: int) -> Shares:
        """The shares of `count` results of a single query."""
        return Shares(np.zeros(count, np.int64), np.ones(count, np.int64), np.zeros(1, np.int64))

    def take(self, rows: Ints) -> Shares:
        """Some of the results."""
        return Shares(self.first[rows], self.until[rows], self.order)

    def counts(self) -> Ints:
        """The number of results of each query, by its position."""
        if len(self.order) == 1:
            return np.array([np.count_nonzero(self.first < self.until)])
        counts = np.empty(len(self.order), np.int64)
        counts[self.order] = self._by_place()
        return counts

    def _by_place(self) -> Ints:
        size = len(self.order) + 1
        changes = np.bincount(self.first, minlength=size) - np.bincount(self.until, minlength=size)
        counts: Ints = np.cumsum(changes)[:-1]
        return counts

    def split(self, rows: pa.RecordBatch, read: Mask) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The position and the rows of each query that is `read` and has rows, in the order of results.

        `rows` has one row per result.
        """
        if len(self.order) == 1:
            if read[0] and rows.num_rows:
                yield 0, rows
            return
        before = np.concatenate([[0], np.cumsum(read[self.order])])
        read_shares = Shares(before[self.first], before[self.until], self.order[read[self.order]])
        ends, first = np.cumsum(read_shares._by_place()), 0
        while first < len(ends):
            done = int(ends[first - 1]) if first else 0
            end = max(first + 1, int(np.searchsorted(ends, done + _COPIED, "right")))
            yield from read_shares._split_part(rows, first, end)
            first = end

    def _split_part(self, rows: pa.RecordBatch, first: int, end: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Like `split`, for the places `first` … `end` - 1 of `order`, whose queries are all read."""
        results_in_range = np.flatnonzero((self.first < end) & (self.until > first) & (self.first < self.until))
        begins = np.maximum(self.first[results_in_range], first)
        results, nth = repeated(np.minimum(self.until[results_in_range], end) - begins)
        places = begins[results] + nth
        order = ordered(places)
        results = results_in_range[results[order]]
        bounds = np.searchsorted(places[order], np.arange(first, end + 1)).tolist()
        for place, (low, high) in enumerate(pairwise(bounds), first):
            if low < high:
                yield int(self.order[place]), rows.take(pa.array(results[low:high]))
