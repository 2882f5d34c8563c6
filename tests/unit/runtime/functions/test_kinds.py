"""What user functions return, checked without a process: forms of results that fit, and results that are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millpond.runtime.functions import kinds

EVENTS = pa.table({"key": np.repeat([0, 1, 2], 2), "value": np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])})
DOUBLE = pa.float64()


@pytest.fixture
def samples() -> Any:
    import sample_functions  # in here, as a fixture makes it importable

    return sample_functions


def result(function: Any, table: pa.Table = EVENTS, answer: pa.DataType = DOUBLE) -> list[Any]:
    if isinstance(function, type):
        return kinds.mergeable(function(), table, 3, answer).to_pylist()
    if function.__annotations__.keys() >= {"table"}:
        return kinds.grouped(function, table, 3, answer).to_pylist()
    return kinds.holistic(function, table, 3, answer, lambda column: column, lambda _row: None).to_pylist()


def test_rows_of_a_table_may_be_in_any_order(samples: Any) -> None:
    assert result(samples.sums_backwards) == result(samples.sums) == [3.0, 7.0, 11.0]


def test_a_scalar_of_arrow_is_a_value(samples: Any) -> None:
    table = EVENTS.set_column(1, "value", pa.array([2, 1, 5, 7, 9, 8]))
    assert result(samples.latest, table, pa.int64()) == [2, 7, 9]


@pytest.mark.parametrize(("attribute", "what", "row"), [
    ("tells_truth", "gave a bool for a double", 0),
    ("key_twice", "gave a table without one row for each key", 1),
    ("texts", "gave a column of string for one of double", None),
    ("no_column", "gave a int for a column of double", None),
    ("ShrinkingState", "gave 2 states for 3", None),
    ("OtherState", "gave states of n int64, not of sum double, n int64", None),
])  # fmt: skip
def test_a_wrong_result_is_described_with_its_row(samples: Any, attribute: str, what: str, row: int | None) -> None:
    with pytest.raises(kinds.Wrong) as caught:
        result(getattr(samples, attribute))
    assert (str(caught.value), caught.value.row) == (what, row)
