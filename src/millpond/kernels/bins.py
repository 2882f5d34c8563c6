"""Bins: ranges of numbers that count as one value, for approximate percentiles.

The range between two powers of two is cut into 2**bits equal bins (HDR Histogram, Tene 2012; linear interpolation of
DDSketch, Masson, Rim, Lee 2019).

The code of a bin is the leading bits of a double's order code. So codes are in the order of the numbers and equal on
every machine, and truncating a code gives the code of a bin with fewer bits. NaN has a bin above that of infinity;
numbers below 2**-1022 count as zero. A bin from l to h is represented by 2 l h / (l + h), whose relative distance to
each number in the bin is at most (h - l) / (h + l).
"""

from __future__ import annotations

import numpy as np

from millpond.arrays import Ints
from millpond.kernels.columns import Array, Values
from millpond.kernels.decimals import to_doubles
from millpond.model.expressions import Call
from millpond.model.types import digits_of, integer_range, is_decimal, is_float
from millpond.plan.groups.tallies import FINEST_BITS
from millpond.state.layout.cells import order_codes
from millpond.state.numbers.int128 import widened

_MANTISSA, _BIAS, _ODD = 52, 1023, 2047  # of doubles: bits of the mantissa, bias, and the exponent of infinity and NaN


def finest_bins(node: Call, args: list[Values]) -> Values:
    """The code of the finest bin of each number."""
    (value,), kind = args, node.args[0].type
    doubles = to_doubles(value.data, kind) if is_decimal(kind) else value.data.astype(np.float64)
    return Values(order_codes(doubles) >> (_MANTISSA - FINEST_BITS), value.null, value.error)


def coarser_bins(codes: Ints, bits: int) -> Ints:
    """The codes of bins of `bits` bits, each given as the code of the first finest bin in it."""
    return codes & ~((1 << (FINEST_BITS - bits)) - 1)


def midpoints(codes: Ints, bits: int) -> Array:
    """The numbers that represent the bins of `bits` bits to which the finest bins `codes` belong."""
    cut, parts = codes >> (FINEST_BITS - bits), 1 << bits
    place = np.where(cut < 0, ~cut, cut)
    exponent, part = place >> bits, place & (parts - 1)
    least = parts + part
    middle = 2 * least * (least + 1) / (parts * (2 * least + 1))
    found = np.where(exponent == 0, 0.0, np.ldexp(middle, np.where(exponent == _ODD, 0, exponent - _BIAS)))
    found = np.where(exponent == _ODD, np.where(part > 0, np.nan, np.inf), found)
    return np.where(cut < 0, -found, found) + 0.0


def typed(numbers: Array, kind: str) -> Array:
    """Rounds numbers to the nearest values of the type `kind`, whose values were binned."""
    if is_float(kind):
        return numbers.astype(np.float32) if kind == "float" else numbers
    if is_decimal(kind):
        digits = digits_of(kind)
        most = 10**digits.precision - 1
        return widened(_whole(numbers * 10.0**digits.scale, -most, most))
    return _whole(numbers, *integer_range(kind))


def _whole(numbers: Array, least: int, most: int) -> Ints:
    """The nearest integers within bounds; the comparison is strict, as the largest bounds are not exactly doubles."""
    inside = (numbers > least) & (numbers < most)
    whole = np.rint(np.where(inside, numbers, 0.0)).astype(np.int64)
    return np.where(inside, whole, np.where(numbers > 0, most, least))
