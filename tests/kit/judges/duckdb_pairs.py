"""Exact functions of two lists for DuckDB's judge, computed around the means, independently of the naive twin."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import TypeAlias

_List: TypeAlias = Sequence[float] | None


class _Moments:
    """n times the sums of products of deviations from the means, exact and then rounded."""

    def __init__(self, y: Sequence[float], x: Sequence[float]) -> None:
        self.n = len(y)
        ys, xs = [Fraction(value) for value in y], [Fraction(value) for value in x]
        mean_y, mean_x = sum(ys, Fraction()) / self.n, sum(xs, Fraction()) / self.n
        dy, dx = [value - mean_y for value in ys], [value - mean_x for value in xs]
        self.yx, self.yy, self.xx = (_ieee(self.n * _dot(a, b)) for a, b in ((dy, dx), (dy, dy), (dx, dx)))
        self.means = _ieee(mean_y * self.n) / self.n, _ieee(mean_x * self.n) / self.n

    def correlation(self) -> float:
        """yx divided by the root of yy times xx."""
        if math.isinf(self.yy) or math.isinf(self.xx):
            return self.yx / math.inf if math.isfinite(self.yx) else math.nan
        product = Fraction(self.yy) * Fraction(self.xx)
        half = (product.numerator.bit_length() - product.denominator.bit_length()) // 2
        return self.yx / math.ldexp(math.sqrt(product / Fraction(4) ** half), half)

    def slope(self) -> float:
        """yx divided by xx."""
        return math.nan if math.isinf(self.yx) and math.isinf(self.xx) else self.yx / self.xx


def _dot(left: Sequence[Fraction], right: Sequence[Fraction]) -> Fraction:
    return sum((a * b for a, b in zip(left, right, strict=True)), Fraction())


def _ieee(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _answer(function: str, y: Sequence[float], x: Sequence[float]) -> float | None:
    odd = not all(map(math.isfinite, (*y, *x)))
    if function in ("covar_samp", "corr") and len(y) < 2:
        return None
    is_line = function in ("regr_slope", "regr_intercept", "regr_r2")
    flat_y, flat_x = (all(map(math.isfinite, part)) and _Moments(part, part).yy == 0 for part in (y, x))
    if (is_line and flat_x) or (function == "corr" and (flat_y or flat_x)):
        return None
    if function == "regr_r2" and flat_y:
        return 1.0
    if odd:
        return math.nan
    found = _Moments(y, x)
    n = found.n
    if function == "regr_r2":
        return found.correlation() * found.correlation()
    if function == "regr_intercept":
        return found.means[0] - found.slope() * found.means[1]
    if function in ("corr", "regr_slope"):
        return found.correlation() if function == "corr" else found.slope()
    return found.yx / {"regr_sxy": n, "covar_pop": n * n, "covar_samp": n * (n - 1)}[function]


def _text(function: str, y: _List, x: _List) -> str | None:
    # DuckDB takes a NaN returned by Python for NULL; text keeps both apart, and `repr` keeps every bit
    result = None if y is None or x is None else _answer(function, y, x)
    return None if result is None else repr(result)


def shape(function: str, values: _List) -> float | None:
    """Skewness or kurtosis of all values, by powers of deviations from their mean."""
    if values is None:
        return None
    if not all(map(math.isfinite, values)):
        return math.nan
    n, exact = len(values), [Fraction(value) for value in values]
    away = [value - sum(exact, Fraction()) / n for value in exact]
    spread = _ieee(n * _dot(away, away))
    if spread == 0 or math.isinf(spread):
        return None if spread == 0 else math.nan
    half = math.frexp(spread)[1] // 2
    unit = float(Fraction(spread) / Fraction(4) ** half)
    power = 3 if function == "skewness" else 4
    above = _ieee(n ** (power - 1) * sum((value**power for value in away), Fraction()))
    if math.isfinite(above):
        above = _ieee(Fraction(above) / Fraction(2) ** (power * half))
    return above / (unit * math.sqrt(unit)) if power == 3 else above / (unit * unit) - 3.0


EXACT_PAIRS: dict[str, Callable[[_List, _List], str | None]] = {
    name: partial(_text, name)
    for name in ("corr", "covar_pop", "covar_samp", "regr_sxy", "regr_slope", "regr_intercept", "regr_r2")
}
"""Function of two arguments -> its result as text, from all y and all x."""
