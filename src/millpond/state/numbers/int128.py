"""Arithmetic of decimals with 128-bit integers as pairs of 64-bit words, in the layout of Arrow.

Arithmetic is modulo 2**128. Unscaled decimals stay below 10**38, so sums, rescaling and rounding have room.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.arrays import WIDE, Ints, Mask, Wide
from millpond.state.numbers.exact_sums import WORD_BITS, Words

_HALF = np.uint64(0xFFFFFFFF)
_BITS = 13  # of a digit in `divided`, which leaves 50 bits for counts
_MOST_DIGITS = 10  # of 13 bits in 127
_CHUNK = 15  # 10**15 < 2**50


def wide(high: Any, low: Any) -> Wide:
    """Numbers from high (signed) and low words; low words may be signed integers with the same bits."""
    low = np.asarray(low)
    low = low if low.dtype.kind == "u" else low.astype(np.int64).view(np.uint64)
    result = np.empty(np.broadcast_shapes(np.shape(high), low.shape), WIDE)
    result["high"], result["low"] = high, low
    return result


def wide_integer(value: int) -> Wide:
    """One number as a zero-dimensional array."""
    return np.array((value & ((1 << 64) - 1), value >> 64), WIDE)


def widened(values: Ints) -> Wide:
    """Converts int64 to 128-bit integers."""
    return wide(values >> 63, values)


def equal(left: Wide, right: Wide) -> Mask:
    """Whether numbers are equal, element by element."""
    same: Mask = (left["high"] == right["high"]) & (left["low"] == right["low"])
    return same


def less(left: Wide, right: Wide) -> Mask:
    """Whether the left number is smaller, element by element."""
    first, second = left["high"], right["high"]
    below: Mask = (first < second) | ((first == second) & (left["low"] < right["low"]))
    return below


def added(left: Wide, right: Wide) -> Wide:
    """Sums, modulo 2**128."""
    with np.errstate(over="ignore"):
        low = left["low"] + right["low"]
        return wide(left["high"] + right["high"] + (low < left["low"]), low)


def negated(values: Wide) -> Wide:
    """Numbers with the opposite sign."""
    with np.errstate(over="ignore"):
        return wide(~values["high"] + (values["low"] == 0), ~values["low"] + np.uint64(1))


def magnitudes(values: Wide) -> Wide:
    """Absolute values."""
    return np.where(values["high"] < 0, negated(values), values)


def multiplied(left: Wide, right: Wide) -> Wide:
    """Products modulo 2**128, from 32-bit halves of the low words; high words only matter modulo 2**64."""
    shift = np.uint64(32)
    with np.errstate(over="ignore"):
        a0, a1 = left["low"] & _HALF, left["low"] >> shift
        b0, b1 = right["low"] & _HALF, right["low"] >> shift
        first = a1 * b0 + ((a0 * b0) >> shift)
        second = a0 * b1 + (first & _HALF)
        carry = a1 * b1 + (first >> shift) + (second >> shift)
        cross = left["low"] * _unsigned(right["high"]) + _unsigned(left["high"]) * right["low"]
        return wide(np.asarray(carry + cross).view(np.int64), left["low"] * right["low"])


def _unsigned(words: Ints) -> npt.NDArray[np.uint64]:
    return np.asarray(words).view(np.uint64)


def scaled(values: Wide, power: int) -> Wide:
    """Numbers times 10**power, for power from 0 to 38."""
    return multiplied(values, wide_integer(10**power)) if power else values


def beyond(values: Wide, precision: int) -> Mask:
    """Marks numbers with more than `precision` decimal digits."""
    limit = wide_integer(10**precision)
    return ~(less(values, limit) & less(negated(limit), values))


def of_words(words: Words) -> tuple[Wide, Mask]:
    """Converts normalised integer sums; the mask marks sums that need more than 127 bits."""
    zero = np.int64(0)
    low, middle, top = (words.get(place, zero) for place in range(3))
    with np.errstate(over="ignore"):
        total = added(widened(np.asarray(low)), wide(middle >> (64 - WORD_BITS), middle << WORD_BITS))
        total = added(total, wide(top << (2 * WORD_BITS - 64), zero))
    room = np.int64(1) << (127 - 2 * WORD_BITS)
    outside = (top >= room) | (top < -room)
    for place, word in words.items():
        if place > 2:
            outside = outside | (word != 0)
    return total, np.broadcast_to(outside, total.shape)


def divided(values: Wide, power: int, count: Ints) -> tuple[Wide, Mask]:
    """Computes `values * 10**power / count`, rounded half up; the mask marks results of more than 127 bits.

    `power` is 0 to 4, `count` from 1 to 2**50.
    """
    rest = np.zeros(values.shape, np.int64)
    quotient = [np.zeros(values.shape, np.int64)] * (_MOST_DIGITS + 2)
    for place, digit in reversed(list(enumerate(_multiplied_digits(magnitudes(values), 10**power)))):
        dividend = (rest << _BITS) + digit
        quotient[place] = dividend // count
        rest = dividend - quotient[place] * count
    whole, outside = _of_digits(quotient)
    whole = added(whole, widened((2 * rest >= count).astype(np.int64)))
    return np.where(values["high"] < 0, negated(whole), whole), outside | (whole["high"] < 0)


def _multiplied_digits(values: Wide, factor: int) -> list[Ints]:
    """Numbers below 2**127 times a factor below 2**14, as digits of 13 bits, lowest first."""
    mask, high, low = np.uint64((1 << _BITS) - 1), values["high"].view(np.uint64), values["low"]
    digits: list[Ints] = []
    carry = np.zeros(values.shape, np.int64)
    for place in range(_MOST_DIGITS + 2):
        at = place * _BITS
        if at + _BITS <= 64:
            part = low >> np.uint64(at)
        elif at < 64:
            part = (low >> np.uint64(at)) | (high << np.uint64(64 - at))
        else:
            part = high >> np.uint64(at - 64) if at < 128 else np.zeros_like(high)
        product = (part & mask).astype(np.int64) * factor + carry
        carry = product >> _BITS
        digits.append(product - (carry << _BITS))
    return digits


def _of_digits(digits: list[Ints]) -> tuple[Wide, Mask]:
    """Converts 13-bit digits to numbers; the mask marks numbers that need more than 127 bits."""
    low, high = np.zeros((2, *digits[0].shape), np.int64)
    for place, digit in enumerate(digits[:_MOST_DIGITS]):
        at = place * _BITS
        if at < 64:
            low |= digit << at
            high |= digit >> (64 - at) if at > 64 - _BITS else 0
        else:
            high |= digit << (at - 64)
    outside = digits[_MOST_DIGITS - 1] >= 1 << (127 - _BITS * (_MOST_DIGITS - 1))
    for digit in digits[_MOST_DIGITS:]:
        outside = outside | (digit != 0)
    return wide(high, low), outside


def rounded(values: Wide, power: int) -> Wide:
    """Computes `values / 10**power`, rounded half up, for numbers of at most 38 digits and `power` from 0 to 38."""
    if not power:
        return values
    whole = added(magnitudes(values), wide_integer(5 * 10 ** (power - 1)))
    while power:
        step = min(power, _CHUNK)
        whole = _floored(whole, 10**step)
        power -= step
    return np.where(values["high"] < 0, negated(whole), whole)


def _floored(values: Wide, divisor: int) -> Wide:
    """Divides numbers that are not negative by a divisor below 2**50, and rounds down."""
    rest = np.zeros(values.shape, np.int64)
    quotient = [rest] * _MOST_DIGITS
    for place, digit in reversed(list(enumerate(_multiplied_digits(values, 1)[:_MOST_DIGITS]))):
        dividend = (rest << _BITS) + digit
        quotient[place] = dividend // divisor
        rest = dividend - quotient[place] * divisor
    return _of_digits(quotient)[0]
