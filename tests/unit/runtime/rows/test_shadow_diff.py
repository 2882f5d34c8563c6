"""The differences between a query and its shadow in an epoch equal a count of their rows."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millpond.model.change_history import ChangeEffects
from millpond.model.expressions import Column
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.plan.groups.build import build_plan
from millpond.runtime.rows.shadow_diff import NET, ShadowDiff, row_diff

NAN = float("nan")
PAIR = {"q": "q@shadow"}
ONE = Selection("q", "s", (Named("k", Column("k", "string")),))
SCHEMA = pa.schema([
    ("k", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("d", pa.decimal128(38, 2)), ("on", pa.date32()),
    ("raw", pa.binary()), ("b", pa.bool_()),
    ("w", pa.struct([("start", pa.timestamp("us", "UTC")), ("in", pa.struct([("i", pa.int8())]))])),
])  # fmt: skip
DAYS = [dt.date(1969, 1, 1), dt.date(2026, 1, 1)]
TIMES = [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2)]
DECIMALS = [*map(Decimal, ("1.00", "-1.00", "184467440737095516.17"))]
INNER = st.sampled_from([None, {"i": None}, {"i": 1}])
ROW = st.fixed_dictionaries({
    "k": st.sampled_from([None, "", "a"]), "n": st.sampled_from([None, 0, 1]),
    "x": st.sampled_from([None, 0.0, -0.0, NAN, 1.5]), "d": st.sampled_from([None, *DECIMALS]),
    "on": st.sampled_from([None, *DAYS]), "raw": st.sampled_from([None, b"", b"a"]),
    "b": st.sampled_from([None, False, True]),
    "w": st.none() | st.fixed_dictionaries({"start": st.sampled_from([None, *TIMES]), "in": INNER}),
})  # fmt: skip
ROWS = st.lists(st.lists(ROW, max_size=6), max_size=3)


def batches(lists: list[list[dict[str, Any]]], schema: pa.Schema = SCHEMA) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(rows, schema) for rows in lists if rows]


def net_of(found: pa.Table | None) -> Counter[str]:
    rows = [] if found is None else found.to_pylist()
    net = Counter[str]()
    for row in rows:
        net[repr({name: value for name, value in row.items() if name != NET})] += row[NET]
    return net


@given(ROWS, ROWS, st.integers(0, 3))
def test_rows_cancel_out_as_often_as_both_emit_them(
    query: list[list[dict[str, Any]]], shadow: list[list[dict[str, Any]]], alike: int
) -> None:
    shadow = [*query[:alike], *shadow]
    naive = Counter[str]()
    for emitted, side in ((query, 1), (shadow, -1)):
        for row in (row for rows in batches(emitted) for row in rows.to_pylist()):
            naive[repr(row)] += side
    found = row_diff(batches(query), batches(shadow))
    assert net_of(found) == naive  # a counter equals one that has zeros besides
    if any(query) and any(shadow):
        assert (0 if found is None else found.num_rows) == sum(map(bool, naive.values())), "each once, or not at all"


def test_rows_with_lists_all_differ_here() -> None:
    emitted = batches([[{"v": [1, 2]}]], pa.schema([("v", pa.list_(pa.int64()))]))
    found = row_diff(emitted, emitted)
    assert found is not None and found.column(NET).to_pylist() == [1, -1]


def test_rows_are_the_same_though_one_version_knows_that_none_is_null() -> None:
    """A list makes all rows differ, but the differences of two instances are combined."""
    sides = []
    for nulls in (False, True):
        members = pa.list_(pa.field("element", pa.int64(), nulls))
        schema = pa.schema([("v", pa.struct([pa.field("a", pa.int64(), nulls)])), ("l", members)])
        sides.append(batches([[{"v": {"a": 1}, "l": None}]], schema))
    parts = [part for part in (row_diff(sides[0], []), row_diff([], sides[1]), row_diff(*sides)) if part is not None]
    assert pa.concat_tables(parts).column(NET).to_pylist() == [1, -1, 1, -1]
    assert row_diff(*([batch.select(["v"]) for batch in side] for side in sides)) is None


def test_only_what_others_read_is_compared() -> None:
    rows, private = batches([[{"k": "a"}]], pa.schema([("k", pa.string())])), pa.array(["[1]"])
    plan = build_plan([ONE, replace(ONE, name="q@shadow")], changes=ChangeEffects(shadows=PAIR))
    diff = ShadowDiff(plan, ())
    diff.add("q", [rows[0].append_column("__key", private)])
    diff.add("q@shadow", [*rows, rows[0].slice(0, 0)])
    assert not list(diff.batches())
    diff.add("q@shadow", rows)  # rows that are added in several parts are compared as one
    (found,) = diff.batches()
    assert (found.kind, found.owner) == ("differing", "q")
    assert found.rows.to_pylist() == [{"k": "a", NET: -1}]


def test_a_pair_of_which_one_is_silent_has_no_differences() -> None:
    plan = build_plan([ONE, replace(ONE, name="q@shadow")], changes=ChangeEffects(shadows=PAIR))
    for silent in ("q", "q@shadow"):
        diff = ShadowDiff(plan, {silent})
        diff.add("q", batches([[{"k": "a"}]], pa.schema([("k", pa.string())])))
        assert not list(diff.batches())


def test_two_empty_outputs_do_not_differ() -> None:
    assert row_diff([], []) is None
