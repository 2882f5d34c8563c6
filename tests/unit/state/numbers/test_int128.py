"""128-bit arithmetic against Python's integers and decimals."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millpond.arrays import WIDE, Wide
from millpond.state.numbers.exact_sums import sums_of_wide
from millpond.state.numbers.int128 import (
    added,
    beyond,
    divided,
    equal,
    less,
    multiplied,
    negated,
    of_words,
    rounded,
    scaled,
    wide_integer,
)

LIMIT = 10**38 - 1
NUMBERS = st.one_of(
    st.integers(-LIMIT, LIMIT),
    st.integers(-300, 300),
    st.sampled_from([LIMIT, -LIMIT, 2**63, -(2**63), 2**64 - 1, 2**64, -(2**64), 2**63 - 1, 10**37]),
)
CONTEXT = Context(prec=200, rounding=ROUND_HALF_UP)


def of(values: list[int]) -> Wide:
    return np.array([(value & (2**64 - 1), value >> 64) for value in values], WIDE)


def back(values: Wide) -> list[int]:
    return [int(high) * 2**64 + int(low) for low, high in values.reshape(-1).tolist()]


def wrapped(value: int) -> int:
    return (value + 2**127) % 2**128 - 2**127


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20))
def test_arithmetic_and_order_are_those_of_integers(pairs: list[tuple[int, int]]) -> None:
    lefts, rights = ([pair[i] for pair in pairs] for i in (0, 1))
    left, right = of(lefts), of(rights)
    assert back(added(left, right)) == [wrapped(a + b) for a, b in pairs]
    assert back(multiplied(left, right)) == [wrapped(a * b) for a, b in pairs]
    assert back(negated(left)) == [-a for a in lefts]
    assert less(left, right).tolist() == [a < b for a, b in pairs]
    assert equal(left, right).tolist() == [a == b for a, b in pairs]
    assert less(left, wide_integer(rights[0])).tolist() == [a < rights[0] for a in lefts]


@given(st.lists(NUMBERS, min_size=1, max_size=20), st.integers(0, 38))
def test_digits_are_added_counted_and_rounded_away(numbers: list[int], power: int) -> None:
    values = of(numbers)
    assert back(scaled(values, power)) == [wrapped(n * 10**power) for n in numbers]
    assert beyond(values, power).tolist() == [abs(n) >= 10**power for n in numbers]
    expected = [int(Decimal(n).scaleb(-power, CONTEXT).quantize(Decimal(1), context=CONTEXT)) for n in numbers]
    assert back(rounded(values, power)) == expected


@given(st.lists(st.tuples(st.integers(0, 3), NUMBERS), max_size=60))
def test_sums_are_exact_and_report_an_overflow_of_127_bits(rows: list[tuple[int, int]]) -> None:
    cells = np.array([cell for cell, _ in rows], np.int64)
    total, outside = of_words(sums_of_wide(cells, of([value for _, value in rows]), 4))
    for cell in range(4):
        expected = sum(value for at, value in rows if at == cell)
        if abs(expected) <= LIMIT:
            assert not outside[cell]
            assert back(total)[cell] == expected
        else:
            assert outside[cell] or beyond(total, 38)[cell]


@given(st.lists(st.tuples(NUMBERS, st.integers(1, 2**50)), min_size=1, max_size=20), st.integers(0, 4))
def test_a_quotient_is_rounded_half_up(pairs: list[tuple[int, int]], power: int) -> None:
    found, outside = divided(of([n for n, _ in pairs]), power, np.array([by for _, by in pairs]))
    for (n, by), got, far in zip(pairs, back(found), outside.tolist(), strict=True):
        expected = (2 * abs(n) * 10**power + by) // (2 * by) * (1 if n > 0 else -1)
        assert far == (abs(expected) >= 2**127)
        if not far:
            assert got == expected
