"""The naive twin of functions of two arguments: fractions over the pairs themselves, rounded before dividing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

Pair = tuple[float, float]


def of_pairs(function: str, pairs: Sequence[Pair]) -> float | None:
    """A function of pairs (y, x) without NULLs, in any order."""
    n = len(pairs)
    if n == 0 or (n == 1 and function in ("covar_samp", "corr")):
        return None
    odd = [not all(math.isfinite(pair[i]) for pair in pairs) for i in (0, 1)]
    yy, xx = (None if odd[i] else _spread(pairs, i, i) for i in (0, 1))
    if function in ("regr_slope", "regr_intercept", "regr_r2") and xx == 0:
        return None
    if function == "corr" and 0 in (xx, yy):
        return None
    if function == "regr_r2" and yy == 0:
        return 1.0
    if any(odd):
        return math.nan
    yx = _spread(pairs, 0, 1)
    assert xx is not None
    assert yy is not None
    if function == "regr_sxy":
        return yx / n
    if function.startswith("covar_"):
        return yx / (n * n if function == "covar_pop" else n * (n - 1))
    if function == "corr":
        return _quotient(yx, xx, yy)
    if function == "regr_r2":
        root = _quotient(yx, xx, yy)
        return root * root
    slope = _divided(yx, xx)
    if function == "regr_slope":
        return slope
    means = [_rounded(sum((Fraction(pair[i]) for pair in pairs), Fraction())) / n for i in (0, 1)]
    return means[0] - slope * means[1]


def _spread(pairs: Sequence[Pair], i: int, j: int) -> float:
    """n times the sum of products less the product of sums."""
    exact = [(Fraction(pair[i]), Fraction(pair[j])) for pair in pairs]
    products = sum((a * b for a, b in exact), Fraction())
    return _rounded(len(pairs) * products - sum(a for a, _ in exact) * sum(b for _, b in exact))


def _rounded(exact: Fraction | int) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _divided(above: float, below: float) -> float:
    return math.nan if math.isinf(above) and math.isinf(below) else above / below


def _quotient(yx: float, xx: float, yy: float) -> float:
    """yx over the root of xx yy, that product being rounded as if doubles had no least or largest."""
    if math.isinf(xx) or math.isinf(yy):
        return math.nan if math.isinf(yx) else yx / math.inf
    (a, i), (b, j) = math.frexp(xx), math.frexp(yy)
    odd = (i + j) % 2
    return yx / math.ldexp(math.sqrt(a * b * (1 + odd)), (i + j - odd) // 2)
