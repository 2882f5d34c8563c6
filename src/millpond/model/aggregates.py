"""Aggregates a query may ask for, and the mergeable measures each is made of."""

from __future__ import annotations

import msgspec

from millpond.model.expressions import Expression
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


class Aggregate(msgspec.Struct, frozen=True):
    """`function(argument) FILTER (WHERE filter)`; `argument` None is `count(*)`; `type` is the result's SQL type.

    `other` is the second argument of a function that has one.
    """

    function: str
    argument: Expression | None
    filter: Expression | None
    type: str
    other: Expression | msgspec.UnsetType = msgspec.UNSET

    @property
    def arguments(self) -> tuple[Expression, ...]:
        """Its arguments, none to two."""
        first = () if self.argument is None else (self.argument,)
        return first if self.other is msgspec.UNSET else (*first, self.other)


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
