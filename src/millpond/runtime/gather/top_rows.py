"""Leaves out the rows of a chunk that cannot be among the first of their window or key, before they are sent.

A chunk has the rows that one task gathers, so of 100,000 keys per window each task sends only its own first 10. The
ranks are computed by the instance that receives the rows of all tasks (`runtime.event_log.rank_events`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from millpond.arrays import Ints, Mask, distinct_rows
from millpond.kernels.ranks import changed, directed, ranks
from millpond.model.expressions import Expression
from millpond.plan.groups.build import presence_filter
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.plan import GroupPlan
from millpond.plan.groups.ranked_rows import counted_rows
from millpond.plan.groups.top_rows import order_of, tops_of
from millpond.runtime.event_log.select_events import LoggedRows

SortKey: TypeAlias = Callable[[Ints], list[Ints]]
"""Sort keys of an expression of ORDER BY for the rows at some positions, the major one last."""


def keep_first_rows(group: GroupPlan, logged: LoggedRows, codes: Ints, times_us: Ints, late: Ints) -> dict[str, int]:
    """Drops rows of `logged` that no query of the group shows; returns how many rows each query thereby withholds.

    `codes`, `times_us` and `late` are the key, event time and late class of each row of the group.
    """
    counted = counted_rows(group.windows[0])
    if counted is not None:
        logged.index = _first_events(group.events, logged, codes[logged.index], counted)
    tops = tops_of(group)
    if not tops:
        return {}
    ever = group.kind == "top"  # ranks of all events until now
    partitions = distinct_rows([codes] if ever else [codes, times_us])[1]
    is_first, taken_by = np.zeros(len(codes), bool), list[Mask]()
    for plan, top in zip(group.queries, tops, strict=True):
        taken_by.append((late <= plan.delay) & logged.passing(presence_filter(plan.query)))
        rows_taken = np.flatnonzero(taken_by[-1])
        keys = [partial(_sort_keys, logged, rows_taken, *one) for one in order_of(top.rank)]
        is_first[rows_taken[first_rows(partitions[rows_taken], keys, top.rows, distinct=top.distinct)]] = True
    logged.index = np.flatnonzero(is_first)
    if ever:
        return {}
    pairs = zip(group.queries, taken_by, strict=True)
    dropped = {plan.query.name: rows & ~is_first & (times_us >= plan.from_us) for plan, rows in pairs}
    return {name: int(np.count_nonzero(rows)) for name, rows in dropped.items() if rows.any()}


def _first_events(log: LogPlan | None, logged: LoggedRows, codes: Ints, rows: int) -> Ints:
    """The rows of `logged` that are among the first of their key (`codes`), in the order of their state."""
    assert log is not None
    some = logged.index
    known = logged.order(some)
    keys: list[SortKey] = [partial(_sort_keys, logged, some, value, "asc nulls first") for value in log.values]
    if known is not None:
        places, offsets = ranks(known[0], "string"), known[1]
        keys = [lambda chosen: [places[chosen]], lambda chosen: [offsets[chosen]]]
    return some[first_rows(codes, keys, rows)]


def first_rows(partitions: Ints, keys: Sequence[SortKey], rows: int, *, distinct: bool = False) -> Ints:
    """The positions of rows that are among the first of their partition (numbered from 0), and perhaps of some more.

    `distinct`: rows that are equal in all keys count once. A row that is not among the first by a part of the keys is
    not among them by all. So a key is only computed for the rows that are left by the previous ones.
    """
    candidates = np.arange(len(partitions))
    sort_keys, enough = [partitions], 2 * rows * (int(partitions.max()) + 1) if len(partitions) else 0
    for key in keys:
        if len(candidates) <= enough:
            break
        sort_keys = [*key(candidates), *sort_keys]
        order = np.lexsort(sort_keys)
        begins = changed(sort_keys[-1:], order)
        differs = begins | changed(sort_keys[:-1], order)
        numbers = np.cumsum(differs) if distinct else np.maximum.accumulate(np.where(differs, np.arange(len(order)), 0))
        first = order[numbers - np.maximum.accumulate(np.where(begins, numbers, 0)) < rows]
        candidates, sort_keys = candidates[first], [one[first] for one in sort_keys]
    return candidates


def _sort_keys(logged: LoggedRows, some: Ints, value: Expression, direction: str, chosen: Ints) -> list[Ints]:
    return directed(ranks(logged.values(value, some[chosen]), value.type), direction)
