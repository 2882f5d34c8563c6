"""Row patterns have the results of the naive twin, for any set of queries and any cut of the input."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kit.inputs.cases import SECOND
from kit.inputs.examples import seeds
from kit.inputs.pattern_cases import AMOUNT, FLAG, RISES, V, more_than, pattern_case, pattern_query
from kit.judges.answers import Answers, Run, answers, dealt
from kit.naive.queries import patterns
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, call, literal
from millpond.model.patterns.variables import FIRST, PREVIOUS, Variable, matched
from millpond.model.query import Named, Query
from millpond.model.windows import Pattern, Sliding
from millpond.plan.groups.build import build_plan
from millpond.plan.upstream.rows_as_stream import chained_stream
from millpond.testing.compare import assert_same_rows, canonical

RISE = Pattern("A B+", 10 * SECOND, (Variable("A", FLAG), Variable("B", RISES)), previous=(AMOUNT,))


def rows_of(found: Answers, name: str) -> list[str]:
    return sorted(repr(canonical(row)) for row in found.rows[name])


def events(*times: int, k: str = "a") -> list[dict[str, Any]]:
    return [{"k": k, "amount": float(time), "ts": time * SECOND, "flag": True, "v": 1} for time in times]


def bounds(found: Answers, name: str) -> list[tuple[int, int]]:
    return sorted((row["start"] // SECOND, row["end"] // SECOND) for row in found.rows[name])


@pytest.mark.parametrize("first", seeds(8100, 1, step=5))
def test_seeded_cases_are_answered_as_the_naive_twin_does(first: int, folders: Iterator[Path]) -> None:
    compared = 0
    for seed in range(first, first + 5):
        dice = random.Random(seed)
        case = pattern_case(seed, 80, 8, 6)
        assert len(build_plan(case.queries).groups) == 1
        found = answers(next(folders), case.queries, case.epochs, dice.randint(1, 4), 64, dealt(seed))
        for query in case.queries:
            expected = patterns.answer(query, case.epochs)
            assert_same_rows(expected, found.rows[query.name], about=str(query))
            compared += len(expected)
    assert compared > 150


def test_events_of_equal_time_have_one_order_however_they_are_cut(folders: Iterator[Path]) -> None:
    case = pattern_case(8200, 90, 4, 1)
    tied = [{**row, "ts": row["ts"] // (9 * SECOND) * (9 * SECOND)} for row in case.epochs[0]]
    whole = answers(next(folders), case.queries, [tied])
    dice = random.Random(8200)
    dice.shuffle(tied)
    tied.sort(key=lambda row: row["ts"])
    parts = [[row for row in tied if (row["ts"] < 45 * SECOND) == early] for early in (True, False)]
    cut = answers(next(folders), case.queries[:3], parts, 3, 16, dealt(1))
    for query in case.queries[:3]:
        assert rows_of(whole, query.name) == rows_of(cut, query.name)
    assert sum(len(rows) for rows in whole.rows.values()) > 20


def test_matches_do_not_depend_on_what_another_query_reads_of_events_of_equal_time(folders: Iterator[Path]) -> None:
    dice, epochs = random.Random(8250), list[list[dict[str, Any]]]()
    for time in range(0, 40, 2):
        tied = events(time, time, time, time)
        epochs.append([{**one, "amount": float(dice.randrange(5)), "v": dice.randrange(5)} for one in tied])
    queries = []
    for name, read in (("p", AMOUNT), ("r", V)):
        query, one = pattern_query(name, replace(RISE, text="A B")), Aggregate("max", read, None, read.type)
        output = (*query.output[:3], Named("a0", Column("agg:0", read.type)))
        queries.append(replace(query, aggregates=(one,), output=output))
    together = answers(next(folders), queries, epochs)
    for query in queries:
        assert rows_of(answers(next(folders), [query], epochs), query.name) == rows_of(together, query.name)
    assert all(len(together.rows[query.name]) > 20 for query in queries)


def test_a_match_is_emitted_as_soon_as_it_is_decided(folders: Iterator[Path]) -> None:
    pair = pattern_query("pair", replace(RISE, text="A B"))
    greedy = pattern_query("greedy", RISE)
    for newest, pairs, runs in ((2, 1, 0), (10, 1, 0), (11, 1, 1)):
        found = answers(next(folders), [pair, greedy], [events(1, 2), events(newest, k="b")], drained=False)
        assert [len(found.rows[name]) for name in ("pair", "greedy")] == [pairs, runs]


def test_the_next_match_begins_after_the_last_event_or_the_first(folders: Iterator[Path]) -> None:
    queries = [pattern_query("past", RISE), pattern_query("next", replace(RISE, overlapping=True))]
    found = answers(next(folders), queries, [events(1, 2), events(3), events(20, 21)])
    assert bounds(found, "past") == [(1, 3), (20, 21)]
    assert bounds(found, "next") == [(1, 3), (2, 3), (20, 21)]


def test_only_recent_events_stay(tmp_path: Path) -> None:
    run = Run(tmp_path, [pattern_query("q", replace(RISE, text="A B")), pattern_query("late", RISE, 5 * SECOND)], 2)
    for epoch in range(40):
        run.epoch([events(2 * epoch, 2 * epoch + 1) + events(2 * epoch, k=f"k{epoch % 5}")])
    live = run.pond.manifest.sections.values()
    assert sum(section.rows for section in live if section.kind == "events") < 3 * (25 / 2 + 2 * 8)
    assert sum(section.rows for section in live if section.kind == "segment") < 100
    run.pond.drain()
    assert len(run.answers().rows["q"]) == 40 + 5 * 4


def test_a_query_that_is_added_matches_events_from_then_on(tmp_path: Path) -> None:
    old = pattern_query("old", RISE)
    first = Run(tmp_path, [old])
    first.epoch([events(1, 2)])
    second = Run(tmp_path, [old, replace(old, name="new")])
    second.epoch([events(3, 4)])
    second.pond.drain()
    assert (bounds(second.answers(), "old"), bounds(second.answers(), "new")) == ([(1, 4)], [(3, 4)])


def test_a_condition_that_fails_makes_the_event_dead_or_is_not_met(folders: Iterator[Path]) -> None:
    def inverse_is_positive(one: Expression) -> Expression:
        zero, quotient = literal(0.0, "double"), call("divide", (literal(1.0, "double"), one), "double")
        return call("gt", (quotient, zero), "boolean")

    alone = (Variable("A", inverse_is_positive(AMOUNT)), Variable("B", more_than(V, 0)))
    behind = (Variable("A", FLAG), Variable("B", inverse_is_positive(Column(f"{PREVIOUS}0", "double"))))
    dead = pattern_query("dead", replace(RISE, variables=alone, previous=()))
    begun = (Variable("A", FLAG), Variable("B", inverse_is_positive(Column(f"{FIRST}0", "double"))))
    previous = pattern_query("previous", replace(RISE, variables=behind))
    first = pattern_query("first", replace(RISE, variables=begun, previous=(), first=(AMOUNT,)))
    given = [events(0, 1), events(2)]
    found = answers(next(folders), [dead, previous, first], given)
    assert found.counts["dead"]["dead"] == 1 and bounds(found, "dead") == [(1, 2)] and not found.quarantined
    for query in (previous, first):  # neither 1 / 0 is met
        assert bounds(found, query.name) == [(1, 2)]
        assert_same_rows(patterns.answer(query, given), found.rows[query.name], about=query.name)


def test_equal_conditions_are_stored_once() -> None:
    names = [f"q{i}" for i in range(8)]
    plan = build_plan([pattern_query(name, replace(RISE, within_us=i + 1)) for i, name in enumerate(names)])
    log = plan.groups[0].events
    assert log is not None and log.takes_all
    assert [condition for condition in log.filters if condition == FLAG] == [FLAG]


def test_a_filter_may_name_a_variable(folders: Iterator[Path]) -> None:
    query = pattern_query("q", RISE)
    only = replace(query, aggregates=(replace(query.aggregates[0], filter=matched("B")), *query.aggregates[1:]))
    assert isinstance(only, Query)
    found = answers(next(folders), [only], [events(1, 2, 3)])
    assert [row["a0"] for row in found.rows["q"]] == [2]


@pytest.mark.parametrize("bound", ["start", "end"])
def test_windows_over_matches_count_each_match_once(bound: str, folders: Iterator[Path]) -> None:
    case = pattern_case(8400, 100, 3, 8)
    upstreams = [query for query in case.queries if isinstance(query, Query)]
    over = [counted(query, bound) for query in upstreams]
    run = Run(next(folders), [*upstreams, *over], 2, others=[chained_stream(query) for query in upstreams])
    for batch in case.epochs:
        run.epoch([batch])
    run.pond.drain()
    found = run.answers()
    for upstream, query in zip(upstreams, over, strict=True):
        expected = Counter(row[bound] // (20 * SECOND) * 20 * SECOND for row in patterns.answer(upstream, case.epochs))
        assert {row["w"]: row["n"] for row in found.rows[query.name]} == expected
        assert found.counts[query.name]["late"] == 0 and expected


def counted(upstream: Query, bound: str) -> Query:
    """The number of matches by their first or last event, in windows of 20 seconds."""
    output = Named("w", Column("window.start", "timestamp")), Named("n", Column("agg:0", "bigint"))
    many = (Aggregate("count", None, None, "bigint"),)
    window = Sliding(20 * SECOND, 20 * SECOND)
    return Query(f"over {upstream.name}", upstream.name, bound, 0, window, (), many, output)
