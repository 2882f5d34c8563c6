"""Bins represent their values within their error, in order, and nest."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.naive.aggregates import percentile_of_bins
from millpond.kernels.bins import coarser_bins, midpoints, typed
from millpond.kernels.columns import Values, arrow_type, from_arrow, to_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.model.aggregates import PERCENTILE, Aggregate
from millpond.model.expressions import Column, call, literal
from millpond.model.types import integer_range
from millpond.plan.groups.event_log import logged_rows
from millpond.plan.groups.tallies import FINEST_BITS, bits_of, error_of, tallied
from millpond.runtime.event_log.event_aggregates import ResultRows, input_of_windows
from millpond.runtime.event_log.select_events import filter_name, value_name
from millpond.runtime.event_log.tallies import percentiles
from millpond.state.layout.cells import order_codes
from millpond.state.layout.event_log import Events
from millpond.state.layout.tallies import COUNT, added_up

LEAST = 2.0**-1022


def codes_of(values: object, kind: str) -> np.ndarray:
    column = from_arrow(pa.array(values, arrow_type(kind)), kind)
    rows = Evaluator({"x": column}, len(column.data))
    return rows(call("bin", (Column("x", kind),), "int")).data


def percentile(kind: str, *fractions: float, accuracy: int = 10_000) -> Aggregate:
    given_ = tuple(literal(one, "double") for one in fractions)
    made = kind if len(fractions) == 1 else f"array<{kind}>"
    return Aggregate(PERCENTILE, Column("x", kind), None, made, parameters=given_, accuracy=accuracy)


def answered(aggregate: Aggregate, slots: np.ndarray, codes: np.ndarray, size: int) -> list[object]:
    binned = tallied(aggregate)
    condition = logged_rows(binned, None)
    assert condition is not None
    columns = {
        value_name(binned.arguments[0]): pa.array(coarser_bins(codes, bits_of(aggregate)).astype(np.int32)),
        filter_name(condition): pa.array(np.ones(len(codes), bool)), COUNT: pa.array(np.ones(len(codes), np.int64)),
    }  # fmt: skip
    none = np.zeros(len(codes), np.int64)
    tallies = added_up(Events(slots, none, none, columns))
    found = ResultRows(np.arange(size), np.zeros(size, np.int64), np.ones(size, np.int64))
    values = percentiles(aggregate, input_of_windows(binned, None, tallies, found))
    data = values.data if isinstance(values.data, pa.Array) else pa.array(values.data, mask=values.null)
    shown: list[object] = data.to_pylist()
    return shown


@given(st.floats(), st.integers(1, FINEST_BITS))
def test_a_number_is_within_the_error_of_its_bin(number: float, bits: int) -> None:
    (middle,) = midpoints(codes_of([number], "double"), bits)
    if math.isnan(number):
        assert math.isnan(middle)
    elif math.isinf(number) or abs(number) < LEAST:
        assert middle == (number if math.isinf(number) else 0.0)
    else:
        assert abs(middle - number) <= (error_of(bits) + 2.0**-52) * abs(number)  # and its own rounding


@given(st.lists(st.floats(), min_size=2), st.integers(1, FINEST_BITS))
def test_bins_are_in_the_order_of_numbers_and_nest(numbers: list[float], bits: int) -> None:
    codes = codes_of(numbers, "double")
    order = np.argsort(order_codes(np.array(numbers)), kind="stable")
    assert (np.diff(coarser_bins(codes, bits)[order]) >= 0).all()
    assert coarser_bins(coarser_bins(codes, FINEST_BITS), bits).tolist() == coarser_bins(codes, bits).tolist()
    assert np.array_equal(midpoints(coarser_bins(codes, bits), bits), midpoints(codes, bits), equal_nan=True)


@pytest.mark.parametrize("kind", ["tinyint", "smallint", "int", "bigint"])
def test_integers_are_the_nearest_of_their_type_and_small_ones_exact(kind: str) -> None:
    low, high = integer_range(kind)
    some = [low, low + 1, -1023, -1000, -127, -1, 0, 1, 2, 3, 99, 1000, 1023, 1024, high - 1, high]
    given_ = [number for number in some if low <= number <= high]
    found = typed(midpoints(codes_of(given_, kind), FINEST_BITS), kind).tolist()
    for number, other in zip(given_, found, strict=True):
        assert low <= other <= high
        assert abs(other - number) <= error_of(FINEST_BITS) * 1.000001 * abs(number) + 0.5
        assert other == number or abs(number) >= 2 << FINEST_BITS


def test_decimals_have_their_digits() -> None:
    given_ = [Decimal(text) for text in ("-99999999.99", "-0.01", "0.00", "12.34", "1234.56", "99999999.99")]
    found = typed(midpoints(codes_of(given_, "decimal(10,2)"), FINEST_BITS), "decimal(10,2)")
    shown = to_arrow(Values(found), "decimal(10,2)", len(given_)).to_pylist()
    for number, other in zip(given_, shown, strict=True):
        assert abs(other - number) <= abs(number) / 1024 + Decimal("0.005")
    assert shown[1:3] == given_[1:3]


@pytest.mark.parametrize("accuracy", [1, 100, 10_000])
def test_percentiles_of_many_keys_are_within_the_error_of_exact_ones(accuracy: int) -> None:
    random_ = np.random.default_rng(accuracy)
    slots = np.sort(random_.integers(0, 300, 60_000))
    values = random_.choice([-1, 1, 1], 60_000) * 10.0 ** random_.uniform(-2, 4, 60_000)
    fractions = (0.0, 0.01, 0.25, 0.5, 0.9, 0.999, 1.0)
    aggregate = percentile("double", *fractions, accuracy=accuracy)
    found = np.array(answered(aggregate, slots, codes_of(values, "double"), 300))
    for slot in range(300):
        ordered = np.sort(values[slots == slot])
        exact = ordered[[max(math.ceil(len(ordered) * fraction) - 1, 0) for fraction in fractions]]
        assert (np.abs(found[slot] - exact) <= (error_of(bits_of(aggregate)) + 2.0**-52) * np.abs(exact)).all()
        assert found[slot].tolist() == percentile_of_bins(aggregate, values[slots == slot].tolist())


def test_a_row_without_tallies_is_null() -> None:
    none = np.zeros(0, np.int64)
    assert answered(percentile("double", 0.5), none, none, 2) == [None, None]
    found = answered(percentile("double", 0.5), np.array([1]), codes_of([math.inf], "double"), 2)
    assert found == [None, math.inf]


def test_equal_tallies_are_one_and_what_is_unknown_is_a_value_too() -> None:
    columns = {"v": pa.array([7, None, 7, 8], pa.int32()), "f": pa.array([True, None, True, True])}
    columns[COUNT] = pa.array([2, 5, 3, 1], pa.int64())
    slots, times, late = np.array([1, 1, 1, 1]), np.array([0, 0, 0, 0]), np.array([0, 0, 0, 0])
    once = added_up(Events(slots, times, late, columns))
    assert (once.rows, once.columns[COUNT].to_pylist()) == (3, [5, 5, 1])
    assert once.columns["v"].to_pylist() == [7, None, 8]
