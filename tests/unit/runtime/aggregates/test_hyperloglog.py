"""Registers and estimates equal the naive twin's, merge by maximum, and keep the requested error."""

from __future__ import annotations

import numpy as np
import pytest

from kit.naive.hyperloglog import approximate_count, hash64
from millpond.model.expressions import literal
from millpond.plan.groups.measures import precision_of
from millpond.runtime.aggregates.hyperloglog import LARGEST_PRECISION, estimates, registers
from millpond.state.layout.merge_rules import REGISTERS, merged


def hashed(values: list[int]) -> np.ndarray:
    return np.array([hash64(value, "bigint") for value in values], np.int64)


@pytest.mark.parametrize("error", [0.39, 0.3, 0.2, 0.15, 0.05, 0.02, 0.01])
def test_estimates_are_the_naive_twin_s_at_every_size(error: float) -> None:
    precision = precision_of(literal(error, "double"))
    size, dice = 1 << precision, np.random.default_rng(1)
    counts = [0, 1, 2, *(min(20_000, int(size * part)) for part in (0.5, 0.9, 1.5, 2.5, 3, 4, 4.9, 5, 7))]
    for count in counts:
        values = dice.integers(-(2**62), 2**62, count).tolist()
        found = registers(np.zeros(count, np.int64), hashed(values), precision, 1)
        assert estimates(found, precision, 1).tolist() == [approximate_count(values, "bigint", error)]


def test_registers_of_many_cells_are_those_of_each_and_merge_by_maximum() -> None:
    dice, size, precision = np.random.default_rng(2), 7, 9
    cells, values = dice.integers(0, size, 3000), dice.integers(0, 1000, 3000)
    codes = hashed(values.tolist())
    whole = registers(cells, codes, precision, size)
    halves = [registers(cells[part], codes[part], precision, size) for part in (slice(None, 1500), slice(1500, None))]
    zero = np.zeros(size, np.int64)
    for place in {*whole, *halves[0], *halves[1]}:
        found = merged(REGISTERS, *(half.get(place, zero) for half in halves))
        assert found.tolist() == whole.get(place, zero).tolist()
    found = estimates(whole, precision, size)
    for cell in range(size):
        assert found[cell] == approximate_count(set(values[cells == cell].tolist()), "bigint", 0.05)


def test_no_rows_are_no_columns_and_no_values() -> None:
    none = np.zeros(0, np.int64)
    assert registers(none, none, 9, 3) == {}
    assert estimates({}, 9, 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("error", [0.2, 0.05, 0.01])
def test_the_error_is_within_the_requested_one(error: float) -> None:
    """Over many sets of known size the root of the mean squared relative error stays below it."""
    precision, dice = precision_of(literal(error, "double")), np.random.default_rng(3)
    for count in (10, 300, 3000):
        cells = np.repeat(np.arange(500), count)
        codes = dice.integers(-(2**63), 2**63 - 1, len(cells))  # a hash of distinct values is as good as random bits
        found = estimates(registers(cells, codes, precision, 500), precision, 500)
        assert np.sqrt(np.mean((found / count - 1) ** 2)) <= error


def test_the_largest_precision_has_a_table() -> None:
    every = registers(np.zeros(1, np.int64), np.zeros(1, np.int64), LARGEST_PRECISION, 1)
    assert estimates(every, LARGEST_PRECISION, 1).tolist() == [1]
