"""Aggregates a query may ask for, and the mergeable measures each is made of."""

from __future__ import annotations

import msgspec

from millpond.model.expressions import Expression

FUNCTIONS = (
    "count", "sum", "min", "max", "avg", "stddev_samp", "stddev_pop", "var_samp", "var_pop",
)  # fmt: skip
"""Aggregate functions answered by this version, by Spark's canonical name."""


class Aggregate(msgspec.Struct, frozen=True):
    """`function(argument) FILTER (WHERE filter)`; `argument` None is `count(*)`; `type` is the result's SQL type."""

    function: str
    argument: Expression | None
    filter: Expression | None
    type: str
