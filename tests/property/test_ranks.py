"""Ranks among the events of a key and time are those of the naive twin, for any cut of the input."""

from __future__ import annotations

import random
import shutil
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.inputs.cases import DOUBLES, SECOND, STREAM, TEXTS, Case
from kit.inputs.examples import examples
from kit.judges.answers import answers, dealt
from kit.judges.naive_judge import held_against_twin
from millpond.model.aggregates import DIRECTIONS, RANKS, Aggregate
from millpond.model.expressions import Column, Expression, call, literal
from millpond.model.query import Named, Query
from millpond.model.windows import Range

PROPERTY = settings(suppress_health_check=list(HealthCheck))
COLUMNS = tuple(Column(field.name, field.type) for field in STREAM.columns if field.name in ("k", "f", "v", "p"))
UNIQUE = Column("g", "bigint")


def rank_of(dice: random.Random, function: str) -> Aggregate:
    """A rank by some columns; `row_number` has the unique column as its last one."""
    by: list[Expression] = dice.sample(COLUMNS, dice.randint(1, 3))
    by += [UNIQUE] if function == "row_number" else []
    directions = tuple(literal(dice.choice(DIRECTIONS), "string") for _ in by)
    return Aggregate(function, by[0], None, "int", *by[1:2], parameters=directions, more=tuple(by[2:]))


def ranking(dice: random.Random, name: str) -> Query:
    """Some ranks of each event, of all events or of the best ones, beside the number of events of its key and time."""
    keys = dice.choice([(), (Column("flag", "boolean"),)])
    made = [rank_of(dice, dice.choice(RANKS)) for _ in range(dice.randint(1, 3))]
    made.append(Aggregate("count", None, None, "bigint"))
    output = [Named("id", Column("event:0", "bigint")), Named("t", Column("window.time", "timestamp"))]
    output += [Named(f"a{i}", Column(f"agg:{i}", one.type)) for i, one in enumerate(made)]
    best = call("le", (Column("agg:0", "int"), literal(2, "int")), "boolean")
    return Query(
        name, STREAM.name, "ts", dice.choice([0, 5 * SECOND]), Range(0), keys, tuple(made), tuple(output),
        having=best if dice.randint(0, 1) else None, event=(UNIQUE,),
    )  # fmt: skip


def random_epochs(dice: random.Random, events: int, epochs: int) -> list[list[dict[str, Any]]]:
    """Events with few distinct times and many ties."""
    empty, found, time = dict.fromkeys(field.name for field in STREAM.columns), [], 0
    for i in range(events):
        time += dice.choice([0, 0, 0, 0, SECOND, 9 * SECOND])
        own = {"g": i, "ts": time, "flag": dice.choice([True, True, False, None])}
        own["v"] = dice.choice([1, 1, 2, -3, None])
        found.append(empty | own | {"k": dice.choice([*TEXTS, None]), "f": dice.choice([*DOUBLES, None])})
    cuts = sorted(dice.randint(0, events) for _ in range(epochs - 1))
    return [found[low:high] for low, high in zip([0, *cuts], [*cuts, events], strict=True)]


@settings(PROPERTY, max_examples=examples(25))
@given(
    seed=st.integers(0, 2**32), instances=st.integers(1, 3), events=st.integers(0, 60), epochs=st.integers(1, 4),
    drained=st.booleans(),
)  # fmt: skip
def test_ranks_are_those_of_the_naive_twin(
    seed: int, instances: int, events: int, epochs: int, drained: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dice = random.Random(seed)
    queries = [ranking(dice, f"q{i}") for i in range(3)]
    case = Case(random_epochs(dice, events, epochs), queries)
    folder = tmp_path_factory.mktemp("pond")
    found = answers(folder, queries, case.epochs, instances, 16, dealt(seed), drained)
    held_against_twin(case, found, drained)
    shutil.rmtree(folder)
