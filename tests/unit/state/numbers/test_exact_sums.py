"""Sums are exact: equal to fractions rounded once, for any values, order and partition."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from millpond.state.numbers.exact_sums import (
    SHIFT,
    WORD_BITS,
    Doubles,
    Ints,
    Words,
    covariance_numerators,
    normalise,
    sums_of_doubles,
    sums_of_integers,
    sums_of_products,
    sums_of_squares,
    to_doubles,
    to_integers,
)

DICE = np.random.default_rng


def rounded(exact: Fraction) -> float:
    try:
        return float(exact)  # correctly rounded
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def value_of(words: Words, shift: int, cell: int) -> Fraction:
    """The number that words stand for."""
    return sum((int(word[cell]) * Fraction(2) ** (WORD_BITS * k - shift) for k, word in words.items()), Fraction(0))


def is_balanced(words: Words) -> bool:
    return all(bool((word >= -(1 << 51)).all() and (word < 1 << 51).all()) for word in words.values())


def prices(dice: np.random.Generator, n: int) -> Doubles:
    return np.round(dice.lognormal(3, 1, n), 2)


def wide(dice: np.random.Generator, n: int) -> Doubles:
    return dice.normal(size=n) * 10.0 ** dice.integers(-300, 300, n)


def whole(dice: np.random.Generator, n: int) -> Doubles:
    return dice.integers(-1000, 1000, n).astype(float)


def any_bits(dice: np.random.Generator, n: int) -> Doubles:
    values = np.frombuffer(dice.bytes(8 * n), np.float64).copy()
    return np.where(np.isfinite(values), values, 0.0)


def cancelling(dice: np.random.Generator, n: int) -> Doubles:
    values = dice.normal(size=n) * 10.0 ** dice.integers(-3, 3, n)
    return np.concatenate([values, -values])[:n]


def extremes(dice: np.random.Generator, n: int) -> Doubles:
    return dice.choice([5e-324, 1.7976931348623157e308, -1e308, 0.1, -0.0, 2.0**52, 1 / 3, 1e-310], n)


def tiny(dice: np.random.Generator, n: int) -> Doubles:
    """Their squares are subnormal or vanish."""
    return dice.normal(size=n) * 10.0 ** dice.integers(-164, -153, n)


KINDS = (prices, wide, whole, any_bits, cancelling, extremes, tiny)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_sums_squares_and_variances_are_those_of_fractions(
    kind: Callable[[np.random.Generator, int], Doubles], seed: int
) -> None:
    dice = DICE(seed)
    n, size = int(dice.integers(0, 60)), int(dice.integers(1, 5))
    cells, values = dice.integers(0, size, n), kind(dice, n)
    sums, squares = sums_of_doubles(cells, values, size), sums_of_squares(cells, values, size)
    assert is_balanced(sums)
    assert is_balanced(squares)
    totals, squared = to_doubles(sums, SHIFT["double"]), to_doubles(squares, SHIFT["squares"])
    numerators = covariance_numerators(np.bincount(cells, minlength=size), sums, sums, squares)
    for cell in range(size):
        mine = [Fraction(float(x)) for x in values[cells == cell]]
        total, square = sum(mine, Fraction(0)), sum((x * x for x in mine), Fraction(0))
        assert value_of(sums, SHIFT["double"], cell) == total
        assert value_of(squares, SHIFT["squares"], cell) == square
        assert totals[cell] == rounded(total)
        assert squared[cell] == rounded(square)
        assert numerators[cell] == rounded(len(mine) * square - total * total)


@pytest.mark.parametrize("right", KINDS)
@pytest.mark.parametrize("left", KINDS)
def test_sums_of_products_and_covariances_are_those_of_fractions(
    left: Callable[[np.random.Generator, int], Doubles], right: Callable[[np.random.Generator, int], Doubles]
) -> None:
    dice = DICE(5)
    n, size = 80, 3
    cells, x, y = dice.integers(0, size, n), left(dice, n), right(dice, n)
    products = sums_of_products(cells, x, y, size)
    assert is_balanced(products)
    sums = [sums_of_doubles(cells, values, size) for values in (x, y)]
    found = covariance_numerators(np.bincount(cells, minlength=size), *sums, products)
    for cell in range(size):
        mine = cells == cell
        pairs = [(Fraction(float(a)), Fraction(float(b))) for a, b in zip(x[mine], y[mine], strict=True)]
        product = sum((a * b for a, b in pairs), Fraction(0))
        assert value_of(products, SHIFT["squares"], cell) == product
        totals = [sum((pair[i] for pair in pairs), Fraction(0)) for i in (0, 1)]
        assert found[cell] == rounded(len(pairs) * product - totals[0] * totals[1])


def test_a_sum_of_doubles_is_fsum() -> None:
    values = prices(DICE(1), 5000)
    found = to_doubles(sums_of_doubles(np.zeros(5000, np.int64), values, 1), SHIFT["double"])
    assert found[0] == math.fsum(values)


def test_a_subnormal_result_is_rounded_once() -> None:
    # x^2 is a hair above half of the smallest double: rounded to 53 bits first, it would be a tie and vanish
    for x in (math.sqrt(k + 0.5) * 2.0**-537 for k in range(200)):
        for value in (x, math.nextafter(x, 1), math.nextafter(x, 0)):
            squares = sums_of_squares(np.zeros(1, np.int64), np.array([value]), 1)
            assert to_doubles(squares, SHIFT["squares"])[0] == rounded(Fraction(value) ** 2), value


def test_three_words_round_half_to_even_and_see_the_bits_far_below() -> None:
    one = np.array([1])
    for low in (-1, 0, 1):
        words = normalise({4: one, 3: one * 0, 2: one * 0, 1: one * (1 << 51), 0: one * 0, -4: one * low})
        assert to_doubles(words, 0)[0] == rounded(value_of(words, 0, 0))
    tie = {2: one, 1: one * 0, 0: np.array([1 << 50]), -3: one}
    for sign in (1, -1):
        words = {k: word * sign for k, word in tie.items()}
        assert to_doubles(words, 0)[0] == rounded(value_of(words, 0, 0))


@pytest.mark.parametrize("seed", range(40))
def test_random_words_become_the_nearest_double(seed: int) -> None:
    dice = DICE(seed)
    places = dice.choice(np.arange(-24, 24), int(dice.integers(1, 6)), replace=False)
    words = normalise({int(k): dice.integers(-(2**62), 2**62, 5) >> dice.integers(0, 62, 5) for k in places})
    assert is_balanced(words)
    found = to_doubles(words, 12)
    assert [rounded(value_of(words, 12, cell)) for cell in range(5)] == found.tolist()


def test_beyond_the_range_of_doubles_is_infinity() -> None:
    largest = np.full(4, 1.7976931348623157e308)
    words = sums_of_doubles(np.zeros(4, np.int64), largest, 1)
    assert to_doubles(words, SHIFT["double"])[0] == math.inf
    back = sums_of_doubles(np.zeros(3, np.int64), -largest[:3], 1)
    both = normalise({k: words.get(k, np.zeros(1, np.int64)) + back.get(k, 0) for k in {*words, *back}})
    assert to_doubles(both, SHIFT["double"])[0] == largest[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [sums_of_doubles, sums_of_squares])
def test_neither_order_nor_partition_changes_a_word(
    kind: Callable[[np.random.Generator, int], Doubles], how: Callable[[Ints, Doubles, int], Words]
) -> None:
    dice = DICE(7)
    cells, values = dice.integers(0, 3, 90), kind(dice, 90)
    together = how(cells, values, 3)
    for parts in (1, 2, 7, 90):
        order = dice.permutation(90)
        total: Words = {}
        for rows in np.array_split(order, parts):
            for k, word in how(cells[rows], values[rows], 3).items():
                total[k] = total.get(k, np.zeros(3, np.int64)) + word
        found = normalise(total)
        assert {k: word.tolist() for k, word in found.items()} == {k: word.tolist() for k, word in together.items()}


def test_no_events_sum_to_zero() -> None:
    none = np.zeros(0, np.int64)
    for words in (sums_of_doubles(none, none.astype(float), 2), sums_of_squares(none, none.astype(float), 2)):
        assert to_doubles(words, 12).tolist() == [0.0, 0.0]
    assert to_integers(sums_of_integers(none, none, 2))[0].tolist() == [0, 0]


@pytest.mark.parametrize("seed", range(10))
def test_integer_sums_and_which_of_them_leave_int64(seed: int) -> None:
    dice = DICE(seed)
    n, size = int(dice.integers(0, 40)), 3
    cells = dice.integers(0, size, n)
    values = dice.integers(-(2**63), 2**63 - 1, n, dtype=np.int64) if seed % 2 else dice.integers(-50, 50, n)
    words = normalise(sums_of_integers(cells, values, size))
    found, outside = to_integers(words)
    for cell in range(size):
        total = sum(int(x) for x in values[cells == cell])
        assert outside[cell] == (not -(2**63) <= total < 2**63)
        assert outside[cell] or found[cell] == total
        assert to_doubles(words, 0)[cell] == float(total)


@pytest.mark.parametrize("border", [2**63, -(2**63), 2**52, 2**51, -(2**51), 0, 2**104, -(2**104), 2**63 + 2**52])
def test_the_limits_of_int64_are_exact_to_the_last_unit(border: int) -> None:
    for total in range(border - 2, border + 3):
        rest, words = total, {}
        for k in range(3):
            low = (rest + 2**51) % 2**52 - 2**51
            words[k], rest = np.array([low]), (rest - low) >> 52
        found, outside = to_integers(words)
        assert bool(outside[0]) == (not -(2**63) <= total < 2**63), total
        assert outside[0] or found[0] == total


def test_normalise_is_idempotent_keeps_the_value_and_drops_empty_ends() -> None:
    dice = DICE(3)
    words = {k: dice.integers(-(2**62), 2**62, 20) for k in (-3, -1, 0, 2)}
    once = normalise(words)
    assert is_balanced(once)
    assert [value_of(once, 12, i) for i in range(20)] == [value_of(words, 12, i) for i in range(20)]
    twice = normalise(once)
    assert list(twice) == list(once)
    assert all((twice[k] == once[k]).all() for k in once)
    zeros = normalise({5: np.zeros(2, np.int64), 7: np.zeros(2, np.int64)})
    assert {k: word.tolist() for k, word in zeros.items()} == {0: [0, 0]}
    assert list(normalise({0: np.array([0]), 1: np.array([3]), 2: np.array([0])})) == [1]


def test_a_word_is_as_wide_as_the_data_needs() -> None:
    cells = np.zeros(1000, np.int64)
    assert set(sums_of_doubles(cells, prices(DICE(1), 1000), 1)) <= {-1, 0}
    assert set(sums_of_integers(cells, np.arange(1000), 1)) == {0}
    assert len(sums_of_doubles(cells[:2], np.array([1e300, 1e-300]), 1)) <= 6


def test_variance_numerators_of_millions_of_equal_values_are_zero() -> None:
    n = 3_000_000_000
    x = Fraction(0.1)
    sums = {k: np.array([word]) for k, word in words(n * x, 12)}
    squares = {k: np.array([word]) for k, word in words(n * x * x, 24)}
    sums, squares = normalise(sums), normalise(squares)
    assert covariance_numerators(np.array([n]), sums, sums, squares).tolist() == [0.0]


def words(total: Fraction, shift: int) -> list[tuple[int, int]]:
    found = []
    for k in range(3, -6, -1):
        unit = Fraction(2) ** (WORD_BITS * k - shift)
        found.append((k, int(total / unit)))
        total -= found[-1][1] * unit
    assert total == 0
    return found
