"""The naive twin of skewness and kurtosis: fractions, each numerator rounded once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def of_powers(function: str, values: Sequence[float]) -> float | None:
    """`skewness` or `kurtosis` of values without NULLs, of which there is at least one."""
    if not all(map(math.isfinite, values)):
        return math.nan
    n, exact = len(values), [Fraction(value) for value in values]
    x, xx, xxx, xxxx = (sum((value**power for value in exact), Fraction()) for power in (1, 2, 3, 4))
    spread = _rounded(n * xx - x * x)
    if spread == 0:
        return None
    if math.isinf(spread):
        return math.nan
    mantissa, exponent = math.frexp(spread)
    if exponent % 2:
        mantissa, exponent = mantissa * 2, exponent - 1
    if function == "skewness":
        third = _rounded(n * n * xxx - 3 * n * x * xx + 2 * x**3)
        return _scaled(third, -3 * exponent // 2) / (mantissa * math.sqrt(mantissa))
    fourth = _rounded(n**3 * xxxx - 4 * n * n * x * xxx + 6 * n * x * x * xx - 3 * x**4)
    return _scaled(fourth, -2 * exponent) / (mantissa * mantissa) - 3.0


def _rounded(exact: Fraction | int) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _scaled(value: float, exponent: int) -> float:
    return value if math.isinf(value) else _rounded(Fraction(value) * Fraction(2) ** exponent)
