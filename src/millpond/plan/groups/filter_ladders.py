"""Groups filters into ladders: in a ladder, each filter accepts every event that the next one accepts.

Thresholds on one column form a ladder. An event has one rank per ladder: the number of filters that it passes,
counted from the widest. One number per ladder thus replaces one bit per filter. A filter that is unrelated to the
others is a ladder of its own, with rank 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from millpond.model.expressions import Call, Expression, Literal, conjuncts_of
from millpond.model.types import INTEGERS, TIMES

_RANKED = (*INTEGERS, *TIMES, "float", "double", "string")

_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}

_WIDER = {"gt": 1, "ge": 0, "lt": 0, "le": 1}
"""The comparison operators that accept greater values, and those that accept smaller values. Each list is in the
order in which equal constants are sorted."""


class Ladder(NamedTuple):
    """Filters by id, the widest first. Filter `i` is TRUE where all of `rest` and `steps[i]` are TRUE.

    A ladder of a single filter has no steps.
    """

    filters: tuple[str, ...]
    conditions: tuple[Expression | None, ...]
    rest: tuple[Expression, ...]
    steps: tuple[Expression, ...] = ()


class Comparison(NamedTuple):
    """A comparison `value op limit` with a constant."""

    value: Expression
    op: str
    limit: Literal


def comparison_of(part: Expression) -> Comparison | None:
    """A conjunct as a comparison with a constant, if its type supports it; text supports equality only."""
    if not isinstance(part, Call) or part.op not in _FLIPPED:
        return None
    left, right = part.args
    op = part.op
    if isinstance(left, Literal):
        left, right, op = right, left, _FLIPPED[op]
    if not isinstance(right, Literal) or isinstance(left, Literal) or right.text is None:
        return None
    if left.type != right.type or left.type not in _RANKED or (left.type == "string" and op != "eq"):
        return None
    return Comparison(left, op, right)


def ladders_of(filters: Mapping[str, Expression | None]) -> tuple[Ladder, ...]:
    """Assigns each filter to the longest ladder that it fits."""
    places_by_name = {name: _places(condition) for name, condition in filters.items()}
    counts: dict[Hashable, int] = {}
    for places in places_by_name.values():
        for place in places:
            counts[place] = counts.get(place, 0) + 1
    chosen: dict[Hashable, list[str]] = {}
    for name, places in places_by_name.items():
        longest = max(places, key=lambda place: counts[place], default=None)
        chosen.setdefault(name if longest is None else longest, []).append(name)
    return tuple(
        _ladder(filters, {name: places_by_name[name][place] for name in names})
        if len(names) > 1
        else Ladder((names[0],), (filters[names[0]],), conjuncts_of(filters[names[0]]))
        for place, names in chosen.items()
    )


def _places(condition: Expression | None) -> dict[Hashable, Expression]:
    """The ladders that a filter fits, each with the step of the filter in it."""
    parts = conjuncts_of(condition)
    places: dict[Hashable, Expression] = {}
    for i, part in enumerate(parts):
        found = comparison_of(part)
        if found is not None and found.op != "eq":
            rest = frozenset((*parts[:i], *parts[i + 1 :]))
            if part not in rest:
                places[rest, found.value, "g" in found.op] = part
    return places


def _ladder(filters: Mapping[str, Expression | None], steps: Mapping[str, Expression]) -> Ladder:
    names = sorted(steps, key=lambda name: (*_limit(steps[name]), name))
    if not _takes_greater(steps[names[0]]):
        names.reverse()
    first = names[0]
    rest = tuple(part for part in conjuncts_of(filters[first]) if part != steps[first])
    return Ladder(tuple(names), tuple(filters[name] for name in names), rest, tuple(steps[name] for name in names))


def _takes_greater(step: Expression) -> bool:
    found = comparison_of(step)
    return found is not None and "g" in found.op


def _limit(step: Expression) -> tuple[bool, float | int, int]:
    """The sort key of a step: its constant in SQL order, with NaN as the greatest, then the wider operator first."""
    found = comparison_of(step)
    assert found is not None
    value = found.limit.value
    assert isinstance(value, int | float)
    if found.limit.type == "float":
        value = float(np.float32(value))
    odd = isinstance(value, float) and math.isnan(value)
    return odd, 0 if odd else value, _WIDER[found.op]


def conditions_of(ladders: Sequence[Ladder]) -> list[Expression | None]:
    """All filters, in the order of the ladders."""
    return [condition for ladder in ladders for condition in ladder.conditions]
