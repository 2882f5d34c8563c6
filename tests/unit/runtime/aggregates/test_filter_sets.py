"""Bins, signatures and bundles compared with each filter evaluated over every row."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millpond.kernels.columns import from_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.model.expressions import Call, Column, Expression, call, conjunction, literal
from millpond.plan.groups.filter_ladders import conditions_of, ladders_of
from millpond.runtime.aggregates import filter_sets as module
from millpond.runtime.aggregates.filter_sets import Bundle, classify
from millpond.runtime.aggregates.partials import Rows

NUMBERS = (0.0, -0.0, 1.0, 1.5, -2.0, math.nan, math.inf, -math.inf, 5e-324, 1e300)
WHOLE = (0, 1, 2, -3, 2**62, 2**63 - 1, -(2**63))
TEXTS = ("", "a", "b", "ä", "zz")
COLUMNS = {"d": ("double", NUMBERS), "f": ("float", (0.0, -0.0, 1.5, math.nan, 2.0)), "n": ("bigint", WHOLE),
           "s": ("string", TEXTS), "t": ("timestamp", (0, 5, -7, 10**15))}  # fmt: skip
ARROW = {"double": pa.float64(), "float": pa.float32(), "bigint": pa.int64(), "string": pa.string(),
         "timestamp": pa.timestamp("us", "UTC")}  # fmt: skip


def rows_of(dice: random.Random, count: int) -> Rows:
    columns = {}
    for name, (kind, values) in COLUMNS.items():
        drawn = [None if dice.random() < 0.1 else dice.choice(values) for _ in range(count)]
        columns[name] = from_arrow(pa.array(drawn, ARROW[kind]), kind)
    keep = np.array([dice.random() < 0.9 for _ in range(count)])
    return Rows(Evaluator(columns, count), keep)


def comparison(dice: random.Random) -> Expression:
    name = dice.choice(list(COLUMNS))
    kind, values = COLUMNS[name]
    op = dice.choice(("eq", "same") if kind == "string" else ("eq", "lt", "le", "gt", "ge", "same"))
    constant = literal(None if dice.random() < 0.1 else dice.choice(values), kind)
    sides: tuple[Expression, ...] = (Column(name, kind), constant)
    made: Expression = Call(op, sides[:: dice.choice((1, -1))], "boolean")
    return call("not", (made,), "boolean") if dice.random() < 0.1 else made


def filters_of(dice: random.Random, count: int) -> list[Expression | None]:
    found: dict[Expression | None, None] = {None: None} if dice.random() < 0.5 else {}
    while len(found) < count:
        found[conjunction([comparison(dice) for _ in range(dice.randint(1, 3))])] = None
    return list(found)


def passing_by_rank(bundle: Bundle) -> np.ndarray[Any, Any]:
    """For each combination whether it passes each filter, ladder by ladder."""
    columns = [bundle.ranks[:, [i]] > np.arange(length) for i, length in enumerate(bundle.lengths)]
    return np.concatenate(columns, axis=1)


@pytest.mark.parametrize("most", [1 << 16, 2])
@pytest.mark.parametrize("seed", range(12))
def test_each_row_passes_what_each_filter_says(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SIGNATURES", most)
    dice = random.Random(seed)
    rows, filters = rows_of(dice, 200), filters_of(dice, 30)
    ladders = ladders_of({str(i): condition for i, condition in enumerate(filters)})
    filters = conditions_of(ladders)
    bundles = classify(rows, ladders, dice.choice((1, 10, 200)))
    found = np.zeros((rows.count, len(filters)), int)
    for bundle in bundles:
        assert bundle.ranks.any(axis=1).all(), "rows that pass nothing are not among them"
        assert len(np.unique(bundle.ranks, axis=0)) == len(bundle.ranks)
        found[bundle.rows] += passing_by_rank(bundle)[bundle.codes]
    for position, condition in enumerate(filters):
        passed = None if condition is None else rows.take(rows.evaluator(condition).is_true())
        expected = np.ones(rows.count, int) if passed is None else passed.astype(int)
        assert found[:, position].tolist() == expected.tolist(), condition
    late = np.array([dice.randint(0, 2) for _ in range(rows.count)])
    counted = sum(bundle.counts(late, 3) for bundle in bundles)
    for k in range(3):
        assert np.asarray(counted)[k].tolist() == found[late == k].sum(axis=0).tolist()


def test_thresholds_are_one_family_and_one_bundle() -> None:
    rows = rows_of(random.Random(1), 500)
    filters: list[Expression | None] = [
        call("gt", (Column("n", "bigint"), literal(limit, "bigint")), "boolean") for limit in range(-500, 500)
    ]
    ladders = ladders_of({str(i): condition for i, condition in enumerate(filters)})
    assert [len(ladder.filters) for ladder in ladders] == [1000]
    (bundle,) = classify(rows, ladders, 500)
    assert bundle.ranks.shape[1] == 1
    assert len(bundle.ranks) <= len(WHOLE)


def test_where_keys_are_few_unrelated_filters_get_signatures_of_their_own() -> None:
    rng = np.random.default_rng(1)
    columns = {f"c{i}": from_arrow(pa.array(rng.random(4000)), "double") for i in range(12)}
    rows = Rows(Evaluator(columns, 4000), np.ones(4000, bool))
    filters: list[Expression | None] = [
        call("gt", (Column(f"c{i}", "double"), literal(0.5, "double")), "boolean") for i in range(12)
    ]
    ladders = ladders_of({str(i): condition for i, condition in enumerate(filters)})
    few = classify(rows, ladders, 1)
    many = classify(rows, ladders, 4000)
    assert sum(len(bundle.ranks) for bundle in few) <= 24, "two each, not 2**12"
    assert len(many) == 1, "with a cell per event already, signatures cost no more"
