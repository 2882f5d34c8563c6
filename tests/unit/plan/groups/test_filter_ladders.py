"""Ladders of filters: each filter is in one, and a wider filter takes every event of a narrower one."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from millpond.kernels.columns import from_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.model.expressions import Call, Column, Expression, call, conjunction, literal
from millpond.plan.groups.filter_ladders import ladders_of

COLUMNS = {
    "d": ("double", (0.0, -0.0, 1.0, 1.5, -2.0, math.nan, math.inf, -math.inf), pa.float64()),
    "f": ("float", (0.0, -0.0, 1.5, math.nan, 0.1, 2.0), pa.float32()),
    "n": ("bigint", (0, 1, 2, -3, 2**63 - 1), pa.int64()),
    "s": ("string", ("", "a", "b"), pa.string()),
}


def condition(dice: random.Random) -> Expression | None:
    parts: list[Expression] = []
    for _ in range(dice.randint(0, 3)):
        name = dice.choice(list(COLUMNS))
        kind, values, _ = COLUMNS[name]
        op = "eq" if kind == "string" else dice.choice(("eq", "lt", "le", "gt", "ge", "gt"))
        sides = (Column(name, kind), literal(None if dice.random() < 0.05 else dice.choice(values), kind))
        parts.append(Call(op, sides[:: dice.choice((1, -1))], "boolean"))
    return conjunction(parts)


@pytest.mark.parametrize("seed", range(20))
def test_each_filter_is_on_one_ladder_and_takes_what_the_next_one_takes(seed: int) -> None:
    dice = random.Random(seed)
    filters = {f"f{i}": one for i, one in enumerate(dict.fromkeys(condition(dice) for _ in range(80)))}
    ladders = ladders_of(filters)
    assert sorted(name for ladder in ladders for name in ladder.filters) == sorted(filters)
    assert any(len(ladder.filters) > 1 for ladder in ladders)
    drawn = {
        name: from_arrow(pa.array([dice.choice((*values, None)) for _ in range(300)], arrow), kind)
        for name, (kind, values, arrow) in COLUMNS.items()
    }
    rows = Evaluator(drawn, 300)
    for ladder in ladders:
        assert [filters[name] for name in ladder.filters] == list(ladder.conditions)
        masks = [np.ones(300, bool) if one is None else np.broadcast_to(rows(one).is_true(), (300,))
                 for one in ladder.conditions]  # fmt: skip
        for wider, narrower in pairwise(masks):
            assert not (narrower & ~wider).any(), ladder.conditions
        for mask, step in zip(masks, ladder.steps, strict=bool(ladder.steps)):
            parts = [np.broadcast_to(rows(part).is_true(), (300,)) for part in (*ladder.rest, step)]
            assert mask.tolist() == np.logical_and.reduce(parts).tolist()


def test_thresholds_with_different_conditions_are_separate_ladders() -> None:
    amount = Column("amount", "double")
    filters: dict[str, Expression | None] = {"all": None}
    for country in ("gr", "de"):
        for limit in (3.0, 1.0, 2.0):
            above = call("gt", (amount, literal(limit, "double")), "boolean")
            equal = call("eq", (Column("country", "string"), literal(country, "string")), "boolean")
            filters[f"{country}{limit:.0f}"] = conjunction([above, equal])
    assert [ladder.filters for ladder in ladders_of(filters)] == [
        ("all",), ("gr1", "gr2", "gr3"), ("de1", "de2", "de3"),
    ]  # fmt: skip
