"""Stateless queries: each event that WHERE takes is one row, in its epoch, whoever shares the pond and however it is
cut; each has one fate."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.inputs.cases import Case, random_case
from kit.inputs.examples import examples
from kit.judges.answers import Run, answers, dealt
from kit.naive.queries import stateless
from millpond.log.records import EpochRecord, decode
from millpond.model.endpoints import Sink
from millpond.model.expressions import Call, Column, call, literal
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.model.spec import from_json, to_json
from millpond.plan.groups.stateless import carried
from millpond.testing.compare import assert_same_rows, rows_of

PROPERTY = settings(max_examples=examples(6), suppress_health_check=list(HealthCheck))
AMOUNT, K, V = Column("amount", "double"), Column("k", "string"), Column("v", "int")


def run_case(folder: Path, case: Case, selections: list[Selection], seed: int, instances: int) -> Run:
    run, deal = Run(folder, [*case.queries, *selections], instances), dealt(seed)
    for rows in case.epochs:
        run.epoch(deal(rows))
    return run


def check(case: Case, selections: list[Selection], run: Run) -> int:
    """Rows and counts are the twin's, also those of each epoch; returns how many rows there were."""
    found, compared = run.answers().counts, 0
    for query in selections:
        counts = stateless.counts(query, case.epochs)
        assert found.get(query.name, counts) == counts
        assert counts["read"] == sum(counts[fate] for fate in stateless.FATES)
        expected = stateless.rows(query, case.epochs)
        # the claim is record 0, so epoch i is record i + 1
        by_epoch = {n - 1: rows_of(table) for n, table in run.sinks[query.name].epochs()}
        for i, rows in enumerate(expected):
            assert_same_rows(rows, by_epoch.get(i, []), about=str(query))
            compared += len(rows)
        assert run.ledger.counts.get(query.name, {}).get("rows", 0) == sum(map(len, expected))
    return compared


@PROPERTY
@given(seed=st.integers(0, 10**6), events=st.integers(0, 120), instances=st.integers(1, 3))
def test_rows_are_those_of_the_naive_twin(tmp_path_factory: Any, seed: int, events: int, instances: int) -> None:
    case = random_case(seed, events, seed % 3)
    selections = stateless.selections(random.Random(seed), 4)
    check(case, selections, run_case(tmp_path_factory.mktemp("pond"), case, selections, seed, instances))


def test_a_large_stream_and_many_queries(tmp_path: Path) -> None:
    case, selections = random_case(5, 5_000, 4), stateless.selections(random.Random(5), 30)
    assert check(case, selections, run_case(tmp_path, case, selections, 5, 3)) > 30_000


def test_stateless_neighbours_change_no_windowed_answer(tmp_path: Path) -> None:
    case, selections = random_case(11, 400, 4), stateless.selections(random.Random(11), 5)
    alone = answers(tmp_path / "alone", case.queries, case.epochs, 2)
    among = answers(tmp_path / "among", [*case.queries, *selections], case.epochs, 3, deal=dealt(11))
    for query in case.queries:
        assert_same_rows(alone.rows[query.name], among.rows[query.name], about=query.name)
        assert alone.counts[query.name] == among.counts[query.name]


def test_demux(tmp_path: Path) -> None:
    """Conditions need not exclude each other: an event goes to each query whose condition holds."""
    events = [{"v": v, "k": f"e{v}"} for v in (1, 5, 9)]
    over = [
        Selection(f"over{n}", "events", (Named("k", K),), call("gt", (V, literal(n, "int")), "boolean"))
        for n in (0, 4, 8)
    ]
    run = Run(tmp_path, [*over, Selection("all", "events", (Named("v", V),))])
    run.epoch([events])
    found = {name: [next(iter(row.values())) for row in rows] for name, rows in run.answers().rows.items()}
    assert found == {"over0": ["e1", "e5", "e9"], "over4": ["e5", "e9"], "over8": ["e9"], "all": [1, 5, 9]}


def test_an_event_whose_output_raises_is_dead_for_its_query_alone(tmp_path: Path) -> None:
    inverse = Call("divide", (literal(1.0, "double"), AMOUNT), "double")
    selections = [
        Selection("inverse", "events", (Named("x", inverse),), call("ge", (AMOUNT, literal(0.0, "double")), "boolean")),
        Selection("plain", "events", (Named("x", AMOUNT),)),
    ]
    run = Run(tmp_path, selections)
    run.epoch([[{"amount": value} for value in (0.0, 2.0, None, -1.0)]])
    assert run.answers().rows == {
        "inverse": [{"x": 0.5}], "plain": [{"x": value} for value in (0.0, 2.0, None, -1.0)],
    }  # fmt: skip
    assert run.answers().counts["inverse"] == {"read": 4, "applied": 1, "late": 0, "dead": 1, "filtered": 2}
    assert not run.pond.manifest.quarantined


def test_equal_columns_and_filters_travel_once(tmp_path: Path) -> None:
    """Twenty queries of the same columns move hardly more bytes than one of them."""
    moved = []
    for copies in (1, 20):
        selections = [Selection(f"q{i}", "events", (Named("k", K), Named("v", V))) for i in range(copies)]
        run = Run(tmp_path / str(copies), selections)
        run.epoch([[{"k": f"customer {i}", "v": i} for i in range(5_000)]])
        assert all(sink.table().num_rows == 5_000 for sink in run.sinks.values())
        moved.append(run.ledger.counts["*"]["bytes_moved"])
    assert moved[1] < 1.2 * moved[0]


def test_what_is_carried_is_the_narrower_form() -> None:
    length, twice = Call("length", (K,), "int"), Call("add", (V, V), "int")
    assert carried([Selection("q", "s", (Named("n", length),))]) == (length,)
    assert carried([Selection("q", "s", (Named("v", V), Named("twice", twice)))]) == (V,)


def test_a_query_without_a_sink_moves_nothing_and_is_counted(tmp_path: Path) -> None:
    run = Run(tmp_path, [Selection("q", "events", (Named("k", K),))], keep_rows=False)
    run.epoch([[{"k": f"customer {i}"} for i in range(1_000)]])
    assert run.ledger.counts["q"]["rows"] == 1_000
    assert run.ledger.counts["*"]["bytes_moved"] < 1_000
    assert run.ledger.live[-1] == {}


def test_no_event_is_late_or_too_early_for_a_stateless_query(tmp_path: Path) -> None:
    case = random_case(3, 300, 3)
    run = run_case(tmp_path, case, [query := Selection("q", "events", (Named("ts", Column("ts", "timestamp")),))], 3, 2)
    assert check(case, [query], run) == 300
    assert sum(found.get("late", 0) for found in run.answers().counts.values()) > 0


def test_rows_are_given_back_once_everybody_has_them(tmp_path: Path) -> None:
    run = Run(tmp_path, [Selection("q", "events", (Named("k", K),))])
    for _ in range(3):
        run.epoch([[{"k": "a"}]])
    assert run.ledger.live[-1] == {"rows": 1}


def test_the_spec_remembers_stateless_queries(tmp_path: Path) -> None:
    query = Selection("q", "events", (Named("k", K),), None, Sink("parquet", "out"), "SELECT k FROM STREAM events")
    run = Run(tmp_path, [query])
    spec = from_json(run.pond.manifest.spec)
    assert [one.name for one in spec.all_queries] == ["q"]
    assert to_json(from_json(to_json(spec))) == to_json(spec)
    other = replace(query, where=call("isnull", (K,), "boolean"))
    assert spec.meaning != type(spec).of(spec.streams, [other], 1, spec.buckets).meaning
    run.epoch([[{"k": "a"}]])
    records = [decode(run.pond.log.read(n) or b"").record for n in range(run.pond.manifest.n + 1)]
    assert sum(isinstance(record, EpochRecord) for record in records) == 1
