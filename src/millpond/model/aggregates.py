"""The aggregate functions of queries, and the mergeable measures of each."""

from __future__ import annotations

import msgspec

from millpond.model.expressions import Expression, Literal
from millpond.model.functions import PREFIX
from millpond.model.types import MOST_DIGITS, Digits, digits_of, is_decimal, is_integer

PAIRED = ("corr", "covar_pop", "covar_samp", "regr_sxy", "regr_slope", "regr_intercept", "regr_r2")
"""Functions of two arguments: they skip an event for which either is NULL. Those of a regression are (y, x)."""

DISTINCT = "approx_count_distinct"
"""Its `other` is a constant, the largest relative standard error that is asked for; its result is never NULL."""

FUNCTIONS = (
    "count", "sum", "min", "max", "avg", "stddev_samp", "stddev_pop", "var_samp", "var_pop", "skewness",
    "kurtosis", "regr_sxx", *PAIRED, DISTINCT,
)  # fmt: skip
"""Aggregate functions answered by this version, by Spark's canonical name; `regr_sxx` here has one argument."""


LOGGED = (
    "count_distinct", "sum_distinct", "avg_distinct", "percentile", "percentile_disc", "approx_percentile", "mode",
    "collect_list", "collect_set", "first", "last", "min_by", "max_by", "listagg", "listagg_distinct",
    "histogram_numeric",
)  # fmt: skip
"""Functions that are answered from the event log: no partial result of theirs is smaller than the events.

`first` and `last` go by event time, events of one time by source partition and offset, without such by values (see
`plan.groups.event_log.ties_of`).
`min_by(argument, other)`: `other` is what is compared. `parameters` are the fractions of a percentile, the number of
bins of a histogram, or the delimiter of a listagg, whose arguments after the first are what WITHIN GROUP orders by, and
then for each of these one of `DIRECTIONS`.
"""

LISTAGGS = ("listagg", "listagg_distinct")
"""Those of `LOGGED` that join texts."""

DIRECTIONS = ("asc nulls first", "asc nulls last", "desc nulls first", "desc nulls last")
"""How a listagg orders by an expression."""

PERCENTILE = "approx_percentile"
"""Answered from tallies, within its `accuracy`, where no event need be kept for it (see `plan.groups.bin_counts`)."""

ACCURACY = 10_000
"""Spark's accuracy of an approximate percentile that states none."""


class Aggregate(msgspec.Struct, frozen=True, cache_hash=True):
    """`function(argument) FILTER (WHERE filter)`; `argument` None is `count(*)`; `type` is the result's SQL type.

    `other` is the second argument of a function that has one, `parameters` are constants that it has besides, `more`
    are arguments after the second. `preceding_us`: its own frame, if it is shorter than that of its `Range` window.
    `accuracy`: of an approximate percentile, if it is not `ACCURACY`.
    """

    function: str
    argument: Expression | None
    filter: Expression | None
    type: str
    other: Expression | msgspec.UnsetType = msgspec.UNSET
    parameters: tuple[Literal, ...] | msgspec.UnsetType = msgspec.UNSET
    more: tuple[Expression, ...] | msgspec.UnsetType = msgspec.UNSET
    preceding_us: int | msgspec.UnsetType = msgspec.UNSET
    accuracy: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def arguments(self) -> tuple[Expression, ...]:
        """Its arguments, in their order."""
        first = () if self.argument is None else (self.argument,)
        second = () if isinstance(self.other, msgspec.UnsetType) else (self.other,)
        return first + second + (() if isinstance(self.more, msgspec.UnsetType) else self.more)

    @property
    def logged(self) -> bool:
        """Whether it is answered from the event log: its function, or what it compares, has no cells."""
        extreme_text = self.function in ("min", "max") and self.argument is not None and self.argument.type == "string"
        return extreme_text or self.function in LOGGED or self.function.startswith(PREFIX)


def result_type(function: str, kind: str) -> str:
    """The type that Spark gives an aggregate over values of type `kind`.

    >>> result_type("sum", "decimal(10,2)"), result_type("avg", "decimal(38,6)"), result_type("min", "date")
    ('decimal(20,2)', 'decimal(38,10)', 'date')
    """
    if function == "count" or (function == "sum" and is_integer(kind)):
        return "bigint"
    if function in ("min", "max"):
        return kind
    if is_decimal(kind) and function in ("sum", "avg"):
        precision, scale = digits_of(kind)
        more = (10, 0) if function == "sum" else (4, 4)
        return Digits(min(MOST_DIGITS, precision + more[0]), min(MOST_DIGITS, scale + more[1])).type
    return "double"
