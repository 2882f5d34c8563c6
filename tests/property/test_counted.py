"""Count windows have the results of the naive twin, for any set of queries and any cut of the input."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from kit.inputs.cases import DELAYS, SECOND, Case, aggregate_of, random_case
from kit.inputs.examples import examples, seeds
from kit.judges.answers import Answers, Run, answers, dealt
from kit.judges.naive_judge import held_against_twin
from millpond.model.aggregates import NTH, Aggregate
from millpond.model.expressions import Column, literal
from millpond.model.query import Named, Query
from millpond.model.windows import Counted
from millpond.plan.groups.build import build_plan
from millpond.testing.compare import canonical

PROPERTY = settings(suppress_health_check=list(HealthCheck))
COUNTS = ((1, 1), (2, 1), (3, 2), (2, 3), (5, 5), (10, 1), (7, 3))


def counted_case(seed: int, events: int, queries: int, epochs: int = 8) -> Case:
    dice = random.Random(seed)
    case = random_case(seed, events, queries, epochs=epochs)
    windows = [Counted(*dice.choice(COUNTS)) for _ in case.queries]
    pairs = zip(case.queries, windows, strict=True)
    made = [replace(q, window=w) if dice.random() < 0.7 else q for q, w in pairs]
    return Case(case.epochs, [framed(q, dice) if dice.random() < 0.4 else q for q in made])


def framed(query: Query, dice: random.Random) -> Query:
    """The query with a row per event, and frames of rows of their own for some aggregates."""
    size, following = dice.choice((1, 2, 5)), dice.choice((UNSET, UNSET, 1, 3))
    awaited = following or 0
    aggregates = tuple(in_frame(one, size, awaited, dice) if dice.random() < 0.8 else one for one in query.aggregates)
    shown = tuple(dice.sample((Column("v", "int"), Column("amount", "double"), Column("k", "string")), 2))
    output = query.output + tuple(Named(f"e{i}", Column(f"event:{i}", one.type)) for i, one in enumerate(shown))
    window = Counted(size + awaited, 1, following=following)
    return replace(query, window=window, aggregates=aggregates, output=output, event=shown)


def in_frame(aggregate: Aggregate, size: int, awaited: int, dice: random.Random) -> Aggregate:
    """The aggregate over events before, at or after that of its row, or over all events of the key up to it."""
    if not aggregate.logged and dice.random() < 0.4:
        return replace(aggregate, running=dice.choice(("rows", "peers")))
    if aggregate.function in ("first", "last") and dice.random() < 0.7:
        aggregate = replace(aggregate, function=NTH, parameters=(literal(dice.randint(1, size), "int"),))
    before = dice.randrange(-awaited, size)
    if dice.random() < 0.5 and before >= 0:
        return replace(aggregate, preceding_rows=before)
    return replace(aggregate, preceding_rows=before, following_rows=dice.randrange(-before, awaited + 1))


def check(case: Case, found: Answers, drained: bool = True) -> int:
    """Compare the results with the naive twin; returns the number of compared rows by number of events."""
    compared = held_against_twin(case, found, drained)
    return sum(compared.get(query.name, 0) for query in case.queries if isinstance(query.window, Counted))


@pytest.mark.parametrize("first", seeds(5000, 1, step=9))
def test_seeded_cases_are_answered_as_the_naive_twin_does(first: int, folders: Iterator[Path]) -> None:
    compared = 0
    for seed in range(first, first + 9):
        dice = random.Random(seed)
        case = counted_case(seed, 100, 5)
        instances, buckets = dice.randint(1, 4), dice.choice((4, 64, 1024))
        compared += check(case, answers(next(folders), case.queries, case.epochs, instances, buckets, dealt(seed)))
    assert compared > 300


@settings(PROPERTY, max_examples=examples(15))
@given(
    case_seed=st.integers(0, 10**6), seed=st.integers(0, 3), instances=st.integers(1, 4), drained=st.booleans(),
    events=st.integers(0, 30), epochs=st.integers(1, 6),
)  # fmt: skip
def test_small_streams_in_any_cut(
    case_seed: int, seed: int, instances: int, drained: bool, events: int, epochs: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    case = counted_case(case_seed, events, 4, epochs)
    folder = tmp_path_factory.mktemp("pond")
    check(case, answers(folder, case.queries, case.epochs, instances, 16, dealt(seed), drained), drained)
    shutil.rmtree(folder)


def last(name: str, size: int, every: int, delay_us: int = 0) -> Query:
    """The amounts of the last events of a key."""
    amount = Column("amount", "double")
    functions = ("count", "sum", "min", "avg", "stddev_samp", "max")
    aggregates = tuple(aggregate_of(function, amount) for function in functions)
    return Query(
        name, "events", "ts", delay_us, Counted(size, every), (Column("k", "string"),), aggregates,
        (Named("start", Column("window.start", "timestamp")), Named("end", Column("window.end", "timestamp")),
         Named("k", Column("key:0", "string")),
         *(Named(f"a{i}", Column(f"agg:{i}", wanted.type)) for i, wanted in enumerate(aggregates))),
    )  # fmt: skip


@pytest.mark.parametrize("seed", seeds(5200, 1))
def test_sizes_steps_and_delays_share_one_group(seed: int, folders: Iterator[Path]) -> None:
    """Many epochs, so that sections are merged."""
    dice = random.Random(seed)
    case = random_case(seed, 300, 0, epochs=24)
    queries = [last(f"c{i}", *dice.choice(COUNTS), dice.choice(DELAYS[:5])) for i in range(4)]
    queries.append(replace(queries[0], name="some", where=Column("flag", "boolean")))
    assert len(build_plan(queries).groups) == 1
    case = Case(case.epochs, queries)
    alone = answers(next(folders), queries, case.epochs)
    assert check(case, alone) > 180
    same(alone, answers(next(folders), queries, case.epochs, 4, 7, dealt(seed, 4)), queries)
    for query in queries[:2]:
        same(alone, answers(next(folders), [query], case.epochs, 2), [query])


def same(left: Answers, right: Answers, queries: list[Query]) -> None:
    """Bit by bit the same rows and counts."""
    for query in queries:
        rows = (sorted(map(repr, map(canonical, side.rows[query.name]))) for side in (left, right))
        assert next(rows) == next(rows), query.name
        assert left.counts[query.name] == right.counts[query.name]


def totals_after(first: Column, name: str, size: int, running: str) -> Query:
    """Running totals over the events of a key; events of equal time are in the order of `first`."""
    amount, flag = Column("amount", "double"), Column("flag", "boolean")
    totals = aggregate_of("sum", amount), aggregate_of("count", amount, flag), aggregate_of("min", Column("v", "int"))
    aggregates = (
        replace(aggregate_of("max", first), preceding_rows=0),
        *(replace(one, running=running) for one in totals),
    )
    return Query(
        name, "events", "ts", 0, Counted(size, 1), (Column("k", "string"),), aggregates,
        (Named("k", Column("key:0", "string")), Named("e", Column("event:0", first.type)),
         *(Named(f"a{i}", Column(f"agg:{i}", one.type)) for i, one in enumerate(aggregates))),
        event=(first,),
    )  # fmt: skip


def test_running_totals_do_not_depend_on_queries_with_another_order_of_ties(folders: Iterator[Path]) -> None:
    case = random_case(5400, 120, 0, epochs=10)
    step = 40 * SECOND
    tied = [[{**row, "ts": row["ts"] and row["ts"] // step * step} for row in batch] for batch in case.epochs]
    firsts = Column("v", "int"), Column("amount", "double"), Column("g", "bigint"), Column("p", "decimal(10,2)")
    queries = [
        totals_after(first, f"{first.name}{size}{running}", size, running)
        for first in firsts for size, running in ((1, "rows"), (2, "rows"), (2, "peers"))
    ]  # fmt: skip
    case = Case(tied, queries)
    assert check(case, answers(next(folders), case.queries, case.epochs, 2, 16, dealt(5400))) > 700


def events(*times: int, k: str = "a") -> list[dict[str, object]]:
    return [{"k": k, "amount": float(time), "ts": time * SECOND} for time in times]


def bounds(found: Answers, name: str) -> list[tuple[int, int, int, float]]:
    rows = found.rows[name]
    return sorted((row["start"] // SECOND, row["end"] // SECOND, row["a0"], row["a1"]) for row in rows)


def test_windows_are_smaller_until_a_key_has_enough_events(folders: Iterator[Path]) -> None:
    found = answers(next(folders), [last("q", 3, 2)], [events(1), events(2, 3, 4, 5), events(6), events(7)])
    assert bounds(found, "q") == [(1, 2, 2, 3.0), (2, 4, 3, 9.0), (4, 6, 3, 15.0)]


def test_rows_that_wait_for_the_next_event_are_emitted_once_over_drains(tmp_path: Path) -> None:
    query = last("q", 2, 1)
    following = replace(query.aggregates[1], preceding_rows=-1, following_rows=1)
    running = replace(query.aggregates[0], running="rows")
    query = replace(
        query, window=Counted(2, 1, following=1), aggregates=(running, following, *query.aggregates[2:]), event=()
    )
    run = Run(tmp_path, [query])
    run.epoch([events(1, 2), events(1, k="b")])
    assert [row[2:] for row in bounds(run.answers(), "q")] == [(1, 2.0)]
    run.pond.drain()
    rows = [(1, 2.0), (1, None), (2, None)]
    assert sorted(((row["a0"], row["a1"]) for row in run.answers().rows["q"]), key=repr) == rows
    run.pond.drain()
    run.epoch([events(10, 11)])
    run.pond.drain()
    rows += [(3, 11.0), (4, None)]
    assert sorted(((row["a0"], row["a1"]) for row in run.answers().rows["q"]), key=repr) == rows


def test_events_that_come_out_of_order_count_in_order(folders: Iterator[Path]) -> None:
    found = answers(next(folders), [last("q", 2, 2, 10 * SECOND)], [events(5), events(3), events(4, 1)])
    assert bounds(found, "q") == [(1, 3, 2, 4.0), (4, 5, 2, 9.0)]


def test_a_row_leaves_when_the_watermark_reaches_its_last_event(folders: Iterator[Path]) -> None:
    query = last("q", 2, 2, 5 * SECOND)
    for newest, rows in ((14, 0), (15, 1)):
        found = answers(next(folders), [query], [events(9, 10), events(newest, k="b")], drained=False)
        assert len(found.rows["q"]) == rows


def test_a_pond_continues_in_the_middle_of_windows(tmp_path: Path, folders: Iterator[Path]) -> None:
    case = random_case(5300, 200, 0, epochs=10)
    query = last("q", 5, 2, 5 * SECOND)
    whole = answers(next(folders), [query], case.epochs)
    first = Run(tmp_path / "pond", [query], 2)
    for batch in case.epochs[:5]:
        first.epoch([batch])
    second = Run(tmp_path / "pond", [query], 2)
    for batch in case.epochs[5:]:
        second.epoch([batch])
    second.pond.drain()
    before, after, expected = (
        sorted(repr(canonical(row)) for row in found.rows["q"]) for found in (first.answers(), second.answers(), whole)
    )
    assert 0 < len(before) < len(expected)
    assert after == expected  # a new sink in memory reads the log from its beginning


def test_only_the_last_events_of_a_key_stay(tmp_path: Path) -> None:
    run = Run(tmp_path, [last("q", 3, 1), last("long", 10, 10, 5 * SECOND)], 2)
    for epoch in range(150):
        run.epoch([events(2 * epoch, 2 * epoch + 1) + events(2 * epoch, k=f"k{epoch % 5}")])
    live = run.pond.manifest.sections.values()
    # six keys with nine events each, and as many again before they are merged; eight epochs of three
    assert sum(section.rows for section in live if section.kind == "events") < 2 * 6 * 9 + 2 * 8 * 3 + 20
    assert sum(section.rows for section in live if section.kind == "segment") < 2 * 3 * 8 * 6
    run.pond.drain()
    assert len(run.answers().rows["q"]) == 450
    assert len(run.answers().rows["long"]) == 30 + 5 * 3
    run.epoch([events(9999, k="k0")])
    run.pond.drain()
    assert [row[:3] for row in bounds(run.answers(), "q") if row[1] == 9999] == [(280, 9999, 3)]


def test_a_query_that_is_added_counts_from_then_on(tmp_path: Path) -> None:
    first = Run(tmp_path, [last("old", 2, 2)])
    first.epoch([events(1, 2, 3)])
    second = Run(tmp_path, [last("old", 2, 2), last("new", 2, 2)])
    second.epoch([events(4, 5)])
    second.pond.drain()
    assert bounds(second.answers(), "old") == [(1, 2, 2, 3.0), (3, 4, 2, 7.0)]
    assert bounds(second.answers(), "new") == [(4, 5, 2, 9.0)]
