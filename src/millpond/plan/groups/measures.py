"""Maps each aggregate function to the measures from which it is computed."""

from __future__ import annotations

import math

from msgspec import UNSET

from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Expression, Literal, call, conjunction
from millpond.plan.groups.aggregate_functions import FUNCTIONS, PAIRED
from millpond.plan.groups.plan import Measure


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
    for kind in FUNCTIONS[aggregate.function].measures:
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
