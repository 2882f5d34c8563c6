"""Session windows have the results of the naive twin and DuckDB, for any set of queries and any cut of the input."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.inputs.cases import DELAYS, SECOND, STREAM, WITH_SESSIONS, Case, aggregate_of, random_case
from kit.inputs.examples import examples, seeds
from kit.inputs.strategies import cases_of
from kit.judges import duckdb_judge
from kit.judges.answers import Answers, Run, answers, dealt
from kit.judges.duckdb_expressions import Unsupported
from kit.judges.naive_judge import held_against_twin
from kit.naive.expressions import Raised
from kit.naive.queries import windows
from kit.naive.queries.output_modes import emitted_by_epoch
from millpond.errors import OverflowedError
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, call
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Session, Sliding
from millpond.plan.groups.build import build_plan
from millpond.runtime.fold import fold
from millpond.state.layout import session_atoms
from millpond.testing.compare import assert_same_rows, canonical

PROPERTY = settings(suppress_health_check=list(HealthCheck))


def check(case: Case, found: Answers, drained: bool = True) -> int:
    """Hold the answers against the naive twin; returns how many rows of sessions were compared."""
    compared = held_against_twin(case, found, drained)
    return sum(compared.get(query.name, 0) for query in case.queries if isinstance(query.window, Session))


@pytest.mark.parametrize("first", seeds(2000, 1, step=8))
def test_seeded_cases_are_answered_as_the_naive_twin_does(first: int, folders: Iterator[Path]) -> None:
    compared = 0
    for seed in range(first, first + 8):
        dice = random.Random(seed)
        case = random_case(seed, 80, 6, menu=WITH_SESSIONS)
        instances, buckets = dice.randint(1, 4), dice.choice((4, 64, 1024))
        compared += check(case, answers(next(folders), case.queries, case.epochs, instances, buckets, dealt(seed)))
    assert compared > 300


@settings(PROPERTY, max_examples=examples(15))
@given(
    case=cases_of(max_events=30, max_queries=5, menu=WITH_SESSIONS), instances=st.integers(1, 4),
    seed=st.integers(0, 3), drained=st.booleans(),
)  # fmt: skip
def test_small_nasty_streams_are_answered_as_the_naive_twin_does(
    case: Case, instances: int, seed: int, drained: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pond")
    check(case, answers(folder, case.queries, case.epochs, instances, 16, dealt(seed), drained), drained)
    shutil.rmtree(folder)


def test_seeded_cases_are_answered_as_duckdb_does(folders: Iterator[Path]) -> None:
    compared = 0
    for seed in range(2100, 2112):
        case = random_case(seed, 60, 4, menu=WITH_SESSIONS)
        queries = [duckdb_judge.mirrored(query)[0] for query in case.queries if isinstance(query.window, Session)]
        if not queries:
            continue
        found = answers(next(folders), queries, case.epochs, 2, deal=dealt(seed))
        for query in queries:
            try:
                expected = duckdb_judge.answer(query, case.epochs, drained=True)
            except Unsupported:
                continue
            except (Raised, OverflowedError):
                assert query.name in found.quarantined
                continue
            assert_same_rows(expected, found.rows[query.name], about=str(query))
            compared += len(expected)
    assert compared > 200


SMALL = (aggregate_of("count", None), aggregate_of("sum", Column("amount", "double")))


def sessions(name: str, gap_us: int, delay_us: int = 0) -> Query:
    functions = (("count", None), ("sum", "amount"), ("max", "f"), ("avg", "p"), ("min", "d"), ("var_samp", "f"))
    columns = {"amount": "double", "f": "double", "d": "decimal(38,6)", "p": "decimal(10,2)"}
    aggregates = tuple(
        aggregate_of(function, None if column is None else Column(column, columns[column]))
        for function, column in functions
    )
    return Query(
        name, "events", "ts", delay_us, Session(gap_us), (Column("k", "string"),), aggregates,
        (Named("start", Column("window.start", "timestamp")), Named("end", Column("window.end", "timestamp")),
         Named("k", Column("key:0", "string")),
         *(Named(f"a{i}", Column(f"agg:{i}", wanted.type)) for i, wanted in enumerate(aggregates))),
    )  # fmt: skip


@pytest.mark.parametrize("seed", seeds(2200, 1))
def test_gaps_and_delays_share_one_group_with_sliding_neighbours(seed: int, folders: Iterator[Path]) -> None:
    """Many epochs, so that segments are merged and generations of keys begin."""
    dice = random.Random(seed)
    case = random_case(seed, 300, 0, epochs=18)
    queries = [sessions(f"s{i}", dice.choice((1, 2, 3, 5, 20, 90)) * SECOND, dice.choice(DELAYS[:5])) for i in range(5)]
    queries.append(replace(queries[0], name="slides", window=Sliding(45 * SECOND, 15 * SECOND)))
    assert len(build_plan(queries).groups) == 2
    case = Case(case.epochs, queries)
    alone = answers(next(folders), queries, case.epochs)
    assert check(case, alone) > 100
    same(alone, answers(next(folders), queries, case.epochs, 4, 7, dealt(seed, 4)), queries)
    for query in queries[:2]:
        same(alone, answers(next(folders), [query], case.epochs, 2), [query])


def same(left: Answers, right: Answers, queries: list[Query]) -> None:
    """Bit by bit the same rows and counts."""
    for query in queries:
        rows = (sorted(map(repr, map(canonical, side.rows[query.name]))) for side in (left, right))
        assert next(rows) == next(rows), query.name
        assert left.counts[query.name] == right.counts[query.name]


def test_a_large_stream_is_answered_as_duckdb_does(folders: Iterator[Path]) -> None:
    case = random_case(2300, 20_000, 0, epochs=6)
    queries = [replace(sessions(f"s{gap}", gap * SECOND, 3 * SECOND), aggregates=SMALL) for gap in (1, 7, 30)]
    queries = [replace(query, output=query.output[: 3 + len(SMALL)]) for query in queries]
    found = answers(next(folders), queries, case.epochs, 3, deal=dealt(1))
    for query in queries:
        assert_same_rows(duckdb_judge.answer(query, case.epochs, drained=True), found.rows[query.name])
        assert found.counts[query.name] == duckdb_judge.counts(query, case.epochs)
    assert len(found.rows["s1"]) > 1000


def events(*times: int, k: str = "a") -> list[dict[str, object]]:
    return [{"k": k, "amount": 1.0, "ts": time * SECOND} for time in times]


def bounds(found: Answers, name: str) -> list[tuple[int, int, int]]:
    rows = [(row["start"] // SECOND, row["end"] // SECOND, row["a0"]) for row in found.rows[name]]
    return sorted(rows)


def test_sessions_that_touch_are_one(folders: Iterator[Path]) -> None:
    found = answers(next(folders), [sessions("q", 10 * SECOND)], [events(0, 10, 21)])
    assert bounds(found, "q") == [(0, 20, 2), (21, 31, 1)]


def test_an_event_that_is_not_late_bridges_open_sessions(folders: Iterator[Path]) -> None:
    #   0 . . . . . . . .  12   then 6, which only the patient query takes
    queries = [sessions("strict", 10 * SECOND), sessions("patient", 10 * SECOND, 30 * SECOND)]
    found = answers(next(folders), queries, [events(0), events(12), events(6)])
    assert bounds(found, "strict") == [(0, 10, 1), (12, 22, 1)]
    assert bounds(found, "patient") == [(0, 22, 3)]
    assert found.counts["strict"]["late"] == 1


def test_a_session_closes_when_the_watermark_reaches_its_end(folders: Iterator[Path]) -> None:
    query = sessions("q", 10 * SECOND, 5 * SECOND)
    for newest, closed in ((14, 0), (15, 1)):
        found = answers(next(folders), [query], [events(0), events(newest, k="b")], drained=False)
        assert len(found.rows["q"]) == closed


def test_atoms_go_when_no_open_session_holds_them(tmp_path: Path) -> None:
    run = Run(tmp_path, [sessions("short", 2 * SECOND), sessions("long", 20 * SECOND, 5 * SECOND)], 2)
    for epoch in range(120):
        # `a` never pauses for long; the others speak once
        run.epoch([events(2 * epoch, 2 * epoch + 1) + events(2 * epoch, k=f"k{epoch}")])
    cells = [section.rows for section in run.pond.manifest.sections.values() if section.kind == "segment"]
    assert 0 < sum(cells) < 100
    # `a` leaves an atom at each level of merges
    assert max(kinds.get("segment", 0) for kinds in run.ledger.live) <= 2 * 3 * 8
    run.pond.drain()
    assert len([row for row in run.answers().rows["long"] if row["k"] == "a"]) == 1
    run.epoch([[]])
    assert not any(section.kind == "segment" for section in run.pond.manifest.sections.values())


OWN = Stream("own", (Field("k", "string"), Field("v", "int"), Field("ts", "timestamp"), Field("until", "timestamp")))
UNTIL = Column("until", "timestamp")


def own_gaps(name: str, delay_us: int, by_key: bool) -> Query:
    counted = (aggregate_of("count", None), aggregate_of("sum", Column("v", "int")))
    positive = call("lt", (Column("ts", "timestamp"), UNTIL), "boolean")
    return Query(
        name, "own", "ts", delay_us, Session(0, UNTIL), (Column("k", "string"),) if by_key else (), counted,
        (Named("w", Column("window", WINDOW)), *(Named(f"a{i}", Column(f"agg:{i}", "bigint")) for i in range(2))),
        positive,
    )  # fmt: skip


@settings(PROPERTY, max_examples=examples(15))
@given(
    epochs=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["a", "b", None]), st.integers(0, 60) | st.none(), st.integers(-3, 25) | st.none()
            ),
            max_size=8,
        ),
        max_size=8,
    ),
    delays=st.lists(st.integers(0, 30), min_size=1, max_size=3), instances=st.integers(1, 3), drained=st.booleans(),
)  # fmt: skip
def test_events_bring_their_own_gaps(
    epochs: list[list[tuple[Any, Any, Any]]], delays: list[int], instances: int, drained: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    rows = [
        [
            {"k": k, "v": 1, "ts": time, "until": None if time is None or gap is None else time + gap}
            for k, time, gap in batch
        ]
        for batch in epochs
    ]
    queries = [own_gaps(f"q{i}", delay, bool(i % 2)) for i, delay in enumerate(delays)]
    moded = [replace(query, name=f"u{query.name}", emit="update") for query in queries]
    moded += [replace(query, name=f"c{query.name}", correct_us=9) for query in queries]
    folder = tmp_path_factory.mktemp("pond")
    run = Run(folder, [*queries, *moded], instances, stream=OWN)
    for number, batch in enumerate(rows):
        run.epoch(dealt(number)(batch))
    for query in moded:
        emitted = [row for found in emitted_by_epoch(query, rows) for row in found]
        assert_same_rows(emitted, run.answers().rows[query.name], about=str(query))
    if drained:
        run.pond.drain()
    check(Case(rows, queries), run.answers(), drained)
    for query in queries:
        judged = duckdb_judge.answer(query, rows, drained=drained)
        assert_same_rows(judged, run.answers().rows[query.name], about=str(query))
    shutil.rmtree(folder)


@settings(PROPERTY)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-50, 50), st.integers(0, 9)), max_size=40), st.integers(0, 12),
    st.booleans(),
)  # fmt: skip
def test_runs_begin_after_holes_longer_than_the_gap(rows: list[tuple[int, int, int]], gap: int, far: bool) -> None:
    base = 1 << 61 if far else 0  # so far apart that owner and time do not fit one number
    rows = sorted((owner, base * (1 - 2 * (owner % 2)) + first, length) for owner, first, length in rows)
    owners, first, length = np.array(rows, np.int64).reshape(-1, 3).T
    expected, reach = [], {}
    for owner, start, size in rows:
        expected.append(owner not in reach or start > reach[owner] + gap)
        reach[owner] = max(reach.get(owner, start + size), start + size)
    assert session_atoms.begins(owners, first, first + length, gap).tolist() == expected


def test_sums_of_more_atoms_than_fit_at_once_are_exact() -> None:
    words = np.full(5000, (1 << 51) - 1)
    new = np.zeros(5000, bool)
    new[[0, 17]] = True
    found = session_atoms.reduced({"m:w0": words, "m:n": np.ones(5000, np.int64), "m:max": np.arange(5000)}, new)
    totals = [sum(int(found[f"m:w{k}"][i]) << (52 * k) for k in range(2)) for i in range(2)]
    assert totals == [17 * ((1 << 51) - 1), 4983 * ((1 << 51) - 1)]
    assert found["m:n"].tolist() == [17, 4983] and found["m:max"].tolist() == [16, 4999]


def test_events_of_keys_that_are_gone_are_in_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One session stays open while others by keys that come once end within it, and generations of keys begin."""
    monkeypatch.setattr(fold, "FAN_IN", 2)
    listed = Aggregate("collect_set", Column("v", "int"), None, "array<int>")
    output = (Named("k", Column("key:0", "string")), Named("all", Column("agg:0", listed.type)))
    query = Query("q", STREAM.name, "ts", 0, Session(15 * SECOND), (Column("k", "string"),), (listed,), output)
    empty = dict.fromkeys(field.name for field in STREAM.columns)
    epochs = [
        [empty | {"ts": 10 * now * SECOND, "k": k, "v": v} for k, v in (("a", 1), (f"b{now}", now))]
        for now in range(20)
    ]  # fmt: skip
    run = Run(tmp_path, [query], 1, 16)
    for batch in epochs:
        run.epoch([batch])
    generations = {section.info.get("generation", 0) for section in run.pond.manifest.sections.values()}
    assert max(generations) > 2
    run.pond.drain()
    assert_same_rows(windows.answer(query, epochs, drained=True), run.answers().rows["q"])
