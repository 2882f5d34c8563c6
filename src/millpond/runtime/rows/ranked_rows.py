"""Rows of the first ranked events of each key until now: which of them an epoch emits, and which it deletes.

If rows show their key and `row_number()`, these identify a row, and a row that takes the place of another one is an
`upsert`. Otherwise the rows are a multiset, as in a retract stream of Flink: each `upsert` adds one row, and each
`delete` removes one of the rows with these values. So an event that is no longer among the first, or whose shown rank
changes, is a `delete`, even if an equal event is still among the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from millpond.arrays import Ints, Mask
from millpond.kernels.columns import Values, from_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.model.aggregates import Aggregate
from millpond.model.windows import Distinct
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.plan.groups.ranked_rows import numbered_rows, replaces_rows, shown_ranks
from millpond.plan.groups.top_rows import limited_rank
from millpond.runtime.event_log.event_order import POSITION, in_order
from millpond.runtime.event_log.rank_events import RankedEvents
from millpond.runtime.event_log.select_events import value_column
from millpond.runtime.packets.row_batches import RowBatch
from millpond.runtime.rows.frame_rows import DueFrames, rows_of_events
from millpond.runtime.rows.query_families import Family
from millpond.runtime.rows.window_rows import checked
from millpond.runtime.rows.window_updates import DELETE, UPSERT, with_operation
from millpond.state.keys.key_dictionary import KeyDictionary
from millpond.state.layout.event_log import Events


def first_ranked(events: Events, group: GroupPlan) -> Ints:
    """The positions of the events that are among the first of their key."""
    window = group.windows[0]
    assert isinstance(window, Distinct) and window.ranked is not None
    [ranks] = _ranks(events, group, [limited_rank(group.queries[0].query)])
    return np.flatnonzero(ranks <= window.ranked)


class RankedChanges:
    """The rows of some keys before and after an epoch.

    `every`: the events that were among the first ranked of their key before the epoch, then the new events. `old` and
    `chosen`: the positions in `every` of the first ranked events before and after the epoch.
    """

    def __init__(self, group: GroupPlan, every: Events, old: Ints, chosen: Ints) -> None:
        self._group = group
        named = np.isin(every.slots, every.slots[chosen[chosen >= len(old)]])
        self._events, positions = every.take(named), np.cumsum(named) - 1
        aggregates = group.queries[0].query.aggregates  # equal for all queries of a group
        self._before, self._after = np.zeros((2, len(aggregates), self._events.rows), np.int64)
        for ranks, choice in ((self._before, old), (self._after, chosen)):
            at = positions[choice[named[choice]]]
            ranks[:, at] = _ranks(self._events.take(at), group, aggregates)

    def batches(self, plan: QueryPlan, keys: KeyDictionary, buckets: int) -> Iterator[RowBatch]:
        """The rows of a query that changed.

        Raises:
            OverflowedError: HAVING or an output expression leaves its SQL type.
        """
        before, after = (self._meets(plan, ranks) for ranks in (self._before, self._after))
        shown, number = shown_ranks(plan.query), numbered_rows(plan.query)
        same = before & after & (self._before[shown] == self._after[shown]).all(axis=0)
        replaced = np.zeros(len(same), bool)
        if number is not None and replaces_rows(plan.query):
            old, new = (self._events.slots * (1 << 31) + ranks[number[1]] for ranks in (self._before, self._after))
            replaced = np.isin(old, new[after])
        changes = ((self._before, before & ~same & ~replaced, DELETE), (self._after, after & ~same, UPSERT))
        for ranks, changed, operation in changes:
            if changed.any():
                yield from self._rows(plan, ranks[0] > 0, changed, operation, keys, buckets)

    def _meets(self, plan: QueryPlan, ranks: Ints) -> Mask:
        """Which events have a row, given their values of each rank (0: they are not among the first)."""
        found: Mask = ranks[0] > 0
        at, having = np.flatnonzero(found), plan.query.having
        assert having is not None
        events, inputs = self._events.take(at), {f"agg:{i}": Values(rank[at]) for i, rank in enumerate(ranks)}
        for i, value in enumerate(plan.query.of_event):
            inputs[f"event:{i}"] = from_arrow(value_column(events, value), value.type)
        found[at] = checked(plan, Evaluator(inputs, len(at))(having)).is_true()
        return found

    def _rows(
        self, plan: QueryPlan, ranked: Mask, chosen: Mask, operation: str, keys: KeyDictionary, buckets: int
    ) -> Iterator[RowBatch]:
        events = self._events.take(ranked)
        order = _order(events, self._group)
        events, at = events.take(order), np.flatnonzero(chosen[ranked][order])
        times = events.times_us[at]
        lows, highs = ([bound] * (1 + len(self._before)) for bound in (at, at + 1))
        due = DueFrames(_at_one_time(events), lows, highs, at, times, times + 1)
        bare = msgspec.structs.replace(plan, query=msgspec.structs.replace(plan.query, having=None))
        found = rows_of_events(self._group, Family(self._group, [bare]), due, keys, buckets)
        for one in found.rows:
            yield RowBatch(one.owner, with_operation(one.rows, operation, None))


def _ranks(events: Events, group: GroupPlan, aggregates: Sequence[Aggregate]) -> Ints:
    """The ranks of each event among the events of its key, a row for each of `aggregates`."""
    order, found = _order(events, group), np.empty((len(aggregates), events.rows), np.int64)
    ranked = RankedEvents(aggregates, _at_one_time(events.take(order)), np.arange(events.rows))
    for ranks, aggregate in zip(found, aggregates, strict=True):
        ranks[order] = ranked.values(aggregate).data
    return found


def _order(events: Events, group: GroupPlan) -> Ints:
    """The order of the events of each key in which ties come."""
    assert group.events is not None
    position = np.asarray(in_order(events, group.events.values).columns[POSITION])
    return np.argsort(position)


def _at_one_time(events: Events) -> Events:
    """The events as those of one partition for each key; ranks are otherwise by key and time."""
    return events._replace(times_us=np.zeros(events.rows, np.int64))
