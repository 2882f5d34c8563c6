"""Exact sums: a sum is an integer in fixed point, stored as a few 52-bit words, so the order of events never matters.

Word k of a sum counts units of 2**(52 k - SHIFT). SHIFT is 12 for sums of doubles, so that words -1 and 0 cover usual
prices and measurements, 24 for their squares, and 0 for integers. Words are balanced (in [-2**51, 2**51)) after
`normalise`; before that, int64 leaves room to add 2**11 of them. There are as many words as the data needs: two for
usual data, more for extreme ranges. So every finite double is summed without error. The long accumulator is an idea of
Kulisch; that only used words are stored is an addition of Millpond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints, Wide

Doubles: TypeAlias = npt.NDArray[np.float64]
Words: TypeAlias = dict[int, Ints]
Parts: TypeAlias = Sequence[tuple[int, Mapping[int, Ints]]]
"""Numbers in digits, each with a small factor."""

SHIFT = {"integer": 0, "double": 12, "squares": 24, "power3": 36, "power4": 48}
"""The unit of word 0 is 2**-SHIFT."""

WORD_BITS = 52
_HALF_BITS = 26
_FAR = 2.0**480
_LEAST_EXPONENT = -1074  # exponent of the smallest double
_BAND_BITS = 598  # scaling a factor by 2**-598 moves a product by 23 whole digits


def sums_of_integers(cells: Ints, values: Ints, size: int) -> Words:
    """Exact sums of int64 `values` by cell (0 … size-1), as words of an integer sum."""
    if not len(values):
        return {0: np.zeros(size, np.int64)}
    largest = max(abs(int(values.max())), abs(int(values.min())))
    if largest * len(values) < 1 << 53:
        return {0: _counted(cells, values, size)}
    low = values & ((1 << _HALF_BITS) - 1)
    middle = (values >> _HALF_BITS) & ((1 << _HALF_BITS) - 1)
    digits = {0: low, 1: middle, 2: values >> WORD_BITS}
    return words_of_digits({j: _counted(cells, digit, size) for j, digit in digits.items()})


def sums_of_wide(cells: Ints, values: Wide, size: int) -> Words:
    """Exact sums of 128-bit integers by cell, as words of an integer sum; at most 2**27 values at once."""
    low, high = values["low"], values["high"]
    narrow = low.view(np.int64)
    if bool((high == narrow >> 63).all()):
        return sums_of_integers(cells, narrow, size)
    mask = (1 << _HALF_BITS) - 1
    across = (low >> np.uint64(WORD_BITS)).astype(np.int64) | ((high & ((1 << 14) - 1)) << 12)  # bits 52 to 77
    digits = {
        0: (low & np.uint64(mask)).astype(np.int64),
        1: ((low >> np.uint64(_HALF_BITS)) & np.uint64(mask)).astype(np.int64),
        2: across,
        3: (high >> 14) & mask,
        4: high >> 40,
    }
    return words_of_digits({j: _counted(cells, digit, size) for j, digit in digits.items()})


def sums_of_doubles(cells: Ints, values: Doubles, size: int) -> Words:
    """Exact sums of finite doubles by cell, as words of shift 12."""
    whole = _whole(values)
    if whole is not None:
        return _shifted({0: _counted(cells, whole, size)}, SHIFT["double"])
    digits: dict[int, Ints] = {}
    add_digits(digits, cells, values, size, SHIFT["double"])
    return words_of_digits(digits) or {0: np.zeros(size, np.int64)}


def sums_of_squares(cells: Ints, values: Doubles, size: int) -> Words:
    """Exact sums of the squares of finite doubles by cell, as words of shift 24."""
    return sums_of_products(cells, values, values, size)


def sums_of_products(cells: Ints, left: Doubles, right: Doubles, size: int) -> Words:
    """Exact sums of products of finite doubles by cell, as words of shift 24.

    Each product is split into a rounded product and its error (Dekker 1971); both are exact doubles.
    """
    largest = [float(np.abs(values).max()) if len(values) else 0.0 for values in (left, right)]
    if largest[0] * largest[1] * len(left) < 2.0**53:
        whole = _whole(left), _whole(right)
        if whole[0] is not None and whole[1] is not None:
            return _shifted({0: _counted(cells, whole[0] * whole[1], size)}, SHIFT["squares"])
    digits: dict[int, Ints] = {}
    bands = [_bands(left), _bands(right)] if right is not left else [_bands(left)] * 2
    for first, i in bands[0].items():
        for second, j in bands[1].items():
            if i is None and j is None:
                _add_products(digits, cells, left, right, size, 0)
                continue
            chosen = j if i is None else i if j is None else i & j
            if chosen is not None and chosen.any():
                near_left, near_right = _scaled(left[chosen], first), _scaled(right[chosen], second)
                offset = (first + second) * _BAND_BITS // _HALF_BITS
                _add_products(digits, cells[chosen], near_left, near_right, size, offset)
    return words_of_digits(digits) or {0: np.zeros(size, np.int64)}


def _bands(values: Doubles) -> dict[int, npt.NDArray[np.bool_] | None]:
    """Masks of the values that are so large (1) or small (-1) that products must be scaled, and of the others (0).

    None instead of a mask means all values.
    """
    magnitude = np.abs(values)
    if len(values) and float(magnitude.min()) >= 1 / _FAR and float(magnitude.max()) <= _FAR:
        return {0: None}
    large, small = magnitude > _FAR, magnitude < 1 / _FAR
    return {0: ~(large | small), 1: large, -1: small}


def _scaled(values: Doubles, band: int) -> Doubles:
    return np.ldexp(values, -band * _BAND_BITS) if band else values


def _add_products(digits: dict[int, Ints], cells: Ints, left: Doubles, right: Doubles, size: int, offset: int) -> None:
    for part in product_and_error(left, right):
        add_digits(digits, cells, part, size, SHIFT["squares"], offset)


def product_and_error(left: Doubles, right: Doubles) -> tuple[Doubles, Doubles]:
    """The rounded product and its rounding error (Dekker 1971), exact if no bit is outside the range of doubles."""
    product = left * right
    a, b = _halves(left)
    c, d = (a, b) if right is left else _halves(right)
    return product, (((a * c - product) + a * d) + b * c) + b * d  # in this order each sum is exact


def _halves(values: Doubles) -> tuple[Doubles, Doubles]:
    """Splits values into sums of two doubles of at most 26 bits each (Veltkamp 1968)."""
    spread = values * 134217729.0
    high = spread - (spread - values)
    return high, values - high


def _counted(cells: Ints, weights: npt.NDArray[np.generic], size: int) -> Ints:
    """Sums of integer weights by cell; they are exact because every partial sum is below 2**53."""
    return np.bincount(cells, weights=weights, minlength=size).astype(np.int64)


def _whole(values: Doubles) -> Doubles | None:
    """The values if they are integers whose sums are exact in doubles (the cheap case); else None."""
    if len(values) and float(np.abs(values).max()) * len(values) < 2.0**53:
        return values if bool((values == np.trunc(values)).all()) else None
    return values if not len(values) else None


def add_digits(digits: dict[int, Ints], cells: Ints, values: Doubles, size: int, shift: int, offset: int = 0) -> None:
    """Splits values into 26-bit digits, highest first, and adds each digit to its sums until nothing is left."""
    rest = values
    largest = float(np.abs(rest).max()) if len(rest) else 0.0
    while largest > 0.0:
        top = int(np.frexp(largest)[1])  # largest < 2**top
        digit = -(-(top + shift) // _HALF_BITS) - 1
        unit = _HALF_BITS * digit - shift
        peeled = np.trunc(np.ldexp(rest, -unit)) if abs(unit) > 900 else np.trunc(rest * 2.0**-unit)
        rest = rest - (np.ldexp(peeled, unit) if abs(unit) > 900 else peeled * 2.0**unit)
        found = _counted(cells, peeled, size)
        place = digit + offset
        digits[place] = digits[place] + found if place in digits else found
        largest = float(np.abs(rest).max())


def words_of_digits(digits: Mapping[int, Ints]) -> Words:
    """Converts sums of 26-bit digits (each below 2**62) to balanced words."""
    words: Words = {}
    for place, digit in _carried(digits).items():
        part = digit << _HALF_BITS if place % 2 else digit
        words[place // 2] = words[place // 2] + part if place // 2 in words else part
    if not words:
        return {}
    return normalise(words)


def _carried(digits: Mapping[int, Ints], bits: int = _HALF_BITS) -> dict[int, Ints]:
    """The same sums with every digit of this many bits in [-2**(bits - 1), 2**(bits - 1))."""
    if not digits:
        return {}
    carried = dict(digits)
    position, last = min(carried), max(carried)
    while position <= last:
        digit = carried.get(position)
        if digit is not None:
            carry = (digit + (1 << (bits - 1))) >> bits
            if carry.any():
                carried[position] = digit - (carry << bits)
                carried[position + 1] = carried[position + 1] + carry if position + 1 in carried else carry
                last = max(last, position + 1)
        position += 1
    return carried


def _shifted(words: Words, bits: int) -> Words:
    """Converts words of unit 1 to words of unit 2**-bits (bits < 52)."""
    shifted: Words = {}
    for place, word in words.items():
        high = word >> (WORD_BITS - bits - 1)
        low = word - (high << (WORD_BITS - bits - 1))
        shifted[place] = shifted.get(place, np.int64(0)) + (low << bits)
        # `high` counts halves of the next word's unit: keep its lowest bit in this word, and carry the rest
        carry, odd = high >> 1, high & 1
        shifted[place] = shifted[place] + (odd << (WORD_BITS - 1))
        if carry.any():
            shifted[place + 1] = carry
    return normalise(shifted)


def normalise(words: Words) -> Words:
    """The same sums with every word in [-2**51, 2**51); words that are zero everywhere are removed."""
    result = _carried(words, WORD_BITS)
    kept = {place: word for place, word in sorted(result.items()) if word.any()}
    return kept or {0: np.zeros_like(next(iter(words.values())))}


def to_doubles(words: Words, shift: int) -> Doubles:
    """The doubles nearest to normalised sums (correctly rounded, half to even); infinity beyond their range."""
    places = sorted(words)
    if places[-1] - places[0] < 2 and WORD_BITS * places[0] - shift >= _LEAST_EXPONENT:
        total = words[places[0]].astype(np.float64)
        if len(places) == 2:  # both words are exact doubles, so this sum rounds once
            total = total + words[places[1]] * 2.0**WORD_BITS
        with np.errstate(over="ignore"):
            return np.asarray(np.ldexp(total, WORD_BITS * places[0] - shift))
    zero = np.zeros_like(words[places[0]])
    return _rounded([words.get(k, zero) for k in range(places[0], places[-1] + 1)], places[0], shift)


def _rounded(words: list[Ints], lowest: int, shift: int) -> Doubles:
    """Rounds three or more words: takes 62 leading bits and a sticky bit, then rounds correctly once."""
    words, negative = _magnitudes(words)
    shape = words[0].shape
    high, middle, low = (np.zeros(shape, np.int64) for _ in range(3))
    sticky, below = np.zeros(shape, bool), np.zeros(shape, bool)
    position = np.zeros(shape, np.int64)
    for k, word in enumerate(words):  # ascending: move the window of three words up wherever this word is not zero
        lead = word != 0
        if k > 2:
            below = below | (words[k - 3] != 0)
        sticky = np.where(lead, below, sticky)
        low = np.where(lead, words[k - 2] if k >= 2 else 0, low)
        middle = np.where(lead, words[k - 1] if k >= 1 else 0, middle)
        high = np.where(lead, word, high)
        position = np.where(lead, k, position)
    bits = np.frexp(high.astype(np.float64))[1].astype(np.int64)
    up = 62 - bits
    short = up <= WORD_BITS
    down = np.where(short, WORD_BITS - up, 0)
    more = np.where(short, 0, up - WORD_BITS)
    lead_bits = high << np.where(high > 0, up, 0)
    from_middle = np.where(short, middle >> down, middle << more)
    from_low = np.where(short, 0, low >> (WORD_BITS - more))
    lost = np.where(
        short, (middle & ((np.int64(1) << down) - 1)) | low, low & ((np.int64(1) << (WORD_BITS - more)) - 1)
    )
    leading = lead_bits | from_middle | from_low | ((lost != 0) | sticky)
    exponent = np.where(high > 0, WORD_BITS * (position + lowest) - shift - up, 0)
    cut = _LEAST_EXPONENT - exponent  # bits below the last one that a subnormal double has
    small = cut > 9
    leading = np.where(small, _halved(leading, np.clip(cut, 1, 63)), leading)
    exponent = np.where(small, _LEAST_EXPONENT, exponent)
    with np.errstate(over="ignore"):
        result = np.ldexp(leading.astype(np.float64), exponent.astype(np.int32))
    return np.asarray(np.where(negative, -result, result))


def _halved(leading: Ints, cut: Ints) -> Ints:
    """Computes `leading / 2**cut` (cut > 0), rounded half to even."""
    kept, half = leading >> cut, np.int64(1) << (cut - 1)
    rest = leading - (kept << cut)
    up: Ints = ((rest > half) | ((rest == half) & (kept & 1 == 1))).astype(np.int64)
    return kept + up


def _magnitudes(words: list[Ints]) -> tuple[list[Ints], npt.NDArray[np.bool_]]:
    """Converts balanced words to words in [0, 2**52) and a sign, the sign of the highest word that is not zero."""
    sign = np.zeros(words[0].shape, np.int64)
    for word in words:
        sign = np.where(word != 0, np.sign(word), sign)
    result: list[Ints] = []
    borrow = np.zeros(words[0].shape, np.int64)
    for word in words:
        word = word * np.where(sign < 0, -1, 1) - borrow
        borrow = (word < 0).astype(np.int64)
        result.append(word + (borrow << WORD_BITS))
    return result, sign < 0


def to_integers(words: Words) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Converts normalised integer sums to int64; the mask marks sums outside its range."""
    low = words.get(0, np.int64(0))
    high = words.get(1, np.int64(0))
    result = np.asarray(low + (high << WORD_BITS))
    outside = (high > 2048) | (high < -2048) | ((high == 2048) & (low >= 0)) | ((high == -2048) & (low < 0))
    for place, word in words.items():
        if place > 1:
            outside = outside | (word != 0)
    return result, np.broadcast_to(outside, result.shape)


def covariance_numerators(count: Ints, left: Words, right: Words, products: Words) -> Doubles:
    """Computes `n Σxy − Σx Σy` exactly, and rounds once; sums have shift 12, sums of products shift 24."""
    result: dict[int, Ints] = {}
    for i, part in _digits(products).items():
        for j, counted in digits_of_words({0: count}).items():
            _accumulate(result, i + j, part * counted)
    first, second = _digits(left), _digits(right)
    for i, part in first.items():
        for j, other in second.items():
            _accumulate(result, i + j, part * -other)
    return to_doubles(words_of_digits(result) or {0: np.zeros_like(count)}, SHIFT["squares"])


def times(left: Mapping[int, Ints], right: Mapping[int, Ints]) -> dict[int, Ints]:
    """The product of two numbers, all in digits."""
    result: dict[int, Ints] = {}
    for i, part in left.items():
        for j, other in right.items():
            _accumulate(result, i + j, part * other)
    return {place: digit for place, digit in _carried(result).items() if digit.any()}


def total(parts: Parts) -> dict[int, Ints]:
    """The sum of numbers in digits, each times its small factor, without carrying."""
    result: dict[int, Ints] = {}
    for factor, part in parts:
        for place, digit in part.items():
            _accumulate(result, place, factor * digit if factor != 1 else digit)
    return result


def carried_total(parts: Parts) -> dict[int, Ints]:
    """The same sum in balanced digits."""
    return _carried(total(parts))


def digits_of_words(words: Words) -> dict[int, Ints]:
    """Converts words to balanced 26-bit digits."""
    return _digits(normalise(words))


def _accumulate(result: dict[int, Ints], place: int, product: Ints) -> None:
    """Adds a product of two balanced digits, at most 2**50; a fourth power has 332 digits, so sums are below 2**59."""
    result[place] = result[place] + product if place in result else product


def _digits(words: Words) -> dict[int, Ints]:
    """Converts balanced words to balanced 26-bit digits."""
    digits: dict[int, Ints] = {}
    for place, word in words.items():
        high = (word + (1 << 25)) >> _HALF_BITS
        digits[2 * place] = digits.get(2 * place, np.int64(0)) + (word - (high << _HALF_BITS))
        digits[2 * place + 1] = digits.get(2 * place + 1, np.int64(0)) + high
    return {place: digit for place, digit in digits.items() if np.any(digit)}
