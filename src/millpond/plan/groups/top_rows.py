"""Finds queries that show only the first rows of each window, of which each task leaves out most before a shuffle.

HAVING of such a query limits a rank, as in `row_number() OVER (PARTITION BY w ORDER BY s DESC) <= 10`. A row that is
not among the first 10 of its task is not among the first 10 of all tasks, and no row that is needs it.
"""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from millpond.model.aggregates import NEIGHBOURS, RANKS, Aggregate
from millpond.model.expressions import Column, Expression, conjuncts_of
from millpond.model.query import Query
from millpond.plan.groups.filter_ladders import comparison_of
from millpond.plan.groups.plan import GroupPlan

Ordering: TypeAlias = tuple[tuple[Expression, str], ...]
"""The expressions of ORDER BY, each with one of `DIRECTIONS`."""

_MORE = {"le": 0, "eq": 0, "lt": -1}
"""Comparison of a rank with n -> what n is added to for the last rank that matters."""


class TopRows(NamedTuple):
    """The rows that a query needs of a partition: those whose `rank` is at most `rows`."""

    rank: Aggregate
    rows: int

    @property
    def distinct(self) -> bool:
        """Whether rows of equal rank count once."""
        return self.rank.function == "dense_rank"


def order_of(ordered: Aggregate) -> Ordering:
    """What a function of `ORDERED` orders by."""
    values = ordered.arguments[:-1] if ordered.function in NEIGHBOURS else ordered.arguments
    directions = ordered.parameters if isinstance(ordered.parameters, tuple) else ()
    return tuple((value, str(one.value)) for value, one in zip(values, directions, strict=False))


@lru_cache(1 << 10)
def top_rows(query: Query) -> TopRows | None:
    """The rows that a query needs of each partition; None: all.

    Its other functions must be right although the rows after the first ones are missing. Ranks and `lag` are if one
    ORDER BY begins with the other.
    """
    if not query.aggregates or any(one.filter or not _is_earlier(one) for one in query.aggregates):
        return None
    limited = dict[Aggregate, int]()
    for part in conjuncts_of(query.having):
        comparison = comparison_of(part)
        if comparison is None or comparison.op not in _MORE or not isinstance(comparison.value, Column):
            continue
        kind, _, place = comparison.value.name.partition(":")
        if kind == "agg" and isinstance(comparison.limit.value, int) and query.aggregates[int(place)].function in RANKS:
            rank, rows = query.aggregates[int(place)], max(comparison.limit.value + _MORE[comparison.op], 1)
            limited[rank] = min(rows, limited.get(rank, rows))
    fitting = (TopRows(*one) for one in limited.items() if all(_agree(one[0], other) for other in query.aggregates))
    return min(fitting, key=attrgetter("rows"), default=None)


def limited_rank(query: Query) -> Aggregate:
    """The rank of a query with ranked events up to which the events of a key have rows."""
    top = top_rows(query) if len(query.aggregates) > 1 else None
    return query.aggregates[0] if top is None else top.rank


def tops_of(group: GroupPlan) -> list[TopRows]:
    """The rows that each query of a group needs; empty if one of the queries needs all."""
    found = [top_rows(plan.query) if group.deduplicated is None else None for plan in group.queries]
    return [] if None in found else [one for one in found if one is not None]


def _is_earlier(ordered: Aggregate) -> bool:
    """Whether a function depends only on rows before its own; `lag` of a negative number depends on later ones."""
    if ordered.function != "lag" or not isinstance(ordered.parameters, tuple):
        return ordered.function in RANKS
    rows = ordered.parameters[len(order_of(ordered))].value
    return isinstance(rows, int) and rows >= 0


def _agree(rank: Aggregate, other: Aggregate) -> bool:
    short, long = sorted((order_of(rank), order_of(other)), key=len)
    return long[: len(short)] == short
