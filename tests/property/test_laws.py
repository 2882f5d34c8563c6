"""The cost laws of sharing, from the engine's own counters: what is read, kept and computed as queries are added."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, call, literal
from millpond.model.query import Named, Query
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.plan.build import build_plan, needed_columns
from millpond.runtime.tasks import WHOLE_POND
from millpond.testing.answers import Run
from millpond.testing.cases import STREAM

SECOND = 1_000_000
AMOUNT = Column("amount", "double")
FUNCTIONS = (
    ("count", None), ("count", AMOUNT), ("sum", AMOUNT), ("avg", AMOUNT), ("min", AMOUNT), ("max", AMOUNT),
    ("stddev_samp", AMOUNT), ("stddev_pop", AMOUNT), ("var_samp", AMOUNT), ("var_pop", AMOUNT),
)  # fmt: skip


def query(name: str, size: int, slide: int, where: Expression | None = None, aggregates: int = 10) -> Query:
    asked = tuple(
        Aggregate(function, argument, None, "bigint" if function == "count" else "double")
        for function, argument in FUNCTIONS[:aggregates]
    )
    outputs = [Named("w", Column("window", WINDOW))]
    outputs += [Named(f"a{i}", Column(f"agg:{i}", each.type)) for i, each in enumerate(asked)]
    window = Sliding(size * SECOND, slide * SECOND)
    return Query(
        name, STREAM.name, "ts", 0, window, (Column("g", "bigint"),), asked, tuple(outputs), where
    )  # fmt: skip


def events(count: int, seconds: int, keys: int = 40) -> list[dict[str, Any]]:
    dice = random.Random(5)
    empty = dict.fromkeys(field.name for field in STREAM.columns)
    return [
        empty | {"ts": i * seconds * SECOND // count, "g": dice.randrange(keys), "amount": dice.randrange(9999) / 100}
        for i in range(count)
    ]


def run(folder: Path, queries: list[Query], rows: list[dict[str, Any]], epochs: int = 4) -> Run:
    made = Run(folder, queries, keep_rows=False)
    step = len(rows) // epochs
    for start in range(0, len(rows), step):
        made.epoch([rows[start : start + step]])
    return made


def state_bytes(made: Run) -> int:
    live = made.pond.manifest.sections.values()
    return sum(section.size for section in live if section.kind in ("segment", "keys"))


def test_what_is_read_does_not_grow_with_the_queries(tmp_path: Path) -> None:
    rows = events(400, 100)
    read = {}
    for count in (1, 10, 100, 1000):
        queries = [
            query(f"q{i}", 10 + 10 * (i % 7), 10, call("gt", (AMOUNT, literal(float(i % 100), "double")), "boolean"), 3)
            for i in range(count)
        ]
        assert needed_columns(build_plan(queries), STREAM.name) == ("amount", "g", "ts")
        read[count] = run(tmp_path / str(count), queries, rows).ledger.counts[WHOLE_POND]["bytes_read"]
    assert len(set(read.values())) == 1, read


def test_equal_measures_filters_and_edges_exist_once() -> None:
    positive = call("gt", (AMOUNT, literal(0.0, "double")), "boolean")
    queries = [query(f"q{i}", 10 * (i + 1), 10, positive) for i in range(10)]
    (group,) = build_plan(queries).groups
    # presence, count of amounts, sum, squares, minimum, maximum: ten aggregates of ten queries need no more
    assert len(group.measures) == 6
    assert len({measure.filter for measure in group.measures}) == 2
    assert len(group.windows) == 10


def test_ten_windows_by_ten_aggregates_remember_little_more_than_the_largest_alone(tmp_path: Path) -> None:
    rows = events(20_000, 1200)
    queries = [query(f"q{i}", 60 * (i + 1), 60) for i in range(10)]
    shared = state_bytes(run(tmp_path / "shared", queries, rows))
    alone = state_bytes(run(tmp_path / "alone", queries[-1:], rows))
    assert shared <= 1.3 * alone


@pytest.mark.parametrize("neighbour", [7, 13])
def test_a_neighbour_that_comes_and_goes_changes_no_bit_of_a_sum(neighbour: int, tmp_path: Path) -> None:
    rows = events(3000, 300)
    answers = []
    for others in ([], [query("other", neighbour, neighbour)]):
        made = Run(tmp_path / str(len(answers)), [query("kept", 60, 20), *others])
        for start in range(0, len(rows), 500):
            made.epoch([rows[start : start + 500]])
        made.pond.drain()
        answers.append(sorted(map(str, made.answers().rows["kept"])))
    assert answers[0] == answers[1]


def test_state_stays_bounded_over_three_hundred_epochs(tmp_path: Path) -> None:
    made = run(tmp_path, [query("q", 60, 10, aggregates=6)], events(15_000, 3000), epochs=300)
    sizes = made.ledger.cell_bytes
    live = [kinds.get("segment", 0) for kinds in made.ledger.live]
    # a window's worth of epochs is six; segments of levels 0 and 1, and whatever the last snapshot left
    assert max(live[100:]) <= 24
    assert max(sizes[200:]) <= 1.5 * max(sizes[50:150])
