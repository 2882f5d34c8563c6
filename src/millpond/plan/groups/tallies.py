"""Tallies: for each bin of a value, how many events fell into it; approximate percentiles need only these counts.

Decides which queries tallies can answer, and plans the tallies of a group.
"""

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
"""The finest bins split each power of two into 2**9 parts, so a value is within 0.1 % of its bin."""
_LONG_DIGITS = 18
"""The most digits of a decimal that is binned: its unscaled value fits an int64."""


class Tally(msgspec.Struct, frozen=True):
    """A value whose bins of `bits` bits are counted once for each distinct filter of its queries."""

    value: Expression
    bits: int
    filters: tuple[Expression, ...]


@lru_cache(1 << 14)
def keeps_tallies(query: Query) -> bool:
    """Whether tallies can answer the query: its windows are made of slices, and no aggregate needs single events."""
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
    """The percentile as an aggregate over bins, with the filter of its events and the value that is binned."""
    assert aggregate.argument is not None
    return msgspec.structs.replace(aggregate, argument=call("bin", (aggregate.argument,), "int"))


def bits_of(aggregate: Aggregate) -> int:
    """The fewest bits whose bins are as narrow as the accuracy requires; at most `FINEST_BITS`.

    >>> [bits_of(Aggregate(PERCENTILE, None, None, "double", accuracy=n)) for n in (1, 10, 100, 1000, 10_000)]
    [1, 3, 6, 9, 9]
    """
    asked = ACCURACY if isinstance(aggregate.accuracy, msgspec.UnsetType) else aggregate.accuracy
    return next((bits for bits in range(1, FINEST_BITS) if error_of(bits) * asked <= 1), FINEST_BITS)


def error_of(bits: int) -> float:
    """The largest relative error between a value and the value that represents its bin."""
    return 1 / ((2 << bits) + 1)


def tallies_of(asked: Iterable[tuple[Query, Expression | None]]) -> tuple[Tally, ...]:
    """The tallies of a group, from its queries and their row filters: each value once, with the finest bins needed."""
    bits: dict[Expression, int] = {}
    filters: dict[Expression, dict[Expression, None]] = {}
    for query, presence in asked:
        for aggregate in query.aggregates if keeps_tallies(query) else ():
            if not aggregate.logged:
                continue
            made = tallied(aggregate)
            value, rows = made.arguments[0], logged_rows(made, presence)
            assert rows is not None  # percentiles skip NULL
            bits[value] = max(bits_of(aggregate), bits.get(value, 0))
            filters.setdefault(value, {})[rows] = None
    return tuple(Tally(value, bits[value], tuple(filters[value])) for value in bits)
