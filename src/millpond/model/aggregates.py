"""The aggregate functions of queries: which are supported, how each is answered, and its result type."""

from __future__ import annotations

import msgspec

from millpond.model.expressions import Expression, Literal
from millpond.model.functions import PREFIX
from millpond.model.types import MOST_DIGITS, Digits, digits_of, is_decimal, is_integer

PAIRED = ("corr", "covar_pop", "covar_samp", "regr_sxy", "regr_slope", "regr_intercept", "regr_r2")
"""Functions of two arguments; they skip events for which either is NULL. Regression functions take (y, x)."""

DISTINCT = "approx_count_distinct"
"""Its `other` is a constant, the largest relative standard error allowed; its result is never NULL."""

FUNCTIONS = (
    "count", "sum", "min", "max", "avg", "stddev_samp", "stddev_pop", "var_samp", "var_pop", "skewness",
    "kurtosis", "regr_sxx", *PAIRED, DISTINCT,
)  # fmt: skip
"""The mergeable aggregate functions, by Spark's canonical name; `regr_sxx` has one argument here."""


LOGGED = (
    "count_distinct", "sum_distinct", "avg_distinct", "percentile", "percentile_disc", "approx_percentile", "mode",
    "collect_list", "collect_set", "first", "last", "min_by", "max_by", "listagg", "listagg_distinct",
    "histogram_numeric",
)  # fmt: skip
"""Functions that are answered from the event log, because their partial results are not smaller than the events.

`first` and `last` order events by event time. Events with equal times are ordered by source partition and offset or,
without these, by values (see `plan.groups.event_log.ties_of`). `min_by(argument, other)` compares `other`.
`parameters` are the fractions of a percentile, or the number of bins of a histogram. For a listagg they are the
delimiter, and then one of `DIRECTIONS` for each expression of WITHIN GROUP; these expressions are the arguments after
the first.
"""

LISTAGGS = ("listagg", "listagg_distinct")
"""The functions of `LOGGED` that concatenate strings."""

DIRECTIONS = ("asc nulls first", "asc nulls last", "desc nulls first", "desc nulls last")
"""The sort directions of a listagg."""

PERCENTILE = "approx_percentile"
"""Answered from tallies, within its `accuracy`, where it needs no stored events (see `plan.groups.bin_counts`)."""

ACCURACY = 10_000
"""Spark's default accuracy of an approximate percentile."""


class Aggregate(msgspec.Struct, frozen=True, cache_hash=True):
    """`function(argument) FILTER (WHERE filter)`; `argument` None is `count(*)`; `type` is the result's SQL type.

    `other` is the second argument, if the function has one; `more` are the arguments after the second; `parameters`
    are additional constants. `preceding_us`: the aggregate's own frame, if it is shorter than the frame of its `Range`
    window. `accuracy`: the accuracy of an approximate percentile, if it differs from `ACCURACY`.
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
        """The arguments, in order."""
        first = () if self.argument is None else (self.argument,)
        second = () if isinstance(self.other, msgspec.UnsetType) else (self.other,)
        return first + second + (() if isinstance(self.more, msgspec.UnsetType) else self.more)

    @property
    def logged(self) -> bool:
        """Whether the aggregate is answered from the event log: its function, or the type it compares, has no cells."""
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
