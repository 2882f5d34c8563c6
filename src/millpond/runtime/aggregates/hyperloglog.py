"""Approximate counts of distinct values: HyperLogLog++ (Heule, Nunkesser, Hall 2013) as Spark computes it.

The first p bits of a hash select one of 2**p registers. The register keeps the largest position of the first 1-bit in
the remaining bits. Registers merge by maximum. They are stored as int64 columns with eight registers each, one per
byte; a column whose registers are all zero is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints

LARGEST_PRECISION = 14
"""The largest precision p: a cell then has 2**14 registers of one byte, for a standard error of 0.8 %."""

_PER_COLUMN = 8
_NEIGHBOURS = 6
"""The number of points of the bias table that are averaged."""
_LINEAR_BELOW = (10, 20, 40, 80, 220, 400, 900, 1800, 3100, 6500, 15500)
"""For p = 4 … 14, the estimate up to which linear counting (of empty registers) is more accurate."""

Doubles = npt.NDArray[np.float64]


def registers(cells: Ints, hashes: Ints, precision: int, size: int) -> dict[int, Ints]:
    """Registers of 64-bit hashes by cell (0 … size-1): column k holds registers 8k … 8k + 7 of each cell."""
    bits = hashes.view(np.uint64)
    index = (bits >> np.uint64(64 - precision)).astype(np.int64)
    rank = _leading_zeros((bits << np.uint64(precision)) | np.uint64(1 << (precision - 1))) + 1
    # one sort groups the ranks of a register, the largest last, and the registers of a column and cell
    place = ((index // _PER_COLUMN) * size + cells) * _PER_COLUMN + index % _PER_COLUMN
    found = np.sort((place << 6) | rank)
    last = np.append(found[1:] >> 6 != found[:-1] >> 6, True) if len(found) else np.zeros(0, bool)
    found = found[last]
    if not len(found):
        return {}
    place, shifted = found >> 6, (found & 63) << (8 * ((found >> 6) % _PER_COLUMN))
    owners = place // _PER_COLUMN
    starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    joined, owners = np.bitwise_or.reduceat(shifted, starts), owners[starts]
    words = owners // size
    result: dict[int, Ints] = {}
    bounds = np.flatnonzero(np.append(True, words[1:] != words[:-1])).tolist()
    for low, high in zip(bounds, [*bounds[1:], len(words)], strict=True):
        column = np.zeros(size, np.int64)
        column[owners[low:high] % size] = joined[low:high]
        result[int(words[low])] = column
    return result


def _leading_zeros(values: npt.NDArray[np.uint64]) -> Ints:
    high, low = (values >> np.uint64(32)).astype(np.float64), (values & np.uint64(0xFFFFFFFF)).astype(np.float64)
    length = np.where(high > 0, np.frexp(high)[1] + 32, np.frexp(low)[1])  # 32 bits are exact in a double
    return np.asarray(64 - length, np.int64)


def estimates(columns: Mapping[int, Ints], precision: int, rows: int) -> Ints:
    """Estimates the number of distinct values from the registers of each of `rows` cells."""
    size = 1 << precision
    missing = size - _PER_COLUMN * len(columns)
    inverse, empty = np.full(rows, float(missing)), np.full(rows, float(missing))
    powers, zeros, ones = 2.0 ** -np.arange(64.0), np.arange(64) == 0, np.ones(_PER_COLUMN)
    for column in columns.values():
        ranks = np.ascontiguousarray(column, np.int64).view(np.uint8).reshape(rows, _PER_COLUMN)
        inverse += powers[ranks] @ ones  # exact: powers of two
        empty += zeros[ranks] @ ones
    alpha = {4: 0.673, 5: 0.697, 6: 0.709}.get(precision, 0.7213 / (1.0 + 1.079 / size))
    raw = alpha * size * size / inverse
    linear = size * np.log(size / np.maximum(empty, 1.0))
    by_empty = (empty > 0) & ((linear <= _LINEAR_BELOW[precision - 4]) | (raw <= 2.5 * size))
    corrected = np.where(raw < 5.0 * size, raw - _bias(raw, precision), raw)
    return np.floor(np.where(by_empty, linear, corrected) + 0.5).astype(np.int64)


def _bias(raw: Doubles, precision: int) -> Doubles:
    """The mean bias of the nearest points of the table, which is sorted except for a few neighbours."""
    truth, estimated = _table()[precision]
    low = np.maximum(_searched(estimated, raw) - _NEIGHBOURS + 1, 0)
    high = np.minimum(low + _NEIGHBOURS, len(estimated))
    while True:
        after = estimated[np.minimum(high, len(estimated) - 1)]
        nearer = (high < len(estimated)) & ((raw - after) ** 2 < (raw - estimated[low]) ** 2)
        if not nearer.any():
            break
        low, high = low + nearer, high + nearer
    biases, total = estimated - truth, np.zeros(len(raw))
    for k in range(_NEIGHBOURS):
        total += np.where(low + k < high, biases[np.minimum(low + k, len(biases) - 1)], 0.0)
    return np.asarray(total / (high - low))


def _searched(table: Doubles, values: Doubles) -> Ints:
    """Binary search with the same steps as Java's, which matters where neighbours in the table are out of order."""
    low, high = np.zeros(len(values), np.int64), np.full(len(values), len(table) - 1)
    while (low <= high).any():
        middle = (low + high) >> 1
        at = table[np.clip(middle, 0, len(table) - 1)]
        going = low <= high
        same = going & (at == values)
        low, high = (
            np.where(same, middle, np.where(going & (at < values), middle + 1, low)),
            np.where(same, middle - 1, np.where(going & (at > values), middle - 1, high)),
        )
    return low


@cache
def _table() -> dict[int, tuple[Doubles, Doubles]]:
    """For each precision the true counts, and the raw estimates that were measured for them."""
    text = Path(__file__).with_name("hyperloglog.txt").read_text(encoding="utf-8")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {
        int(precision[0]): (np.array(truth, np.float64), np.array(raw, np.float64))
        for precision, truth, raw in zip(lines[::3], lines[1::3], lines[2::3], strict=True)
    }
