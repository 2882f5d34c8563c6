"""Frames have the results of the naive twin, for any set of queries and any cut of the input."""

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
from millpond.model.calendars.months import Months
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.windows import Range, Sliding
from millpond.plan.groups.build import build_plan
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.fold import fold
from millpond.testing.compare import canonical

PROPERTY = settings(suppress_health_check=list(HealthCheck))
FRAMES = (0, 1, 5 * SECOND, 20 * SECOND, 60 * SECOND)


def ranged(query: Query, dice: random.Random) -> Query:
    """A random query with a row per event, some aggregates with frames of their own."""
    frames = [dice.choice(FRAMES) for _ in query.aggregates]
    aggregates = tuple(
        replace(aggregate, preceding_us=frame) if dice.random() < 0.6 else aggregate
        for aggregate, frame in zip(query.aggregates, frames, strict=True)
    )
    longest = 0
    if dice.random() < 0.1:
        months = Months(1, "Europe/Berlin")
        longest = months.longest_us
        aggregates = (replace(aggregates[0], preceding_us=UNSET, preceding_months=months), *aggregates[1:])
    pairs = (("v", "int"), ("amount", "double"), ("k", "string"), ("d", "decimal(38,6)"))
    columns = tuple(Column(*pair) for pair in pairs)
    of_event = tuple(dice.sample(columns, dice.randint(0, 3)))
    output = query.output + tuple(Named(f"e{i}", Column(f"event:{i}", one.type)) for i, one in enumerate(of_event))
    widest = Range(max([*frames, dice.choice(FRAMES), longest]))
    if dice.random() < 0.3:
        unit = dice.choice((1_000, SECOND, 5 * SECOND))
        counted = [dice.randint(0, 12) * unit for _ in query.aggregates]
        aggregates = tuple(
            replace(aggregate, preceding_us=frame, preceding_months=UNSET)
            for aggregate, frame in zip(aggregates, counted, strict=True)
        )
        widest = Range(max([*counted, 0]) + unit - 1, unit)
    return replace(query, window=widest, aggregates=aggregates, output=output, event=of_event)


def ranged_case(seed: int, events: int, queries: int, epochs: int = 8) -> Case:
    dice = random.Random(seed)
    case = random_case(seed, events, queries, epochs=epochs)
    return Case(case.epochs, [ranged(query, dice) if dice.random() < 0.7 else query for query in case.queries])


def check(case: Case, found: Answers, drained: bool = True) -> int:
    """Hold the answers against the naive twin; returns how many rows per event were compared."""
    compared = held_against_twin(case, found, drained)
    return sum(compared.get(query.name, 0) for query in case.queries if isinstance(query.window, Range))


@pytest.mark.parametrize("first", seeds(4000, 1, step=12))
def test_seeded_cases_are_answered_as_the_naive_twin_does(first: int, folders: Iterator[Path]) -> None:
    compared = 0
    for seed in range(first, first + 12):
        dice = random.Random(seed)
        case = ranged_case(seed, 80, 5)
        instances, buckets = dice.randint(1, 4), dice.choice((4, 64, 1024))
        compared += check(case, answers(next(folders), case.queries, case.epochs, instances, buckets, dealt(seed)))
    assert compared > 1000


@settings(PROPERTY, max_examples=examples(12))
@given(
    case_seed=st.integers(0, 10**6), seed=st.integers(0, 3), instances=st.integers(1, 4), drained=st.booleans(),
    events=st.integers(0, 30), epochs=st.integers(1, 6),
)  # fmt: skip
def test_small_streams_in_any_cut(
    case_seed: int, seed: int, instances: int, drained: bool, events: int, epochs: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    case = ranged_case(case_seed, events, 4, epochs)
    folder = tmp_path_factory.mktemp("pond")
    check(case, answers(folder, case.queries, case.epochs, instances, 16, dealt(seed), drained), drained)
    shutil.rmtree(folder)


def amounts(name: str, preceding_us: int, delay_us: int = 0) -> Query:
    """The amounts of a key's events in a frame."""
    amount = Column("amount", "double")
    functions = ("count", "sum", "min", "avg", "stddev_samp", "max")
    aggregates = tuple(aggregate_of(function, amount) for function in functions)
    return Query(
        name, "events", "ts", delay_us, Range(preceding_us), (Column("k", "string"),), aggregates,
        (Named("v", Column("event:0", "int")), Named("ts", Column("window.time", "timestamp")),
         Named("k", Column("key:0", "string")),
         *(Named(f"a{i}", Column(f"agg:{i}", wanted.type)) for i, wanted in enumerate(aggregates))),
        event=(Column("v", "int"),),
    )  # fmt: skip


@pytest.mark.parametrize("seed", seeds(4200, 1))
def test_frames_and_sliding_windows_share_one_group(seed: int, folders: Iterator[Path]) -> None:
    """Many epochs, so that sections are merged and generations of keys begin."""
    dice = random.Random(seed)
    case = random_case(seed, 400, 0, epochs=24)
    queries = [amounts(f"r{i}", dice.choice(FRAMES), dice.choice(DELAYS[:5])) for i in range(4)]
    queries.append(replace(queries[0], name="slides", window=Sliding(45 * SECOND, 15 * SECOND),
                           output=queries[0].output[3:], event=()))  # fmt: skip
    assert len(build_plan(queries).groups) == 1
    case = Case(case.epochs, queries)
    alone = answers(next(folders), queries, case.epochs)
    assert check(case, alone) > 1000
    same(alone, answers(next(folders), queries, case.epochs, 4, 7, dealt(seed, 4)), queries)
    for query in queries[:2]:
        same(alone, answers(next(folders), [query], case.epochs, 2), [query])


def same(left: Answers, right: Answers, queries: list[Query]) -> None:
    """Bit by bit the same rows and counts."""
    for query in queries:
        rows = (sorted(map(repr, map(canonical, side.rows[query.name]))) for side in (left, right))
        assert next(rows) == next(rows), query.name
        assert left.counts[query.name] == right.counts[query.name]


def events(*times: int, k: str = "a") -> list[dict[str, object]]:
    return [{"k": k, "amount": 1.0, "v": time, "ts": time * SECOND} for time in times]


def counted(found: Answers, name: str) -> list[tuple[int, int]]:
    return sorted((row["v"], row["a0"]) for row in found.rows[name])


def test_peers_are_in_the_frame_of_each_other(folders: Iterator[Path]) -> None:
    found = answers(next(folders), [amounts("q", 10 * SECOND)], [events(0, 5, 5, 10, 11, 30)])
    assert counted(found, "q") == [(0, 1), (5, 3), (5, 3), (10, 4), (11, 4), (30, 1)]


def test_a_row_leaves_when_the_watermark_reaches_its_event(folders: Iterator[Path]) -> None:
    query = amounts("q", 10 * SECOND, 5 * SECOND)
    for newest, rows in ((14, 0), (15, 1)):
        found = answers(next(folders), [query], [events(10), events(newest, k="b")], drained=False)
        assert len(found.rows["q"]) == rows


def test_a_pond_continues_in_the_middle_of_frames(tmp_path: Path, folders: Iterator[Path]) -> None:
    case = random_case(4300, 200, 0, epochs=10)
    query = amounts("q", 60 * SECOND, 5 * SECOND)
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


def test_events_and_keys_go_when_no_frame_holds_them(tmp_path: Path) -> None:
    run = Run(tmp_path, [amounts("short", 2 * SECOND), amounts("long", 20 * SECOND, 5 * SECOND)], 2)
    for epoch in range(150):
        run.epoch([events(2 * epoch, 2 * epoch + 1) + events(2 * epoch, k=f"k{epoch}")])
    live = run.pond.manifest.sections.values()
    assert 20 < sum(section.rows for section in live if section.kind == "events") < 150
    assert sum(section.rows for section in live if section.kind == "keys") < 100
    assert not any(section.kind == "segment" for section in live)
    run.pond.drain()
    assert len(run.answers().rows["long"]) == len(run.answers().rows["short"]) == 450
    for later in (10_000, 20_000):
        run.epoch([events(later)])
    # the last 20 seconds are needed by frames of events to come
    assert [s.rows for s in run.pond.manifest.sections.values() if s.kind == "events"] == [1]


def test_large_sections_of_events_are_merged_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 2)
    case, query, found = random_case(4400, 600, 0, epochs=60), amounts("q", 900 * SECOND, 5 * SECOND), []
    for most in (None, 40):
        monkeypatch.setattr(EventLog, "most_rows", most)
        run, largest = Run(tmp_path / str(most), [query], 2), 0
        for batch in case.epochs:
            run.epoch([batch])
            live = [one for one in run.pond.manifest.sections.values() if one.kind == "events"]
            largest = max([largest, *(one.rows for one in live)])
            assert most or len(live) <= 2 * 8, "one of each level"
        assert (largest > 100) if most is None else (20 < largest <= 40), largest
        run.pond.drain()
        found.append(sorted(repr(canonical(row)) for row in run.answers().rows["q"]))
    assert found[0] == found[1] and len(found[0]) > 100


def test_a_query_that_is_added_answers_whole_frames(tmp_path: Path) -> None:
    first = Run(tmp_path, [amounts("old", 10 * SECOND)])
    first.epoch([events(0, 5)])
    second = Run(tmp_path, [amounts("old", 10 * SECOND), amounts("new", 10 * SECOND)])
    second.epoch([events(8, 14, 15, 16, 30)])
    second.pond.drain()
    assert counted(second.answers(), "old")[-5:] == [(8, 3), (14, 3), (15, 4), (16, 4), (30, 1)]
    assert counted(second.answers(), "new") == [(16, 4), (30, 1)]
