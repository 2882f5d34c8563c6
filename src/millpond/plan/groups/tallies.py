"""Tallies: for each value, or each bin of a value, how many events of a key and slice had it.

Approximate percentiles need only counts of bins, and exact distinct aggregates only the values that occur. Decides
which queries tallies can answer, and plans the tallies of a group.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from millpond.model.aggregates import ACCURACY, DISTINCT_VALUES, PERCENTILE, Aggregate
from millpond.model.expressions import Expression, call
from millpond.model.query import Query
from millpond.model.types import digits_of, is_decimal, is_known, is_number
from millpond.model.windows import Sliced
from millpond.plan.groups.event_log import logged_rows

FINEST_BITS = 9
"""The finest bins split each power of two into 2**9 parts, so a value is within 0.1 % of its bin."""
_LONG_DIGITS = 18
"""The most digits of a decimal that is binned: its unscaled value fits an int64."""

EXACT = frozenset({
    "count_distinct", *DISTINCT_VALUES, "collect_set", "listagg_distinct", "mode", "min", "max",
})  # fmt: skip
"""Functions whose results follow from the values that occur in a window and how often each does."""


class Tally(msgspec.Struct, frozen=True):
    """A value that is counted once for each distinct filter of its queries: in bins of `bits` bits or, if `bits` is 0,
    by the value itself, together with `more` values.
    """

    value: Expression
    bits: int
    filters: tuple[Expression, ...]
    more: tuple[Expression, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def values(self) -> tuple[Expression, ...]:
        """All values that are counted together."""
        return (self.value,) if isinstance(self.more, msgspec.UnsetType) else (self.value, *self.more)


@lru_cache(1 << 14)
def keeps_tallies(query: Query) -> bool:
    """Whether tallies answer the query: its windows are made of slices, and no aggregate needs single events.

    If one aggregate needs the events, they also answer the others: one more column of stored events costs less than a
    tally. So the choice depends on the query alone, and its state does not change with its neighbours. Bins and values
    are not mixed in a query, because percentiles are exact where events are stored.
    """
    logged = [aggregate for aggregate in query.aggregates if aggregate.logged]
    sliced = isinstance(query.window, Sliced) and query.deduplicated is None
    return bool(logged) and sliced and (all(map(binnable, logged)) or all(map(countable, logged)))


def binnable(aggregate: Aggregate) -> bool:
    """Whether the aggregate can be answered from bins."""
    if aggregate.function != PERCENTILE or aggregate.argument is None:
        return False
    kind = aggregate.argument.type
    return digits_of(kind).precision <= _LONG_DIGITS if is_decimal(kind) else is_number(kind)


def countable(aggregate: Aggregate) -> bool:
    """Whether the aggregate can be answered from counts of its values; nested values are not counted."""
    return aggregate.function in EXACT and all(is_known(argument.type) for argument in aggregate.arguments)


def tallied(aggregate: Aggregate) -> Aggregate:
    """The aggregate over the values that are counted: a percentile over bins."""
    if aggregate.function != PERCENTILE:
        return aggregate
    assert aggregate.argument is not None
    return msgspec.structs.replace(aggregate, argument=call("bin", (aggregate.argument,), "int"))


def bits_of(aggregate: Aggregate) -> int:
    """The fewest bits whose bins are as narrow as the accuracy requires; at most `FINEST_BITS`. 0: not binned.

    >>> [bits_of(Aggregate(PERCENTILE, None, None, "double", accuracy=n)) for n in (1, 10, 100, 1000, 10_000)]
    [1, 3, 6, 9, 9]
    """
    if aggregate.function != PERCENTILE:
        return 0
    accuracy = ACCURACY if isinstance(aggregate.accuracy, msgspec.UnsetType) else aggregate.accuracy
    return next((bits for bits in range(1, FINEST_BITS) if error_of(bits) * accuracy <= 1), FINEST_BITS)


def error_of(bits: int) -> float:
    """The largest relative error between a value and the value that represents its bin."""
    return 1 / ((2 << bits) + 1)


def tallies_of(filtered: Iterable[tuple[Query, Expression | None]]) -> tuple[Tally, ...]:
    """The tallies of a group, from its queries and their row filters: each value once, with the finest bins needed."""
    bits: dict[tuple[Expression, ...], int] = {}
    filters: dict[tuple[Expression, ...], dict[Expression, None]] = {}
    for query, presence in filtered:
        for aggregate in query.aggregates if keeps_tallies(query) else ():
            if not aggregate.logged:
                continue
            made = tallied(aggregate)
            values, rows = made.arguments, logged_rows(made, presence)
            assert rows is not None  # these functions skip NULL
            bits[values] = max(bits_of(aggregate), bits.get(values, 0))
            filters.setdefault(values, {})[rows] = None
    return tuple(Tally(values[0], bits[values], tuple(filters[values]), values[1:] or msgspec.UNSET) for values in bits)
