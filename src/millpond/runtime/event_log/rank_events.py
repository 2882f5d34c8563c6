"""Ranks events among the events of their key and time: `row_number`, `rank` and `dense_rank`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from millpond.arrays import Ints, Mask
from millpond.kernels.columns import Values
from millpond.kernels.ranks import directed, ranks, signs
from millpond.model.aggregates import RANKS, Aggregate
from millpond.model.expressions import Expression
from millpond.model.types import has_floats
from millpond.plan.groups.top_rows import Ordering, order_of
from millpond.runtime.event_log.select_events import value_column
from millpond.state.layout.event_log import Events


class _Sorted(NamedTuple):
    """Events in an order within their partitions: position `places[i]` of the events comes i-th.

    `first`: where the partition of the i-th event begins. `changes[j]`: where an event differs from the previous one in
    the first j expressions of `by`, or begins a partition.
    """

    by: Ordering
    places: Ints
    first: Ints
    changes: list[Mask]


class RankedEvents:
    """The ranks of the events at `at`; `events` has all events of their keys and times.

    One sort by (key, time, order) answers all partitions at once. It also answers every rank whose ORDER BY begins in
    the same way, so equal orders are sorted once.
    """

    def __init__(self, aggregates: Sequence[Aggregate], events: Events, at: Ints) -> None:
        self._events, self._at = events, at
        self._orders = sorted((order_of(one) for one in aggregates if one.function in RANKS), key=len, reverse=True)
        self._codes: dict[Expression, Ints] = {}
        self._sorted: dict[Ordering, _Sorted] = {}

    def values(self, aggregate: Aggregate) -> Values:
        """The ranks of one aggregate."""
        by = order_of(aggregate)
        found = self._in_order(next(one for one in self._orders if one[: len(by)] == by))
        numbers = np.arange(len(found.places))
        differs = found.changes[len(by)]
        if aggregate.function == "rank":
            numbers = np.maximum.accumulate(np.where(differs, numbers, 0))
        elif aggregate.function == "dense_rank":
            numbers = np.cumsum(differs)
        result = np.empty(len(numbers), np.int64)
        result[found.places] = numbers - (numbers[found.first] if aggregate.function == "dense_rank" else found.first)
        return Values(result[self._at] + 1)

    def _in_order(self, by: Ordering) -> _Sorted:
        if by not in self._sorted:
            keys = [directed(self._codes_of(value), direction) for value, direction in by]
            zeros = [signs(value_column(self._events, value), value.type) for value, _ in by if has_floats(value.type)]
            partitions = [self._events.times_us, self._events.slots.astype(np.int64)]
            # the two zeros only differ where all else is equal, so that `row_number` is the same in every cut
            places = np.lexsort((*zeros, *(key for one in reversed(keys) for key in one), *partitions))
            changes = [_changes(partitions, places)]
            for one in keys:
                changes.append(changes[-1] | _changes(one, places))
            first = np.maximum.accumulate(np.where(changes[0], np.arange(len(places)), 0))
            self._sorted[by] = _Sorted(by, places, first, changes)
        return self._sorted[by]

    def _codes_of(self, value: Expression) -> Ints:
        if value not in self._codes:
            self._codes[value] = ranks(value_column(self._events, value), value.type)
        return self._codes[value]


def _changes(keys: Sequence[Ints], order: Ints) -> Mask:
    """Where a sorted event differs in a key from the previous one."""
    changes = np.zeros(len(order), bool)
    changes[:1] = True
    for key in keys:
        sorted_key = key[order]
        changes[1:] |= sorted_key[1:] != sorted_key[:-1]
    return changes
