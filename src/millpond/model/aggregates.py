"""Aggregates a query may ask for, and the mergeable measures each is made of."""

from __future__ import annotations

import msgspec

from millpond.model.expressions import Expression
from millpond.model.types import MOST_DIGITS, Digits, digits_of, is_decimal, is_integer

FUNCTIONS = (
    "count", "sum", "min", "max", "avg", "stddev_samp", "stddev_pop", "var_samp", "var_pop",
)  # fmt: skip
"""Aggregate functions answered by this version, by Spark's canonical name."""


class Aggregate(msgspec.Struct, frozen=True):
    """`function(argument, …) FILTER (WHERE filter)`; `argument` None is `count(*)`; `type` is the result's SQL type.

    `more`: the arguments after the first, where there are any.
    """

    function: str
    argument: Expression | None
    filter: Expression | None
    type: str
    more: tuple[Expression, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def arguments(self) -> tuple[Expression, ...]:
        """All arguments."""
        first = () if self.argument is None else (self.argument,)
        return first if isinstance(self.more, msgspec.UnsetType) else first + self.more


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
