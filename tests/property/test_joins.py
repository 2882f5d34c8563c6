"""Joins of two streams: their rows are those of two plain loops, each once, when it is final, however the input is cut."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.expressions import Call, Column, Expression, call, literal
from millpond.model.join import KINDS, LEFT, RIGHT, Join, Side, Within
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.model.spec import from_json, to_json
from millpond.model.stream import Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.plan.build import build_plan
from millpond.runtime import fold, joins, matching
from millpond.testing import naive_join
from millpond.testing.answers import Run, dealt
from millpond.testing.cases import EVERYTHING, SECOND, STREAM, condition
from millpond.testing.compare import assert_same_rows, rows_of
from millpond.testing.rowwise import Raised

PROPERTY = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
PAID = replace(STREAM, name="paid")
K, G, F, V, TS = (
    Column(name, kind) for name, kind in
    (("k", "string"), ("g", "bigint"), ("f", "double"), ("v", "int"), ("ts", "timestamp"))
)  # fmt: skip
VALUES = (K, G, V, TS)
Batch = dict[str, list[dict[str, Any]]]


def of(side: str, i: int) -> Column:
    return Column(f"{side}:{i}", VALUES[i].type)


def random_events(dice: random.Random, count: int, start: int) -> list[dict[str, Any]]:
    return [
        {
            "k": dice.choice(("a", "b", "ä", "", None)),
            "g": dice.choice((1, 2, 2**62, None)),
            "f": dice.choice((0.0, -0.0, float("nan"), 1.5, None)),
            "v": dice.choice((0, 1, 5, 2**31 - 1, None)),
            "amount": dice.choice((0.0, 1.0, None)), "p": None, "d": None,
            "flag": dice.choice((True, False, None)),
            "ts": None if not dice.randint(0, 15) else (start + dice.randint(-12, 12)) * SECOND,
        }
        for _ in range(count)
    ]


def random_epochs(dice: random.Random, events: int) -> list[Batch]:
    """Both streams move on, not equally fast, with late events on both; some epochs have none of one."""
    found, at = [], {"events": 0, "paid": dice.randint(-20, 20)}
    for _ in range(dice.randint(1, 5)):
        batch: Batch = {}
        for name in at:
            at[name] += dice.randint(-5, 20)
            if dice.randint(0, 4):
                batch[name] = random_events(dice, dice.randint(0, events), at[name])
        found.append(batch)
    return found


def random_join(dice: random.Random, name: str = "j", raising: bool = False) -> Join:
    keys = dice.choice(((K,), (K,), (G,), (F,), (K, G), ()))
    size = dice.choice((5, 10)) * SECOND
    bound = dice.randint(-12, 12) * SECOND
    when: Within | Sliding = dice.choice((
        Within(bound, bound + dice.randint(0, 15) * SECOND),
        Sliding(size, dice.choice((size, size // 5 * 2, 5 * SECOND)), dice.choice((0, SECOND))),
    ))  # fmt: skip
    sides = [
        Side(stream, "ts", dice.choice((0, 5, 30)) * SECOND, keys, VALUES,
             condition(dice, EVERYTHING) if dice.randint(0, 1) else None)
        for stream in ("events", dice.choice(("paid", "paid", "events")))
    ]  # fmt: skip
    output = [Named(f"{side}{i}", of(side, i)) for side in (LEFT, RIGHT) for i in range(len(VALUES))]
    if isinstance(when, Sliding):
        output += [Named("lw", Column("left:window", WINDOW)), Named("re", Column("right:window.end", "timestamp"))]
    total = call("add", (of(LEFT, 1), of(RIGHT, 1)), "bigint")
    conditions: list[Expression | None] = [
        None,
        call("lt", (of(LEFT, 2), of(RIGHT, 2)), "boolean"),
        call("or", (call("same", (of(LEFT, 0), of(RIGHT, 0)), "boolean"), call("isnull", (of(RIGHT, 2),), "boolean"))
             , "boolean"),
        *((call("gt", (total, literal(2, "bigint")), "boolean"),) if raising else ()),
    ]  # fmt: skip
    having = call("isnull", (of(dice.choice((LEFT, RIGHT)), 2),), "boolean")
    return Join(
        name, sides[0], sides[1], dice.choice(KINDS), when, tuple(output), dice.choice(conditions),
        having if not dice.randint(0, 4) else None,
    )  # fmt: skip


def fed(run: Run, batch: Batch, seed: int) -> None:
    deal = dealt(seed)
    run.epoch_of({name: deal(rows) for name, rows in batch.items()})


def started(folder: Path, asked: list[Join], instances: int) -> Run:
    return Run(folder, asked, instances, others=[PAID])


def rows_so_far(run: Run, name: str) -> list[dict[str, Any]]:
    return rows_of(run.sinks[name].table())


def is_given_up(run: Run, join: Join, epochs: list[Batch], until: float) -> bool:
    """Where the twin raises the join is quarantined, and only there."""
    try:
        naive_join.rows(join, naive_join.judged(join, epochs).taken, until)
    except Raised:
        return True
    assert join.name not in run.pond.manifest.quarantined
    return False


@PROPERTY
@given(seed=st.integers(0, 10**6), events=st.integers(0, 12), instances=st.integers(1, 3))
def test_rows_are_those_of_the_naive_twin(tmp_path_factory: Any, seed: int, events: int, instances: int) -> None:
    """After every epoch what has left is what is final; in the end it is everything, and every event has one fate."""
    dice = random.Random(seed)
    asked = [random_join(dice, f"j{i}") for i in range(3)]
    epochs, folder = random_epochs(dice, events), tmp_path_factory.mktemp("pond")
    run = started(folder, asked, instances)
    for i, batch in enumerate(epochs):
        if dice.randint(0, 3) == 0:  # a new driver, on what the log says
            run = started(folder, asked, instances)
        fed(run, batch, seed + i)
        for join in asked:
            mark = naive_join.mark_us(join, epochs[: i + 1])
            taken = naive_join.judged(join, epochs[: i + 1]).taken
            expected = [] if mark is None else naive_join.rows(join, taken, mark)
            assert_same_rows(expected, rows_so_far(run, join.name), about=str(join))
    run.pond.drain()
    for join in asked:
        judged = naive_join.judged(join, epochs)
        expected = naive_join.rows(join, judged.taken)
        assert_same_rows(expected, rows_so_far(run, join.name), about=str(join))
    assert not run.pond.manifest.quarantined
