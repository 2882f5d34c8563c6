"""Maps each aggregate function to the measures from which it is computed."""

from __future__ import annotations

import math

from msgspec import UNSET

from millpond.model.aggregates import DISTINCT, PAIRED, Aggregate
from millpond.model.expressions import Expression, Literal, call, conjunction
from millpond.plan.groups.plan import Measure

NEEDS = {
    "count": ("count",),
    "sum": ("sum", "count"),
    "avg": ("sum", "count"),
    "min": ("min", "count"),
    "max": ("max", "count"),
    "var_samp": ("sum", "squares", "count"),
    "var_pop": ("sum", "squares", "count"),
    "stddev_samp": ("sum", "squares", "count"),
    "stddev_pop": ("sum", "squares", "count"),
    "regr_sxx": ("sum", "squares", "count"),
    "skewness": ("sum", "squares", "power3", "count"),
    "kurtosis": ("sum", "squares", "power3", "power4", "count"),
    "covar_pop": ("sum", "other sum", "products", "count"),
    "covar_samp": ("sum", "other sum", "products", "count"),
    "regr_sxy": ("sum", "other sum", "products", "count"),
    "regr_slope": ("sum", "other sum", "other squares", "products", "count"),
    "regr_intercept": ("sum", "other sum", "other squares", "products", "count"),
    "corr": ("sum", "squares", "other sum", "other squares", "products", "count"),
    DISTINCT: ("registers",),
    "regr_r2": ("sum", "squares", "other sum", "other squares", "products", "count"),
}
"""Aggregate function -> kinds of its measures. The last kind counts the values that took part, where needed. `other`
is the measure of the second argument.
"""


def measures_of(aggregate: Aggregate, presence: Expression | None) -> tuple[Measure, ...]:
    """The measures of an aggregate, over the rows that pass `presence`."""
    parts = [part for part in (presence, aggregate.filter) if part is not None]
    value, other = aggregate.argument, aggregate.other
    both: tuple[Expression, ...] = () if value is None else (value,)
    if aggregate.function in PAIRED:  # in a fixed order, so that corr(x, y) and covar_pop(y, x) share measures
        both = call("multiply", aggregate.arguments, "double").args
    rows = conjunction([*parts, *(call("isnotnull", (one,), "boolean") for one in both)])
    counted = Measure("count", None, rows)
    if value is None:
        return (counted,)
    made = []
    for kind in NEEDS[aggregate.function]:
        name = kind.removeprefix("other ")
        if kind == "count":
            made.append(counted)
        elif kind == "registers":
            assert isinstance(other, Literal)
            made.append(Measure(f"{kind}{precision_of(other)}", call("xxhash64", both, "bigint"), rows))
        elif kind == "products":
            made.append(Measure(kind, both[0], rows, both[0].type, both[1]))
        else:
            one = value if kind == name or other is UNSET else other
            made.append(Measure(name, one, rows, one.type))
    return tuple(made)


def precision_of(error: Literal) -> int:
    """The smallest p for which 2**p registers have a standard error of at most `error`, by Spark's formula.

    >>> precision_of(Literal((0.05).hex(), "double"))
    9
    """
    assert isinstance(error.value, float)
    return math.ceil(2.0 * math.log(1.106 / error.value) / math.log(2.0))
