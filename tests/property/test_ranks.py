"""Ranks among the events of a key and time are those of the naive twin, for any cut of the input."""

from __future__ import annotations

import random
import shutil
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.inputs.cases import DOUBLES, SECOND, STREAM, TEXTS, Case
from kit.inputs.examples import examples
from kit.judges.answers import answers, dealt
from kit.judges.naive_judge import held_against_twin
from millpond.model.aggregates import (
    DIRECTIONS,
    FRAMES,
    IGNORE_NULLS,
    NEIGHBOURS,
    RANKS,
    RUNNING_TOTAL,
    SHARES,
    Aggregate,
)
from millpond.model.expressions import Column, Expression, Literal, call, literal
from millpond.model.query import Named, Query
from millpond.model.windows import Range
from millpond.plan.groups.aggregate_functions import result_type
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.top_rows import tops_of

PROPERTY = settings(suppress_health_check=list(HealthCheck))
COLUMNS = tuple(Column(field.name, field.type) for field in STREAM.columns if field.name in ("k", "f", "v", "p"))
UNIQUE = Column("g", "bigint")


def rank_of(dice: random.Random, function: str) -> Aggregate:
    """A rank by some columns; `row_number` has the unique column as its last one."""
    by: list[Expression] = dice.sample(COLUMNS, dice.randint(1, 3))
    by += [UNIQUE] if function == "row_number" else []
    directions = tuple(literal(dice.choice(DIRECTIONS), "string") for _ in by)
    return Aggregate(function, by[0], None, "int", *by[1:2], parameters=directions, more=tuple(by[2:]))


def coarser(dice: random.Random, rank: Aggregate) -> Aggregate:
    """A rank by the first expressions of another rank."""
    by = rank.arguments[: dice.randint(1, len(rank.arguments))]
    assert isinstance(rank.parameters, tuple)
    function = rank.function if len(by) == len(rank.arguments) else dice.choice(RANKS[1:])
    return Aggregate(function, by[0], None, "int", *by[1:2], parameters=rank.parameters[: len(by)], more=by[2:])


def ordered_of(dice: random.Random) -> Aggregate:
    """A function that reads all events of the key and time, in an order without ties where these matter."""
    function = dice.choice([*SHARES, *NEIGHBOURS])
    rank = rank_of(dice, "rank" if function in SHARES[:2] else "row_number")
    assert isinstance(rank.parameters, tuple)
    if function in SHARES:
        extra = (literal(dice.randint(1, 5), "int"),) if function == "ntile" else ()
        kind = "int" if function == "ntile" else "double"
        return replace(rank, function=function, type=kind, parameters=(*rank.parameters, *extra))
    value = dice.choice(COLUMNS)
    if function == RUNNING_TOTAL:
        total, value = dice.choice(["sum", "avg", "count", "min", "max"]), dice.choice(COLUMNS[1:])
        tied = literal(dice.randint(0, len(rank.parameters)), "int")
        return replace(
            rank, function=function, type=result_type(total, value.type), other=(*rank.arguments[1:], value)[0],
            more=(*rank.arguments[1:], value)[1:],
            parameters=(*rank.parameters, literal(total, "string"), literal(dice.choice(FRAMES), "string"), tied),
        )  # fmt: skip
    extra: tuple[Literal, ...]
    extra = (literal(dice.randint(-2, 3), "int"), literal(dice.choice([None, *_DEFAULTS[value.name]]), value.type))
    if function == "nth_value":
        tied = literal(dice.randint(0, len(rank.parameters)), "int")
        number = literal(dice.choice([1, 1, 2, 3, -1, -1, -2]), "int")
        extra = (number, literal(dice.choice(FRAMES), "string"), tied)
    extra += (literal(IGNORE_NULLS, "string"),) if dice.random() < 0.4 else ()
    others = (*rank.arguments[1:], value)
    return replace(
        rank, function=function, type=value.type, other=others[0], more=others[1:],
        parameters=(*rank.parameters, *extra),
    )  # fmt: skip


_DEFAULTS: dict[str, list[Any]] = {"k": ["", "x"], "f": [0.5], "v": [7], "p": [Decimal("9.00")]}


def ranking(dice: random.Random, name: str) -> Query:
    """Some ranks of each event, of all events or of the best ones, beside the number of events of its key and time."""
    keys = dice.choice([(), (Column("flag", "boolean"),)])
    made = [rank_of(dice, dice.choice(RANKS)) for _ in range(dice.randint(1, 3))]
    made += [ordered_of(dice) for _ in range(dice.randint(0, 2))]
    made.append(Aggregate("count", None, None, "bigint"))
    output = [Named("id", Column("event:0", "bigint")), Named("t", Column("window.time", "timestamp"))]
    output += [Named(f"a{i}", Column(f"agg:{i}", one.type)) for i, one in enumerate(made)]
    best = call("le", (Column("agg:0", "int"), literal(2, "int")), "boolean")
    return Query(
        name, STREAM.name, "ts", dice.choice([0, 5 * SECOND]), Range(0), keys, tuple(made), tuple(output),
        having=best if dice.randint(0, 1) else None, event=(UNIQUE,),
    )  # fmt: skip


def limited(dice: random.Random, name: str) -> Query:
    """A query that shows only the first events of a rank; its other ranks fit, so tasks leave most events out."""
    query, rank = ranking(dice, name), rank_of(dice, dice.choice(RANKS))
    made = [coarser(dice, rank) for _ in range(dice.randint(0, 2))]
    if rank.function == "row_number":
        assert isinstance(rank.parameters, tuple)
        more = (*rank.arguments[1:], COLUMNS[0])
        constants = (literal(dice.choice([0, 1, 2]), "int"), literal("none", "string"))
        constants += (literal(IGNORE_NULLS, "string"),) if dice.random() < 0.4 else ()
        earlier = replace(rank, function="lag", type="string", other=more[0], more=more[1:])
        made.append(replace(earlier, parameters=(*rank.parameters, *constants)))
    place = dice.randint(0, len(made))
    made.insert(place, rank)
    op, rows = dice.choice(["le", "lt", "eq", "ge", "gt"]), literal(dice.randint(0, 3), "int")
    found = Column(f"agg:{place}", "int")
    first = call(op, (rows, found) if op[0] == "g" else (found, rows), "boolean")
    output = [*query.output[:2], *(Named(f"a{i}", Column(f"agg:{i}", one.type)) for i, one in enumerate(made))]
    some = call("gt", (Column("v", "int"), literal(0, "int")), "boolean") if dice.randint(0, 1) else None
    return replace(query, aggregates=tuple(made), output=tuple(output), where=some, having=first)


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
    first = dice.random() < 0.6  # events are then left out when they arrive, and withheld before their time has passed
    queries = [limited(dice, f"q{i}") if first else ranking(dice, f"q{i}") for i in range(3)]
    case, drained = Case(random_epochs(dice, events, epochs), queries), drained or first
    assert all(tops_of(group) for group in build_plan(queries).groups) or not first
    folder = tmp_path_factory.mktemp("pond")
    found = answers(folder, queries, case.epochs, instances, 16, dealt(seed), drained)
    held_against_twin(case, found, drained)
    shutil.rmtree(folder)
