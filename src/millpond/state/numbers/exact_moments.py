"""Exact sums of third and fourth powers of doubles, and the numerators of skewness and kurtosis.

A square is a rounded product plus its error (see `exact_sums`). So a cube is a sum of four doubles, and a fourth power
a sum of six. Values are first scaled by bands of magnitude, so that no part is lost below the smallest double.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millpond.arrays import Ints
from millpond.state.numbers.exact_sums import (
    SHIFT,
    Doubles,
    Parts,
    Words,
    add_digits,
    carried_total,
    digits_of_words,
    product_and_error,
    times,
    to_doubles,
    total,
    words_of_digits,
)

_BAND_BITS = 390
"""All bits of the powers of values within 2**±195 are in range; 390 bits are 15 digits."""


def sums_of_powers(cells: Ints, values: Doubles, power: int, size: int) -> Words:
    """Exact sums of the third or fourth powers of finite doubles by cell, as words of shift 12 times `power`."""
    digits: dict[int, Ints] = {}
    bands = np.rint(np.frexp(values)[1] / _BAND_BITS).astype(np.int64)
    for band in np.unique(bands).tolist():
        chosen = slice(None) if bool((bands == band).all()) else np.flatnonzero(bands == band)
        scaled = np.ldexp(values[chosen], -band * _BAND_BITS) if band else values[chosen]
        square, error = product_and_error(scaled, scaled)
        if power == 3:
            products = [(square, scaled), (error, scaled)]
        else:
            products = [(square, square), (2.0 * square, error), (error, error)]
        for left, right in products:
            for part in product_and_error(left, right):
                add_digits(digits, cells[chosen], part, size, SHIFT[f"power{power}"], power * band * 15)
    return words_of_digits(digits) or {0: np.zeros(size, np.int64)}


def third_numerators(count: Ints, sums: Sequence[Words]) -> Doubles:
    """`n² Σx³ − 3 n Σx Σx² + 2 (Σx)³` from the sums of the first to the third power, exact and rounded once."""
    n, (x, xx, xxx) = digits_of_words({0: count}), [digits_of_words(words) for words in sums]
    inner = carried_total([(1, times(n, xxx)), (-3, times(x, xx))])
    return _rounded(count, [(1, times(n, inner)), (2, times(times(x, x), x))], SHIFT["power3"])


def fourth_numerators(count: Ints, sums: Sequence[Words]) -> Doubles:
    """`n³ Σx⁴ − 4 n² Σx Σx³ + 6 n (Σx)² Σx² − 3 (Σx)⁴` from the sums of the first to the fourth power."""
    n, (x, xx, xxx, xxxx) = digits_of_words({0: count}), [digits_of_words(words) for words in sums]
    square = times(x, x)
    inner = carried_total([(1, times(n, xxxx)), (-4, times(x, xxx))])
    inner = carried_total([(1, times(n, inner)), (6, times(square, xx))])
    return _rounded(count, [(1, times(n, inner)), (-3, times(square, square))], SHIFT["power4"])


def _rounded(count: Ints, parts: Parts, shift: int) -> Doubles:
    return to_doubles(words_of_digits(total(parts)) or {0: np.zeros_like(count)}, shift)
