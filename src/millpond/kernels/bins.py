"""Bins: ranges of numbers that are taken as one, each a power of two cut into 2**bits equal parts (HDR Histogram,
DDSketch's linear interpolation: Tene 2012; Masson, Rim, Lee 2019).

The code of a bin is the leading bits of a double's order code, so codes are in the order of the numbers, the same on
every machine, and one of fewer bits is one of more bits cut off. NaN has a bin above that of infinity; numbers below
2**-1022 are taken as zero. A bin from l to h stands for 2 l h / (l + h), which is within (h - l) / (h + l) of each
number in it.
"""

from __future__ import annotations

import numpy as np

from millpond.arrays import Ints
from millpond.kernels.columns import Array, Values
from millpond.kernels.decimals import to_doubles
from millpond.model.expressions import Call
from millpond.model.types import digits_of, integer_range, is_decimal, is_float
from millpond.plan.groups.bin_counts import FINEST_BITS
from millpond.state.layout.cells import order_codes
from millpond.state.numbers.int128 import widened

_MANTISSA, _BIAS, _ODD = 52, 1023, 2047  # of a double: bits, bias, the exponent of infinity and NaN


def binned(node: Call, args: list[Values]) -> Values:
    """The finest bin of each number."""
    (value,), kind = args, node.args[0].type
    doubles = to_doubles(value.data, kind) if is_decimal(kind) else value.data.astype(np.float64)
    return Values(order_codes(doubles) >> (_MANTISSA - FINEST_BITS), value.null, value.error)


def coarser(codes: Ints, bits: int) -> Ints:
    """The codes of the first finest bin in the bin of so many bits."""
    return codes & ~((1 << (FINEST_BITS - bits)) - 1)


def midpoints(codes: Ints, bits: int) -> Array:
    """The number that the bin of so many bits, in which a finest bin lies, stands for."""
    cut, parts = codes >> (FINEST_BITS - bits), 1 << bits
    place = np.where(cut < 0, ~cut, cut)
    exponent, part = place >> bits, place & (parts - 1)
    least = parts + part
    middle = 2 * least * (least + 1) / (parts * (2 * least + 1))
    found = np.where(exponent == 0, 0.0, np.ldexp(middle, np.where(exponent == _ODD, 0, exponent - _BIAS)))
    found = np.where(exponent == _ODD, np.where(part > 0, np.nan, np.inf), found)
    return np.where(cut < 0, -found, found) + 0.0


def typed(numbers: Array, kind: str) -> Array:
    """The numbers in the type whose values were binned: the nearest ones that it has."""
    if is_float(kind):
        return numbers.astype(np.float32) if kind == "float" else numbers
    if is_decimal(kind):
        digits = digits_of(kind)
        most = 10**digits.precision - 1
        return widened(_whole(numbers * 10.0**digits.scale, -most, most))
    return _whole(numbers, *integer_range(kind))


def _whole(numbers: Array, least: int, most: int) -> Ints:
    """The nearest integers within bounds; compared as doubles, of which the largest bounds are none."""
    inside = (numbers > least) & (numbers < most)
    whole = np.rint(np.where(inside, numbers, 0.0)).astype(np.int64)
    return np.where(inside, whole, np.where(numbers > 0, most, least))
