"""Tallies in the plan: which values are counted by bins, so that percentiles need no individual events."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from millpond.model.aggregates import ACCURACY, PERCENTILE, Aggregate
from millpond.model.expressions import Expression, call
from millpond.model.query import Query
from millpond.model.types import digits_of, is_decimal, is_number
from millpond.model.windows import Sliding
from millpond.plan.groups.event_log import logged_rows

FINEST_BITS = 9
"""A bin is a 2**9th of a power of two at least: a number is within 0.1 % of it."""
_LONG_DIGITS = 18
"""Decimals of at most so many digits are binned: their unscaled values fit an int64."""


class Tally(msgspec.Struct, frozen=True):
    """A value, told by its bins of `bits`, counted for each of the filters that some query has, each once."""

    value: Expression
    bits: int
    filters: tuple[Expression, ...]


@lru_cache(1 << 14)
def keeps_tallies(query: Query) -> bool:
    """Whether the query is answered from tallies: its windows are cut into slices, and nothing needs its events."""
    asked = [aggregate for aggregate in query.aggregates if aggregate.logged]
    sliced = isinstance(query.window, Sliding) and query.deduplicated is None
    return bool(asked) and sliced and all(map(binnable, asked))


def binnable(aggregate: Aggregate) -> bool:
    """Whether the aggregate can be answered from tallies."""
    if aggregate.function != PERCENTILE or aggregate.argument is None:
        return False
    kind = aggregate.argument.type
    return digits_of(kind).precision <= _LONG_DIGITS if is_decimal(kind) else is_number(kind)


def tallied(aggregate: Aggregate) -> Aggregate:
    """The percentile as one of bins: what takes its events, and by what they are counted."""
    assert aggregate.argument is not None
    return msgspec.structs.replace(aggregate, argument=call("bin", (aggregate.argument,), "int"))


def bits_of(aggregate: Aggregate) -> int:
    """The fewest bits of bins that are as narrow as the accuracy asks, or the most that there are.

    >>> [bits_of(Aggregate(PERCENTILE, None, None, "double", accuracy=n)) for n in (1, 10, 100, 1000, 10_000)]
    [1, 3, 6, 9, 9]
    """
    asked = ACCURACY if isinstance(aggregate.accuracy, msgspec.UnsetType) else aggregate.accuracy
    return next((bits for bits in range(1, FINEST_BITS) if error_of(bits) * asked <= 1), FINEST_BITS)


def error_of(bits: int) -> float:
    """How far a number is from the one that its bin stands for, at most, as a part of it."""
    return 1 / ((2 << bits) + 1)


def tallies_of(asked: Iterable[tuple[Query, Expression | None]]) -> tuple[Tally, ...]:
    """What a group counts for queries, given with the filter of their rows: each value once, as fine as any asks."""
    bits: dict[Expression, int] = {}
    filters: dict[Expression, dict[Expression, None]] = {}
    for query, presence in asked:
        for aggregate in query.aggregates if keeps_tallies(query) else ():
            if not aggregate.logged:
                continue
            made = tallied(aggregate)
            value, rows = made.arguments[0], logged_rows(made, presence)
            assert rows is not None  # it skips NULL
            bits[value] = max(bits_of(aggregate), bits.get(value, 0))
            filters.setdefault(value, {})[rows] = None
    return tuple(Tally(value, bits[value], tuple(filters[value])) for value in bits)
