"""Without Spark, every random case has the results of the naive twin and DuckDB, for any set of queries in the pond."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.inputs.cases import (
    BIGINTS,
    DOUBLES,
    INTS,
    SECOND,
    TEXTS,
    UNEQUAL,
    WINDOWS,
    Case,
    Menu,
    aggregate_of,
    by_window,
    random_case,
)
from kit.inputs.examples import examples, seeds
from kit.inputs.strategies import cases_of
from kit.judges import duckdb_judge
from kit.judges.answers import Answers, Partition, Run, answers, dealt, whole
from kit.judges.duckdb_expressions import Unsupported
from kit.judges.naive_judge import held_against_twin
from kit.naive.expressions import Raised
from millpond.errors import OverflowedError
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, call, conjunction, literal
from millpond.model.query import Named, Query
from millpond.model.windows import Sliding
from millpond.plan.groups import plan as plans
from millpond.plan.groups.build import build_plan
from millpond.runtime.aggregates import filter_sets
from millpond.runtime.gather import group_parts
from millpond.testing.compare import assert_same_rows, canonical

PROPERTY = settings(suppress_health_check=list(HealthCheck))


def check(case: Case, found: Answers, drained: bool = True) -> int:
    """Hold the answers against the naive twin; returns how many rows were compared."""
    return sum(held_against_twin(case, found, drained).values())


def same(left: Answers, right: Answers, names: set[str]) -> None:
    """Bit by bit the same rows, the same counts and quarantines, for the queries of these names."""
    for name in names:
        assert (name in left.quarantined) == (name in right.quarantined)
        assert left.counts.get(name) == right.counts.get(name)
        if name not in left.quarantined:
            rows = (sorted(map(repr, map(canonical, side.rows[name]))) for side in (left, right))
            assert next(rows) == next(rows), name


@pytest.mark.parametrize("first", seeds(0, 1, step=12))
def test_seeded_cases_are_answered_as_the_naive_twin_does(first: int, folders: Iterator[Path]) -> None:
    compared = 0
    for seed in range(first, first + 12):
        dice = random.Random(seed)
        case = random_case(seed, 60, 5)
        case = case._replace(queries=by_window(case.queries)) if seed % 3 == 2 else case
        instances, buckets = dice.randint(1, 4), dice.choice((4, 64, 1024))
        compared += check(case, answers(next(folders), case.queries, case.epochs, instances, buckets, dealt(seed)))
    assert compared > 1000


@settings(PROPERTY, max_examples=examples(15))
@given(
    case=cases_of(max_events=30, max_queries=4), instances=st.integers(1, 4), seed=st.integers(0, 3),
    drained=st.booleans(),
)  # fmt: skip
def test_small_nasty_streams_are_answered_as_the_naive_twin_does(
    case: Case, instances: int, seed: int, drained: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pond")
    check(case, answers(folder, case.queries, case.epochs, instances, 16, dealt(seed), drained), drained)
    shutil.rmtree(folder)


def test_seeded_cases_are_answered_as_duckdb_does(folders: Iterator[Path]) -> None:
    compared = 0
    for seed in range(500, 508):
        case = random_case(seed, 60, 3)
        queries = [duckdb_judge.mirrored(query)[0] for query in case.queries]
        found = answers(next(folders), queries, case.epochs, 2, deal=dealt(seed))
        for query in queries:
            try:
                expected = duckdb_judge.answer(query, case.epochs, drained=True)
                counted = duckdb_judge.counts(query, case.epochs)
            except Unsupported:
                continue
            except (Raised, OverflowedError):
                assert query.name in found.quarantined
                continue
            assert found.counts[query.name] == counted
            assert_same_rows(expected, found.rows[query.name], about=str(query))
            compared += len(expected)
    assert compared > 300


def test_windows_that_differ_in_length_are_answered_as_the_naive_twin_does(folders: Iterator[Path]) -> None:
    compared = 0
    for seed in range(600, 604):
        case = random_case(seed, 60, 5, menu=Menu(windows=(*UNEQUAL, *UNEQUAL, *WINDOWS)))
        case = case._replace(queries=by_window(case.queries)) if seed % 2 else case
        compared += check(case, answers(next(folders), case.queries, case.epochs, 2, deal=dealt(seed)))
    assert compared > 200


@pytest.mark.parametrize("seed", seeds(900, 2))
def test_neither_instances_nor_partitions_nor_buckets_change_an_answer(seed: int, folders: Iterator[Path]) -> None:
    case = random_case(seed, 80, 5)
    names = {query.name for query in case.queries}
    alone = answers(next(folders), case.queries, case.epochs)
    ways: list[tuple[int, int, Partition]] = [(4, 1024, whole), (1, 64, dealt(seed, 5)), (3, 7, dealt(seed + 1, 2))]
    for instances, buckets, deal in ways:
        same(alone, answers(next(folders), case.queries, case.epochs, instances, buckets, deal), names)


@pytest.mark.parametrize("seed", seeds(30, 2))
def test_the_form_in_which_events_travel_changes_no_answer(
    seed: int, folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = random_case(seed, 80, 5)
    found = []
    for raw in (True, False):
        monkeypatch.setattr(group_parts, "is_smaller_raw", lambda *_, raw=raw: raw)
        found.append(answers(next(folders), case.queries, case.epochs, 3, deal=dealt(seed)))
    same(found[0], found[1], {query.name for query in case.queries})
    check(case, found[0])


def with_conditions(case: Case, seed: int, count: int) -> Case:
    """The case with `count` queries: its own, each under a few comparisons with constants of its own."""
    dice = random.Random(seed)
    options = {"f": ("double", DOUBLES), "g": ("bigint", BIGINTS), "v": ("int", INTS), "k": ("string", TEXTS)}
    queries = []
    for i in range(count):
        parts = []
        for _ in range(dice.randint(1, 3)):
            name, (kind, constants) = dice.choice(list(options.items()))
            op = "eq" if name == "k" else dice.choice(("eq", "lt", "le", "gt", "ge"))
            sides = [Column(name, kind), literal(dice.choice(constants), kind)]
            parts.append(call(op, tuple(sides[:: dice.choice((1, -1))]), "boolean"))
        queries.append(replace(dice.choice(case.queries), name=f"q{i}", where=conjunction(parts)))
    return Case(case.epochs, queries)


@pytest.mark.parametrize("most", [1 << 16, 3])
def test_many_filters_are_answered_as_the_naive_twin_does(
    most: int, folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_sets, "MOST_SIGNATURES", most)
    compared = 0
    for seed in range(40, 42):
        case = with_conditions(random_case(seed, 80, 3), seed, 40)
        assert any(group.signed for group in build_plan(case.queries).groups)
        compared += check(case, answers(next(folders), case.queries, case.epochs, 3, deal=dealt(seed)))
    assert compared > 300


@pytest.mark.parametrize("seed", seeds(44, 2))
def test_cells_by_signature_and_columns_by_filter_answer_alike(
    seed: int, folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = random_case(seed, 80, 5)
    found = []
    for first in (1, 1000):
        monkeypatch.setattr(plans, "SIGNED_FROM", first)
        for raw in (True, False):
            monkeypatch.setattr(group_parts, "is_smaller_raw", lambda *_, raw=raw: raw)
            found.append(answers(next(folders), case.queries, case.epochs, 3, deal=dealt(seed)))
    for other in found[1:]:
        same(found[0], other, {query.name for query in case.queries})
    check(case, found[0])


@pytest.mark.parametrize("seed", seeds(950, 3))
def test_neighbours_do_not_change_an_answer(seed: int, folders: Iterator[Path]) -> None:
    case = random_case(seed, 80, 6)
    together = answers(next(folders), case.queries, case.epochs, 2)
    for query in case.queries[::2]:
        same(together, answers(next(folders), [query], case.epochs, 2), {query.name})


def test_a_neighbour_that_cuts_time_elsewhere_leaves_double_sums_as_they_are(folders: Iterator[Path]) -> None:
    #   10 s windows    |----------|----------|
    #   7 s neighbour   ---|-------|-------|---    more slices, added up in another order
    case = random_case(3, 600, 0)
    functions = ("sum", "avg", "var_samp", "stddev_pop")
    aggregates = tuple(aggregate_of(function, Column("amount", "double")) for function in functions)
    mine = summary("mine", Sliding(10 * SECOND, 10 * SECOND), aggregates)
    other = replace(mine, name="other", window=Sliding(7 * SECOND, 7 * SECOND, 3))
    alone = answers(next(folders), [mine], case.epochs)
    assert len(alone.rows["mine"]) > 100
    same(alone, answers(next(folders), [mine, other], case.epochs), {"mine"})


def summary(name: str, window: Sliding, aggregates: tuple[Aggregate, ...], delay_us: int = 0) -> Query:
    return Query(
        name, "events", "ts", delay_us, window, (Column("k", "string"),), aggregates,
        (Named("start", Column("window.start", "timestamp")), Named("k", Column("key:0", "string")),
         *(Named(f"a{i}", Column(f"agg:{i}", wanted.type)) for i, wanted in enumerate(aggregates))),
    )  # fmt: skip


def test_a_query_whose_sum_leaves_its_type_is_quarantined_alone(folders: Iterator[Path]) -> None:
    wide = summary("wide", Sliding(10 * SECOND, 10 * SECOND), (aggregate_of("sum", Column("g", "bigint")),))
    bounded = replace(wide, name="bounded", aggregates=(aggregate_of("max", Column("g", "bigint")),))
    rows = [{"k": k, "g": g, "ts": SECOND} for k in "abcdef" for g in (2**63 - 1, 1)]
    later = [[{"k": "a", "g": 1, "ts": second * SECOND}] for second in (30, 60)]
    case = Case([rows, *later], [wide, bounded])
    for instances in (1, 3):
        found = answers(next(folders), case.queries, case.epochs, instances)
        check(case, found)
        assert list(found.quarantined) == ["wide"]
        assert found.quarantined["wide"].startswith("[MP-OVERFLOW]")
        assert len(found.rows["bounded"]) == 8


@pytest.mark.parametrize("function", ["sum", "avg"])
def test_a_query_whose_decimals_leave_their_type_is_quarantined_alone(function: str, folders: Iterator[Path]) -> None:
    #   |  99…9 + 99…9 - 99…9  |  99…9 + 99…9  |     only the exact total of a window counts, in any order
    most = Decimal("9" * 32 + ".999999")
    wide = summary("wide", Sliding(10 * SECOND, 10 * SECOND), (aggregate_of(function, Column("d", "decimal(38,6)")),))
    bounded = summary("bounded", wide.window, (aggregate_of("max", Column("d", "decimal(38,6)")),))
    least = most.copy_negate()
    fits = [{"k": "a", "d": value, "ts": SECOND} for value in (most, most, least, least, Decimal("0.000001"))]
    first = Case([fits, [{"k": "a", "d": None, "ts": 30 * SECOND}]], [wide, bounded])
    found = answers(next(folders), first.queries, first.epochs, 2)
    assert check(first, found) == 4
    assert not found.quarantined
    both = Case([fits, [{"k": "a", "d": most, "ts": 30 * SECOND}] * 2], [wide, bounded])
    found = answers(next(folders), both.queries, both.epochs, 2)
    check(both, found)
    assert list(found.quarantined) == ["wide"]
    assert found.quarantined["wide"].startswith("[MP-OVERFLOW]")


def test_a_large_stream_of_many_keys_is_answered_as_the_naive_twin_does(folders: Iterator[Path]) -> None:
    case = random_case(77, 5_000, 3, epochs=12, menu=Menu(variance=False))
    dice = random.Random(77)
    for row in itertools.chain.from_iterable(case.epochs):
        if dice.random() < 0.5:
            row["k"] = f"customer-{dice.randint(0, 2000)}"
    functions = ("count", "sum", "max", "stddev_samp")
    aggregates = tuple(aggregate_of(function, Column("amount", "double")) for function in functions)
    case.queries.append(summary("by customer", Sliding(60 * SECOND, 20 * SECOND), aggregates, 5 * SECOND))
    found = answers(next(folders), case.queries, case.epochs, 3, 1024, dealt(5))
    assert check(case, found) > 2500


def test_three_hundred_tiny_epochs_keep_few_sections_and_give_their_bytes_back(folders: Iterator[Path]) -> None:
    #   each second: 3 events     live segments of one instance and group after each epoch: few, whatever happens
    dice = random.Random(1)
    queries = [
        summary("ten", Sliding(10 * SECOND, 10 * SECOND), (aggregate_of("sum", Column("amount", "double")),)),
        summary("long", Sliding(60 * SECOND, 20 * SECOND), (aggregate_of("min", Column("f", "double")),), 5 * SECOND),
    ]
    epochs = [
        [
            {"k": f"user-{dice.randint(0, 400)}", "amount": dice.randint(0, 999) / 100, "f": dice.gauss(0, 1),
             "ts": (i - dice.choice((0, 0, 1, 4))) * SECOND}
            for _ in range(3)
        ]
        for i in range(300)
    ]  # fmt: skip
    run = Run(next(folders), queries, instances=2)
    for rows in epochs:
        run.epoch([rows])
    run.pond.drain()
    assert check(Case(epochs, queries), run.answers()) > 800
    live = run.ledger.live
    assert max(kinds.get("segment", 0) for kinds in live) <= 2 * 16
    assert max(kinds.get("keys", 0) for kinds in live) <= 2 * 32
    assert max(kinds.get("rows", 0) for kinds in live) <= 2 * 2
    assert max(run.ledger.cell_bytes[200:]) < 1.5 * max(run.ledger.cell_bytes[70:140])
    assert live[-1].get("segment", 0) == 0
    assert run.ledger.cell_bytes[-1] == 0


def test_a_second_pond_on_the_folder_continues_where_the_first_was(folders: Iterator[Path]) -> None:
    case = random_case(42, 80, 4)
    half = len(case.epochs) // 2
    folder = next(folders)
    first = Run(folder, case.queries, 2)
    for rows in case.epochs[:half]:
        first.epoch([rows])
    second = Run(folder, case.queries, 2)
    for rows in case.epochs[half:]:
        second.epoch([rows])
    second.pond.drain()
    # the second pond's sinks are new and begin with the rows that the log still holds: all of them
    check(case, second.answers())


def test_a_far_outlier_neither_takes_memory_nor_overflows_int64(folders: Iterator[Path]) -> None:
    #   1970 ........................................ 2023     one chunk, windows of a second
    mine = summary("mine", Sliding(SECOND, SECOND), (aggregate_of("count", None),))
    long = summary("long", Sliding(7 * SECOND, 3 * SECOND), (aggregate_of("count", None),), delay_us=60 * SECOND)
    now = 1_700_000_000 * SECOND
    edge = 1 << 62
    times = [0, 1, now, now + SECOND, -edge, edge, -edge - 1, edge + 1, 2**63 - 1, -(2**63), None]
    case = Case([[{"k": "a", "ts": time} for time in times], [{"k": "a", "ts": now}]], [mine, long])
    found = answers(next(folders), case.queries, case.epochs, 2)
    assert {(row["start"], row["a0"]) for row in found.rows["mine"]} == {
        (0, 2), (now, 1), (now + SECOND, 1), (-edge - -edge % SECOND, 1), (edge - edge % SECOND, 1),
    }  # fmt: skip
    assert found.counts["mine"] == {"read": 12, "applied": 6, "late": 1, "dead": 5, "filtered": 0}
