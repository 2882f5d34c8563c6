"""Late events as rows: exactly those of the naive twin, once each, for any set of queries and any cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.inputs.cases import SECOND, STREAM, WITH_SESSIONS, Case, aggregate_of, by_window, random_case
from kit.inputs.examples import examples
from kit.judges.answers import Run, dealt
from kit.naive.queries import windows
from millpond.log.records import EpochRecord, decode
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.windows import Sliding
from millpond.plan.upstream.late_sinks import late_columns
from millpond.testing.compare import assert_same_rows, rows_of

PROPERTY = settings(max_examples=examples(10), suppress_health_check=list(HealthCheck))


def asking(query: Query) -> Query:
    return replace(query, late=Sink("memory"))


def check(case: Case, run: Run) -> int:
    """Late rows are the twin's, and each event has one fate; returns how many late rows there were."""
    found = run.answers().counts
    compared = 0
    for query in case.queries:
        counts = windows.counts(query, case.epochs)
        assert found.get(query.name, counts) == counts
        assert counts["read"] == sum(counts[fate] for fate in windows.FATES)
        if query.late_sink is None:
            assert query.name not in run.late_sinks
            continue
        names = [*late_columns(query, STREAM), "_watermark", "_epoch"]
        # the claim is record 0, so epoch i is record i + 1
        late = windows.late_rows(query, case.epochs)
        expected = [{**{name: row[name] for name in names}, "_epoch": row["_epoch"] + 1} for row in late]
        table = run.late_sinks[query.name].table()
        assert_same_rows(expected, rows_of(table), about=str(query))
        assert table.column_names == (names if expected else [])
        assert run.ledger.counts.get(query.name, {}).get("late_rows", 0) == len(expected) <= counts["late"]
        if query.where is None:
            assert len(expected) == counts["late"]
        compared += len(expected)
    return compared


def run_case(folder: Path, case: Case, seed: int, instances: int) -> Run:
    run, deal = Run(folder, case.queries, instances), dealt(seed)
    for rows in case.epochs:
        run.epoch(deal(rows))
    run.pond.drain()
    return run


@PROPERTY
@given(seed=st.integers(0, 10**6), events=st.integers(0, 120), instances=st.integers(1, 3))
def test_late_rows_are_those_of_the_naive_twin(tmp_path_factory: Any, seed: int, events: int, instances: int) -> None:
    case = random_case(seed, events, 4, menu=WITH_SESSIONS)
    queries = [asking(query) if seed >> i & 1 else query for i, query in enumerate(by_window(case.queries))]
    case = case._replace(queries=queries)
    check(case, run_case(tmp_path_factory.mktemp("pond"), case, seed, instances))


def test_a_large_stream_has_many_late_rows_and_gives_their_bytes_back(tmp_path: Path) -> None:
    case = random_case(5, 5_000, 6)
    case = case._replace(queries=[asking(query) for query in case.queries])
    run = run_case(tmp_path, case, 5, 3)
    assert check(case, run) > 500
    assert any(live.get("late", 0) for live in run.ledger.live)
    run.pond.drain()  # by now everybody has them
    assert "late" not in run.ledger.live[-1]


def test_neighbours_change_no_late_row(tmp_path: Path) -> None:
    case = random_case(11, 400, 5)
    first = asking(case.queries[0])
    alone = run_case(tmp_path / "alone", case._replace(queries=[first]), 1, 1)
    among = run_case(tmp_path / "among", case._replace(queries=[first, *map(asking, case.queries[1:])]), 1, 2)
    assert_same_rows(
        rows_of(alone.late_sinks[first.name].table()), rows_of(among.late_sinks[first.name].table()), about="neighbours"
    )


def test_equal_late_sets_travel_once(tmp_path: Path) -> None:
    """Twenty queries of one filter and delay move hardly more bytes than one of them."""
    moved = []
    for copies in (1, 20):
        one = Query("q", STREAM.name, "ts", 0, Sliding(SECOND, SECOND), (), (aggregate_of("count", None),), ())
        queries = [replace(asking(one), name=f"q{i}") for i in range(copies)]
        run = Run(tmp_path / str(copies), queries)
        run.epoch([[{"ts": 10_000 * SECOND}]])
        run.epoch([[{"ts": i * SECOND} for i in range(5_000)]])
        assert all(sink.table().num_rows == 5_000 for sink in run.late_sinks.values())
        moved.append(run.ledger.counts["*"]["bytes_moved"])
    assert moved[1] < 1.2 * moved[0]


def test_a_query_without_a_late_sink_writes_no_late_rows(tmp_path: Path) -> None:
    case = random_case(3, 300, 3)
    run = run_case(tmp_path, case, 3, 2)
    assert sum(windows.counts(query, case.epochs)["late"] for query in case.queries)
    assert not any("late" in live for live in run.ledger.live)
    records = [decode(run.pond.log.read(n) or b"").record for n in range(run.pond.manifest.n + 1)]
    assert not any(record.fates for record in records if isinstance(record, EpochRecord))  # no order, no partitions


def test_a_drained_window_makes_late_what_comes_after(tmp_path: Path) -> None:
    #   0 ── 3        drain to 10        5, 12: the floor 10 is the watermark that 5 missed
    query = asking(Query("q", "events", "ts", 5 * SECOND, Sliding(10 * SECOND, 10 * SECOND), (),
                         (aggregate_of("count", None),), ()))  # fmt: skip
    run = Run(tmp_path, [query])
    run.epoch([[{"ts": 3 * SECOND}]])
    run.pond.drain()
    run.epoch([[{"ts": 5 * SECOND}, {"ts": 12 * SECOND}]])
    assert rows_of(run.late_sinks["q"].table()) == [{"ts": 5 * SECOND, "_watermark": 10 * SECOND, "_epoch": 3}]


def test_a_quarantined_query_still_emits_its_late_events(tmp_path: Path) -> None:
    total = aggregate_of("sum", Column("g", "bigint"))
    output = (Named("total", Column("agg:0", "bigint")),)
    query = asking(Query("q", "events", "ts", 0, Sliding(SECOND, SECOND), (), (total,), output))
    run = Run(tmp_path, [query])
    run.epoch([[{"ts": 1, "g": 2**63 - 1}, {"ts": 2, "g": 1}]])
    run.epoch([[{"ts": 5 * SECOND, "g": 1}, {"ts": 0, "g": 1}]])
    assert "q" in run.pond.manifest.quarantined
    run.epoch([[{"ts": 3, "g": 7}]])
    assert rows_of(run.late_sinks["q"].table()) == [
        {"ts": 0, "g": 1, "_watermark": 2, "_epoch": 2}, {"ts": 3, "g": 7, "_watermark": 5 * SECOND, "_epoch": 3},
    ]  # fmt: skip
