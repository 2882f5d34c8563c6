"""What a query and its shadow tell differently in an epoch is what a count of their rows says."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.runtime.differing import NET, differing

NAN = float("nan")
SCHEMA = pa.schema([
    ("k", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("d", pa.decimal128(38, 2)), ("on", pa.date32()),
    ("b", pa.bool_()), ("w", pa.struct([("start", pa.timestamp("us", "UTC")), ("in", pa.struct([("i", pa.int8())]))])),
])  # fmt: skip
TIMES = [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2)]
INNER = st.sampled_from([None, {"i": None}, {"i": 1}])
ROW = st.fixed_dictionaries({
    "k": st.sampled_from([None, "", "a"]), "n": st.sampled_from([None, 0, 1]),
    "x": st.sampled_from([None, 0.0, -0.0, NAN, 1.5]), "d": st.sampled_from([None, Decimal("1.00")]),
    "on": st.sampled_from([None, dt.date(2026, 1, 1)]), "b": st.sampled_from([None, False, True]),
    "w": st.none() | st.fixed_dictionaries({"start": st.sampled_from([None, *TIMES]), "in": INNER}),
})  # fmt: skip
ROWS = st.lists(st.lists(ROW, max_size=6), max_size=3)


def batches(told: list[list[dict[str, Any]]], schema: pa.Schema = SCHEMA) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(rows, schema) for rows in told]


def net_of(found: pa.RecordBatch | None) -> Counter[str]:
    rows = [] if found is None else found.to_pylist()
    net = Counter[str]()
    for row in rows:
        net[repr({name: value for name, value in row.items() if name != NET})] += row[NET]
    return net


@settings(deadline=None)
@given(ROWS, ROWS, st.integers(0, 3))
def test_rows_are_taken_away_as_often_as_both_tell_them(
    query: list[list[dict[str, Any]]], shadow: list[list[dict[str, Any]]], alike: int
) -> None:
    shadow = [*query[:alike], *shadow]
    naive = Counter[str]()
    for told, side in ((query, 1), (shadow, -1)):
        for row in (row for rows in batches(told) for row in rows.to_pylist()):
            naive[repr(row)] += side
    found = differing(batches(query), batches(shadow))
    assert net_of(found) == naive  # a counter equals one that has zeros besides
    if any(query) and any(shadow):
        assert found is None or (found.num_rows and 0 not in found.column(NET).to_pylist())


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64())], ids=str)
def test_rows_that_arrow_does_not_group_all_differ(kind: pa.DataType) -> None:
    schema = pa.schema([("v", kind)])
    value = [1, 2] if pa.types.is_list(kind) else [("a", 1)]
    found = differing(batches([[{"v": value}]], schema), batches([[{"v": value}]], schema))
    assert found is not None and found.column(NET).to_pylist() == [1, -1]


def test_what_nobody_tells_differs_in_nothing() -> None:
    assert differing([], []) is None
