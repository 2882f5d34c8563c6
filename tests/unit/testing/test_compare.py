"""The comparison finds each kind of difference, and no false ones."""

import datetime
import math
import struct
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.testing.compare import Tolerance, assert_same_rows, canonical, difference, rows_of

NEXT = math.nextafter(1.0, 2.0)


@pytest.mark.parametrize(("left", "right"), [
    (None, None), (math.nan, -math.nan), (0.0, -0.0), ("é", "é"), (True, True),
    ({"start": 1, "end": 2}, {"end": 2, "start": 1}), ([1, math.nan], (1, math.nan)),
    (datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999), -1),
    (datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))), 0),
    (datetime.date(1970, 1, 2), 1),
])  # fmt: skip
def test_these_are_the_same(left: Any, right: Any) -> None:
    assert difference([{"x": left}], [{"x": right}]) is None


@pytest.mark.parametrize(("left", "right"), [
    (None, 0), (None, math.nan), (None, ""), (1, 1.0), (1, True), (0, False), (1.0, NEXT),
    (math.inf, math.nan),
    (math.inf, -math.inf), ("e\u0301", "é"), ("a", "A"), (2**53, 2**53 + 1), (b"a", "a"),
    ({"start": 1, "end": 2}, {"start": 1, "end": 3}), ([1, 2], [2, 1]), (5e-324, 0.0),
    (np.int64(1), struct.pack("q", 1)), (np.int64(0), np.float64(0)), ([np.int32(0)], [np.float32(0)]),
])  # fmt: skip
def test_these_differ(left: Any, right: Any) -> None:
    assert difference([{"x": left}], [{"x": right}])
    assert difference([{"x": right}], [{"x": left}])


def test_order_does_not_count_but_repetition_does() -> None:
    a, b = {"x": 1, "y": "a"}, {"x": 2, "y": "b"}
    assert difference([a, b, a], [a, a, b]) is None
    assert difference([a, b, a], [a, b, b])
    assert difference([a], [a, a]) == "1 rows expected, 2 found: 0 missing, 1 surplus.\n  surplus: {'x': 1, 'y': 'a'}"
    assert difference([a, a], [a]) == "2 rows expected, 1 found: 1 missing, 0 surplus.\n  missing: {'x': 1, 'y': 'a'}"


_ALIKE = st.sampled_from([
    None, 0, 0.0, -0.0, False, 1, 1.0, True, math.nan, -math.nan, 2**70, "", "0", "\ud800", b"", Decimal("1.0"),
    Decimal("1.00"), Decimal("-0"), datetime.datetime(1970, 1, 1), datetime.date(1970, 1, 2),
    np.int64(0), np.float64(0),
])  # fmt: skip
_VALUES = st.recursive(_ALIKE, lambda part: st.lists(part, max_size=2) | st.tuples(part) | st.dictionaries(
    st.sampled_from("xy"), part), max_leaves=3)  # fmt: skip


@given(st.lists(st.fixed_dictionaries({"a": _VALUES, "b": _ALIKE}), max_size=4), st.data())
def test_rows_are_judged_by_their_canonical_forms(left: list[dict[str, Any]], data: st.DataObject) -> None:
    right = [dict(row) for row in data.draw(st.permutations(left))]
    for row in data.draw(st.lists(st.sampled_from(right), max_size=1)) if right else []:
        row["b"] = data.draw(_ALIKE)
    same = Counter(map(canonical, left)) == Counter(map(canonical, right))
    assert (difference(left, right) is None) == same


def test_columns_must_be_the_same() -> None:
    assert difference([{"x": 1}], [{"x": 1, "y": None}]) == "Columns differ: ['x'] expected, ['x', 'y'] found."


def test_a_difference_names_the_nearest_row_and_the_column() -> None:
    expected = [{"k": "a", "n": 1, "m": 5}, {"k": "b", "n": 2, "m": 6}]
    actual = [{"k": "b", "n": 3, "m": 6}, {"k": "a", "n": 1, "m": 5}]
    text = difference(expected, actual)
    assert text is not None
    assert "differs: {'k': 'b', 'n': 2, 'm': 6} but n is 3" in text


def test_a_long_difference_is_cut() -> None:
    text = difference([{"x": i} for i in range(100)], [], limit=3)
    assert text is not None
    assert len(text.splitlines()) == 5
    assert text.endswith("and more")


def test_arrow_and_dicts_compare_with_times_as_microseconds() -> None:
    window = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
    table = pa.table(
        {
            "w": pa.array([{"start": -5, "end": 5}], window),
            "t": pa.array([-1], pa.timestamp("us")),
            "far": pa.array([2**62], pa.timestamp("us", "UTC")),
            "s": pa.array([3], pa.timestamp("s")),
            "f": pa.array([math.nan]),
        }
    )
    rows = [{"w": {"start": -5, "end": 5}, "t": -1, "far": 2**62, "s": 3_000_000, "f": math.nan}]
    assert difference(rows, table) is None
    assert difference(table.to_batches()[0], rows) is None
    assert difference(table, table.to_batches()[0]) is None
    assert rows_of(table)[0]["far"] == 2**62


def test_a_tolerance_holds_for_its_column_only() -> None:
    expected = [{"k": "a", "x": 1.0, "y": 1.0}, {"k": "a", "x": math.nan, "y": 2.0}]
    actual = [{"k": "a", "x": math.nan, "y": 2.0}, {"k": "a", "x": 1.0 + 1e-12, "y": 1.0}]
    assert difference(expected, actual)
    assert difference(expected, actual, tolerances={"x": 1e-9}) is None
    assert difference(expected, actual, tolerances={"y": 1e-9})
    assert difference(expected, actual, tolerances={"x": 1e-15})
    assert difference([{"x": 0.0}], [{"x": 1e-7}], tolerances={"x": 1e-9})
    assert difference([{"x": 0.0}], [{"x": 1e-7}], tolerances={"x": Tolerance(absolute=1e-6)}) is None
    assert difference([{"x": None}], [{"x": 0.0}], tolerances={"x": 1.0})
    assert difference([{"x": 1.0}], [{"x": 1}], tolerances={"x": 1.0})


def test_the_assertion_carries_the_difference() -> None:
    assert_same_rows([], [])
    with pytest.raises(AssertionError, match=r"q1: 1 rows expected, 0 found"):
        assert_same_rows([{"x": 1}], [], about="q1")
