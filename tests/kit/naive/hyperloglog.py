"""The naive twin of approximate counts: XXH64 of one value byte by byte, and HyperLogLog++ over a dict of registers."""

from __future__ import annotations

import bisect
import math
import struct
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import millpond.runtime.aggregates.hyperloglog
from millpond.model.types import digits_of, is_decimal

_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 11400714785074694791, 14029467366897019727, 1609587929392839161
_P4, _P5 = 9650029242287828579, 2870177450012600261
_LINEAR = dict(enumerate((10, 20, 40, 80, 220, 400, 900, 1800, 3100, 6500, 15500), 4))


def hash64(value: Any, kind: str) -> int:
    """Spark's `xxhash64(value)` of a value of SQL type `kind`, as a signed number.

    >>> hash64("abc", "string"), hash64(7, "int")
    (1423657621850124518, 2786828215451145335)
    """
    found = _xxh64(_bytes(value, kind), 42)
    return found - (1 << 64) if found >> 63 else found


def _bytes(value: Any, kind: str) -> bytes:
    if kind == "string":
        return str(value).encode()
    if kind in ("float", "double"):
        shown = math.nan if math.isnan(value) else value + 0.0  # one NaN, one zero
        return struct.pack("<f" if kind == "float" else "<d", shown)
    if is_decimal(kind):
        digits = digits_of(kind)
        unscaled = int(Fraction(value) * 10**digits.scale)
        if digits.precision <= 18:
            return unscaled.to_bytes(8, "little", signed=True)
        size = 1
        while not -(1 << (8 * size - 1)) <= unscaled < 1 << (8 * size - 1):
            size += 1
        return unscaled.to_bytes(size, "big", signed=True)
    size = 4 if kind in ("boolean", "tinyint", "smallint", "int", "date") else 8
    return int(value).to_bytes(size, "little", signed=True)


def _rotl(value: int, bits: int) -> int:
    value &= _MASK
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _round(mixed: int, word: bytes) -> int:
    return _rotl(mixed + int.from_bytes(word, "little") * _P2, 31) * _P1 & _MASK


def _xxh64(data: bytes, seed: int) -> int:
    length, rest = len(data), data
    mixed = seed + _P5
    if length >= 32:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        while len(rest) >= 32:
            lanes = [_round(lane, rest[8 * i : 8 * i + 8]) for i, lane in enumerate(lanes)]
            rest = rest[32:]
        mixed = sum(_rotl(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            mixed = (mixed ^ (_rotl(lane * _P2, 31) * _P1)) * _P1 + _P4
    mixed += length
    while len(rest) >= 8:
        mixed = _rotl((mixed & _MASK) ^ _round(0, rest[:8]), 27) * _P1 + _P4
        rest = rest[8:]
    if len(rest) >= 4:
        mixed = _rotl((mixed & _MASK) ^ (int.from_bytes(rest[:4], "little") * _P1), 23) * _P2 + _P3
        rest = rest[4:]
    for byte in rest:
        mixed = _rotl((mixed & _MASK) ^ (byte * _P5), 11) * _P1
    for bits, prime in ((33, _P2), (29, _P3), (32, 1)):
        mixed &= _MASK
        mixed = (mixed ^ (mixed >> bits)) * prime
    return mixed & _MASK


def approximate_count(values: Iterable[Any], kind: str, error: float) -> int:
    """Spark's `approx_count_distinct(x, error)` of values that are not NULL."""
    precision = math.ceil(2 * math.log2(1.106 / error))
    size = 1 << precision
    registers: dict[int, int] = {}
    for value in values:
        bits = format(hash64(value, kind) & _MASK, "064b")
        first = bits[precision:].find("1") + 1 or 64 - precision + 1
        place = int(bits[:precision], 2)
        registers[place] = max(registers.get(place, 0), first)
    empty = size - len(registers)
    inverse = empty + sum(2.0**-first for first in registers.values())
    alpha = {16: 0.673, 32: 0.697, 64: 0.709}.get(size, 0.7213 / (1 + 1.079 / size))
    raw = alpha * size * size / inverse
    linear = size * math.log(size / empty) if empty else math.inf
    if empty and (linear <= _LINEAR[precision] or raw <= 2.5 * size):
        return math.floor(linear + 0.5)
    return math.floor((raw - _bias(raw, precision) if raw < 5 * size else raw) + 0.5)


def _bias(raw: float, precision: int) -> float:
    path = Path(millpond.runtime.aggregates.hyperloglog.__file__).with_suffix(".txt")
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    row = lines.index(str(precision))
    truth, estimated = ([float(word) for word in line.split()] for line in lines[row + 1 : row + 3])
    low = max(bisect.bisect_left(estimated, raw) - 5, 0)
    high = min(low + 6, len(estimated))
    while high < len(estimated) and abs(estimated[high] - raw) < abs(raw - estimated[low]):
        low, high = low + 1, high + 1
    return sum(estimated[i] - truth[i] for i in range(low, high)) / (high - low)
