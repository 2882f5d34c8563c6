"""The naive twin of percentiles of bins: a plain dict from what each bin stands for to how many values it holds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from millpond.model.aggregates import ACCURACY, Aggregate
from millpond.model.types import digits_of, integer_range, is_decimal, is_float
from millpond.testing.rowwise import Value

_LEAST = Fraction(1, 1 << 1022)
_FINEST = Fraction(1, 1 << 9)


def percentile_of_bins(wanted: Aggregate, values: Iterable[Any]) -> Any:
    """An approximate percentile of the values that it takes, or those of several fractions; None: there are none."""
    assert wanted.argument is not None and isinstance(wanted.parameters, tuple)
    accuracy = ACCURACY if not isinstance(wanted.accuracy, int) else wanted.accuracy
    part = Fraction(1, 2)
    while part > _FINEST and part / (2 + part) * accuracy > 1:
        part /= 2
    held: dict[float, int] = {}
    for value in values:
        if value is not None:
            number = _middle(float(value), part)
            held[number] = held.get(number, 0) + 1
    if not held:
        return None
    found = [_picked(held, float(str(one.value))) for one in wanted.parameters]
    typed = [_typed(number, wanted.argument.type) for number in found]
    return typed if wanted.type.startswith("array<") else typed[0]


def _middle(number: float, part: Fraction) -> float:
    """What the bin of a number stands for, whose width is that part of the power of two below it."""
    if not math.isfinite(number):
        return math.nan if math.isnan(number) else number
    size = abs(Fraction(number))
    if size < _LEAST:
        return 0.0
    power = Fraction(2) ** (math.frexp(abs(number))[1] - 1)
    low = size // (part * power) * part * power
    high = low + part * power
    return math.copysign(float(2 * low * high / (low + high)), number)


def _picked(held: dict[float, int], fraction: float) -> float:
    rank = max(math.ceil(sum(held.values()) * fraction), 1)
    for number in sorted(held, key=lambda one: (math.isnan(one), one)):
        rank -= held[number]
        if rank <= 0:
            return number
    raise AssertionError("a fraction above 1")


def _typed(number: float, kind: str) -> Value:
    if is_float(kind):
        return number  # as a double: that it is rounded to the type is the reader's
    if is_decimal(kind):
        digits = digits_of(kind)
        most = 10**digits.precision - 1
        return Decimal(_whole(number * 10.0**digits.scale, -most, most)).scaleb(-digits.scale)
    return _whole(number, *integer_range(kind))


def _whole(number: float, least: int, most: int) -> int:
    return max(least, min(most, round(number)))
