"""Computes functions of the events of a key and time in an order: ranks, shares and neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints, Mask
from millpond.kernels.columns import Values, from_arrow, to_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.kernels.ranks import changed, directed, ranks, signs
from millpond.model.aggregates import IGNORE_NULLS, NEIGHBOURS, ORDERED, Aggregate
from millpond.model.expressions import Expression, Literal, literal
from millpond.model.types import has_floats
from millpond.plan.groups.top_rows import Ordering, order_of
from millpond.runtime.event_log.select_events import value_column
from millpond.state.layout.event_log import Events

Floats: TypeAlias = npt.NDArray[np.float64]


class _Sorted(NamedTuple):
    """Events in an order within their partitions: position `places[i]` of the events comes i-th.

    `first`: where the partition of the i-th event begins. `changes[j]`: where an event differs from the previous one in
    the first j expressions of `by`, or begins a partition.
    """

    by: Ordering
    places: Ints
    first: Ints
    changes: list[Mask]

    def ends(self, begins: Mask) -> Ints:
        """Where the run of events ends that begins with the last of `begins`."""
        starts = np.flatnonzero(begins)
        ends: Ints = np.append(starts[1:], len(begins))[np.cumsum(begins) - 1]
        return ends

    def frame_ends(self, frame: Literal, tied: Literal) -> Ints:
        """Where the frame of each event ends, one of `FRAMES`; `tied`: the expressions that ties are equal in."""
        if frame.value == "rows":
            return np.arange(len(self.places)) + 1
        return self.ends(self.changes[int(str(tied.value)) if frame.value == "peers" else 0])

    @property
    def sizes(self) -> Ints:
        """The number of events in the partition of each event."""
        return self.ends(self.changes[0]) - self.first


class RunningTotal(NamedTuple):
    """An aggregate over runs of sorted events: `places` are positions of events in their order.

    The value of the i-th event of this order is that of the events from `lows[i]` to `highs[i]` - 1 of it, and `rows`
    are the events of which values are needed, as positions in this order.
    """

    aggregate: Aggregate
    places: Ints
    lows: Ints
    highs: Ints
    rows: Ints


class RankedEvents:
    """The values of functions of `ORDERED` for the events at `at`; `events` has all events of their keys and times.

    One sort by (key, time, order) answers all partitions at once. It also answers every function whose ORDER BY begins
    in the same way, so equal orders are sorted once.
    """

    def __init__(self, aggregates: Sequence[Aggregate], events: Events, at: Ints) -> None:
        self._events, self._at = events, at
        self._orders = sorted((order_of(one) for one in aggregates if one.function in ORDERED), key=len, reverse=True)
        self._codes: dict[Expression, Ints] = {}
        self._sorted: dict[Ordering, _Sorted] = {}

    def total(self, aggregate: Aggregate) -> RunningTotal:
        """What a `running_total` computes."""
        found = self._sorted_for(aggregate)
        function, *frame = _constants(aggregate)
        plain = Aggregate(str(function.value), aggregate.arguments[-1], None, aggregate.type)
        positions = np.empty(len(found.places), np.int64)
        positions[found.places] = np.arange(len(positions))
        return RunningTotal(plain, found.places, found.first, found.frame_ends(*frame[:2]), positions[self._at])

    def _sorted_for(self, aggregate: Aggregate) -> _Sorted:
        by = order_of(aggregate)
        return self._in_order(next(one for one in self._orders if one[: len(by)] == by))

    def values(self, aggregate: Aggregate) -> Values:
        """The values of one function, which is no `running_total`."""
        by, found = order_of(aggregate), self._sorted_for(aggregate)
        if aggregate.function in NEIGHBOURS:
            return self._neighbours(aggregate, found)
        values = _FUNCTIONS[aggregate.function](aggregate, found, found.changes[len(by)])
        result = np.empty(len(values), values.dtype)
        result[found.places] = values
        return Values(result[self._at])

    def _neighbours(self, aggregate: Aggregate, partition: _Sorted) -> Values:
        """The value of another event of the partition, or what the function returns without one."""
        amount, last, *more = _constants(aggregate)
        assert isinstance(amount.value, int)
        number, places, ends = amount.value, np.arange(len(partition.places)), partition.ends(partition.changes[0])
        values, others = value_column(self._events, aggregate.arguments[-1]), np.empty(len(places), np.int64)
        valued = None
        if more and more[-1].value == IGNORE_NULLS:
            valued = np.asarray(values.is_valid())[partition.places]
        if aggregate.function == "nth_value":
            instead, ends = literal(None, aggregate.type), partition.frame_ends(last, more[0])
            targets = _counted(valued, partition.first if number > 0 else ends, number)
        else:
            number, instead = number if aggregate.function == "lead" else -number, last
            targets = _counted(valued, places + (number > 0), number) if number else places
        exists = (targets >= partition.first) & (targets < ends)
        others[partition.places] = np.where(exists, partition.places[np.where(exists, targets, 0)], -1)
        own = others[self._at]
        column = values.take(pa.array(own, mask=own < 0))
        if instead.text is not None:
            constant = to_arrow(Evaluator({}, len(own))(instead), aggregate.type, len(own))
            column = pc.if_else(pa.array(own < 0), constant, column)
        return from_arrow(column, aggregate.type)

    def _in_order(self, by: Ordering) -> _Sorted:
        if by not in self._sorted:
            keys = [directed(self._codes_of(value), direction) for value, direction in by]
            zeros = [signs(value_column(self._events, value), value.type) for value, _ in by if has_floats(value.type)]
            partitions = [self._events.times_us, self._events.slots.astype(np.int64)]
            # the two zeros only differ where all else is equal, so that `row_number` is the same in every cut
            places = np.lexsort((*zeros, *(key for one in reversed(keys) for key in one), *partitions))
            changes = [changed(partitions, places)]
            for one in keys:
                changes.append(changes[-1] | changed(one, places))
            first = np.maximum.accumulate(np.where(changes[0], np.arange(len(places)), 0))
            self._sorted[by] = _Sorted(by, places, first, changes)
        return self._sorted[by]

    def _codes_of(self, value: Expression) -> Ints:
        if value not in self._codes:
            self._codes[value] = ranks(value_column(self._events, value), value.type)
        return self._codes[value]


def _counted(valued: Mask | None, start: Ints, number: int) -> Ints:
    """The place of the event that is `number` events from `start` on, or before it if `number` is negative.

    The first event from `start` on is number 1, the last one before it is number -1. `valued`: only these events count.
    Where there is no such event, the place is outside of all places.
    """
    if valued is None:
        return start + (number - 1 if number > 0 else number)
    before = np.concatenate([[0], np.cumsum(valued)])[start] + (number - 1 if number > 0 else number)
    places = np.append(np.flatnonzero(valued), len(valued))
    found: Ints = np.where(before < 0, -1, places[np.clip(before, 0, len(places) - 1)])
    return found


def _constants(aggregate: Aggregate) -> tuple[Literal, ...]:
    """The parameters after the directions."""
    assert isinstance(aggregate.parameters, tuple)
    return aggregate.parameters[len(order_of(aggregate)) :]


def _row_number(_: Aggregate, found: _Sorted, __: Mask) -> Ints:
    return np.arange(len(found.places)) - found.first + 1


def _rank(_: Aggregate, found: _Sorted, differs: Mask) -> Ints:
    return np.maximum.accumulate(np.where(differs, np.arange(len(differs)), 0)) - found.first + 1


def _dense_rank(_: Aggregate, found: _Sorted, differs: Mask) -> Ints:
    numbers: Ints = np.cumsum(differs)
    number: Ints = numbers - numbers[found.first] + 1
    return number


def _percent_rank(aggregate: Aggregate, found: _Sorted, differs: Mask) -> Floats:
    return (_rank(aggregate, found, differs) - 1) / np.maximum(found.sizes - 1, 1)


def _cume_dist(_: Aggregate, found: _Sorted, differs: Mask) -> Floats:
    return (found.ends(differs) - found.first) / found.sizes


def _ntile(aggregate: Aggregate, found: _Sorted, _: Mask) -> Ints:
    """Parts of equal size; the first ones have one event more, if the events cannot be divided equally."""
    parts = _constants(aggregate)[0].value
    assert isinstance(parts, int)
    place, (size, longer) = np.arange(len(found.places)) - found.first, np.divmod(found.sizes, parts)
    rest = place - longer * (size + 1)
    tile: Ints = np.where(rest < 0, place // (size + 1), longer + rest // np.maximum(size, 1)) + 1
    return tile


_FUNCTIONS = {
    "row_number": _row_number, "rank": _rank, "dense_rank": _dense_rank, "percent_rank": _percent_rank,
    "cume_dist": _cume_dist, "ntile": _ntile,
}  # fmt: skip
"""For each event in the order, its result; the last argument says where an event differs from the previous one."""
