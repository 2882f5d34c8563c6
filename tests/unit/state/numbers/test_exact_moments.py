"""Sums of third and fourth powers are exact, and so are the numerators made of them, rounded once."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from millpond.state.numbers.exact_moments import fourth_numerators, sums_of_powers, third_numerators
from millpond.state.numbers.exact_sums import SHIFT, WORD_BITS, Words, normalise, sums_of_doubles, sums_of_squares

POOLS = {
    "prices": [0.01 * i for i in range(-300, 90_000, 77)],
    "nasty": [5e-324, -5e-324, 1e-300, 1e300, -1.7976931348623157e308, 0.0, 1.0, -0.1, 3e-160, 2.0**195, 2.0**-196],
    "alike": [1e8 + 0.1 * i for i in range(20)],
    "tiny": [5e-324 * i for i in range(1, 9)],
}


def value_of(words: Words, shift: int, cell: int) -> Fraction:
    return sum((int(word[cell]) * Fraction(2) ** (WORD_BITS * k - shift) for k, word in words.items()), Fraction(0))


def rounded(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("seed", range(4))
def test_sums_of_powers_and_numerators_are_those_of_fractions(pool: str, seed: int) -> None:
    dice = np.random.default_rng(seed)
    size, values = 3, dice.choice(np.array(POOLS[pool]), 40)
    cells = dice.integers(0, size, 40)
    sums = [sums_of_doubles(cells, values, size), sums_of_squares(cells, values, size)]
    sums += [sums_of_powers(cells, values, power, size) for power in (3, 4)]
    count = np.bincount(cells, minlength=size)
    third = third_numerators(count, [normalise(words) for words in sums[:3]])
    fourth = fourth_numerators(count, [normalise(words) for words in sums])
    for cell in range(size):
        mine = [Fraction(float(value)) for value in values[cells == cell]]
        x, xx, xxx, xxxx = (sum((value**power for value in mine), Fraction()) for power in (1, 2, 3, 4))
        assert value_of(sums[2], SHIFT["power3"], cell) == xxx
        assert value_of(sums[3], SHIFT["power4"], cell) == xxxx
        n = len(mine)
        assert third[cell] == rounded(n * n * xxx - 3 * n * x * xx + 2 * x**3)
        assert fourth[cell] == rounded(n**3 * xxxx - 4 * n * n * x * xxx + 6 * n * x * x * xx - 3 * x**4)


def test_no_values_are_zero() -> None:
    none = np.zeros(0, np.int64)
    (word,) = sums_of_powers(none, none.astype(float), 3, 2).values()
    assert word.tolist() == [0, 0]
