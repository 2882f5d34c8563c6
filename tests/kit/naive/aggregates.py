"""Naive twins of aggregates: percentiles of bins, histograms, functions of pairs, skewness and kurtosis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from kit.naive.expressions import Value, cast, order
from millpond.model.aggregates import ACCURACY, Aggregate
from millpond.model.types import bin_centre_type, digits_of, element_of, integer_range, is_decimal, is_float, is_integer

_LEAST = Fraction(1, 1 << 1022)
_FINEST = Fraction(1, 1 << 9)


def percentile_of_bins(wanted: Aggregate, values: Iterable[Any]) -> Any:
    """An approximate percentile of the values that the aggregate takes, or several percentiles; None: no values."""
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
    """The value that represents the bin of a number; the bin's width is that part of the power of two below it."""
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
        return number  # as a double; the reader rounds it to the type
    if is_decimal(kind):
        digits = digits_of(kind)
        most = 10**digits.precision - 1
        return Decimal(_whole(number * 10.0**digits.scale, -most, most)).scaleb(-digits.scale)
    return _whole(number, *integer_range(kind))


def _whole(number: float, least: int, most: int) -> int:
    return max(least, min(most, round(number)))


def histogram(values: Sequence[Any], most: int, kind: str) -> list[dict[str, Any]] | None:
    """The result of `histogram_numeric(x, most)` for values that are not NULL; `kind` is its type.

    >>> histogram([1.0, 10.0, 2.0], 2, "array<struct<x:double,y:double>>")
    [{'x': 1.5, 'y': 2.0}, {'x': 10.0, 'y': 1.0}]
    """
    shown = {order(float(value)): float(value) + 0.0 for value in values}
    counts = Counter(order(float(value)) for value in values)
    bins = [(shown[rank], float(counts[rank])) for rank in sorted(counts)]
    while len(bins) > most:
        gaps = sorted(range(len(bins) - 1), key=lambda i: (_width(bins[i][0], bins[i + 1][0]), i))
        chosen = set(gaps[: min(len(bins) - most, len(bins) // 2)])
        left: set[int] = set()
        for i in sorted(chosen):
            if i - 1 not in left:
                left.add(i)
        bins = [_both(bins[i], bins[i + 1]) if i in left else bins[i] for i in range(len(bins)) if i - 1 not in left]
    return [{"x": _back(x, kind), "y": y} for x, y in bins] or None


def _width(low: float, high: float) -> float:
    return math.inf if math.isnan(high - low) else high - low


def _both(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    total = first[1] + second[1]
    return first[0] * (first[1] / total) + second[0] / total * second[1], total


def _back(centre: float, kind: str) -> Any:
    own = str(bin_centre_type(element_of(kind)))
    if own == "double":
        return centre
    if own == "float":
        return cast(centre, "double", "float")
    whole = math.trunc(centre)
    return min(whole, (1 << 63) - 1) if is_integer(own) else whole


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
    """n times the sum of products, minus the product of sums."""
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
    """yx divided by the root of xx yy; the product is rounded as if doubles had no limits of their exponent."""
    if math.isinf(xx) or math.isinf(yy):
        return math.nan if math.isinf(yx) else yx / math.inf
    (a, i), (b, j) = math.frexp(xx), math.frexp(yy)
    odd = (i + j) % 2
    return yx / math.ldexp(math.sqrt(a * b * (1 + odd)), (i + j - odd) // 2)


def of_powers(function: str, values: Sequence[float]) -> float | None:
    """`skewness` or `kurtosis` of at least one value, without NULLs."""
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


def _scaled(value: float, exponent: int) -> float:
    return value if math.isinf(value) else _rounded(Fraction(value) * Fraction(2) ** exponent)
