"""Percentiles from tallies equal those of a dict of exact bins, in any cut, accuracy and mode."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from kit.inputs.cases import SECOND, WINDOWS, Case, Menu, random_case
from kit.inputs.examples import examples, seeds
from kit.judges.answers import Run, dealt
from kit.naive.expressions import Raised
from kit.naive.queries import windows as oracle
from kit.naive.queries.output_modes import told_by_epoch
from millpond.errors import OverflowedError
from millpond.model.aggregates import PERCENTILE, Aggregate
from millpond.model.expressions import Column, columns_of, literal
from millpond.model.query import Named, Query
from millpond.model.windows import NEVER_LATE_US, RUNNING, Range, Session, Sliding
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.tallies import keeps_tallies
from millpond.plan.options.output_modes import with_mode
from millpond.runtime.fold import fold
from millpond.testing.compare import assert_same_rows, rows_of

TYPES = {"v": "int", "amount": "double", "p": "decimal(10,2)", "f": "double", "g": "bigint", "d": "decimal(38,6)"}
FEW = Menu(events=False, raising=False, variance=False)
OTHERS = (Range(4 * SECOND), Session(5 * SECOND))


def percentile(dice: random.Random) -> Aggregate:
    """A random one; only of `d` events are kept."""
    name = dice.choice(("v", "amount", "amount", "p", "f", "g", *(("d",) if dice.random() < 0.1 else ())))
    fractions = tuple(literal(dice.choice((0.0, 0.25, 0.5, 0.9, 1.0)), "double") for _ in range(dice.randint(1, 2)))
    kind = TYPES[name] if len(fractions) == 1 else f"array<{TYPES[name]}>"
    accuracy = dice.choice((UNSET, 1, 50, 100, 100_000))
    return Aggregate(PERCENTILE, Column(name, TYPES[name]), None, kind, UNSET, fractions, accuracy=accuracy)


def asking(dice: random.Random, query: Query) -> Query:
    """The query with additional percentiles, in a random window and mode."""
    made = []
    for one in query.aggregates:
        made += [replace(percentile(dice), filter=one.filter)] if dice.random() < 0.6 else [one]
    made.append(percentile(dice))
    if dice.random() < 0.1:
        made.append(Aggregate("mode", Column("v", "int"), None, "int"))  # events are kept, so all is exact
    keys = [item for item in query.output if item.name.startswith(("w", "key", "start", "end", "time"))]
    output = (*keys, *(Named(f"agg{i}", Column(f"agg:{i}", one.type)) for i, one in enumerate(made)))
    query = replace(query, aggregates=tuple(made), output=output, having=None)
    pick = dice.random()
    if pick < 0.15:
        return replace(query, window=dice.choice(OTHERS))
    if not keeps_tallies(query) or pick < 0.6:
        return query
    if pick < 0.75:
        told = tuple(one for one in output if not any(c.startswith("window") for c in columns_of(one.expression)))
        query = replace(query, window=RUNNING, delay_us=NEVER_LATE_US, output=told)
    moded = with_mode(query, "final", 7 * SECOND) if pick > 0.9 else with_mode(query, "update", None)
    assert isinstance(moded, Query)
    return moded


def case_of(seed: int, events: int, queries: int, epochs: int) -> Case:
    """Events of any kind, and queries that all compute a percentile."""
    dice, case = random.Random(seed), random_case(seed, events, queries, epochs=epochs, menu=FEW)
    return Case(case.epochs, [asking(dice, query) for query in case.queries])


def check(folder: Path, case: Case, instances: int, seed: int) -> set[str]:
    """Compare each epoch, and a drain, with the naive twins; returns the emitted rows and how they were computed."""
    run, deal = Run(folder, case.queries, instances, 16), dealt(seed)
    told: dict[str, list[list[dict[str, Any]]]] = {query.name: [] for query in case.queries}
    for batch in case.epochs:
        before = {name: len(sink.table()) for name, sink in run.sinks.items()}
        run.epoch(deal(batch))
        for name, sink in run.sinks.items():
            told[name].append(rows_of(sink.table().slice(before[name])))
    stopped, seen = dict(run.pond.manifest.quarantined), set()
    run.pond.drain()
    after = run.answers().rows
    for query in case.queries:
        twin = told_by_epoch if query.changing else oracle.answer_by_epoch
        try:
            expected = twin(query, case.epochs)
        except (Raised, OverflowedError):
            assert query.name in stopped, query
            continue
        for mine, theirs in zip(expected, told[query.name], strict=True):
            assert_same_rows(mine, theirs, about=str(query))
            how = "update" if query.updating else "corrected" if query.changing else "final"
            kind = "running" if query.window == RUNNING else type(query.window).__name__
            seen |= {f"{kind} {how} {'bins' if keeps_tallies(query) else 'events'}"} if mine else set()
        if not query.changing:
            whole = oracle.answer(query, case.epochs, drained=True)
            assert_same_rows(whole, after[query.name], about=str(query))
    return seen


def test_percentiles_are_those_of_bins_in_every_window_and_mode(tmp_path: Path) -> None:
    seen: set[str] = set()
    for seed in range(8000, 8014):
        case = case_of(seed, 90, 6, 6)
        seen |= check(tmp_path / str(seed), case, 1 + seed % 3, seed)
    assert seen == {
        "Sliding final bins", "Sliding update bins", "Sliding corrected bins", "running update bins",
        "Sliding final events", "Session final events", "Range final events",
    }  # fmt: skip


@pytest.mark.parametrize("seed", seeds(8100, 2))
def test_tallies_that_merge_and_keys_that_end_change_nothing(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 2)
    case = case_of(seed, 250, 12, 24)
    for now, batch in enumerate(case.epochs):
        for row in batch:
            row["k"] = None if row["k"] is None else f"era-{now // 3}-{row['k']}"
    queries = [replace(one, keys=tuple(Column("k", "string") if k.type == "string" else k for k in one.keys))
               for one in case.queries]  # fmt: skip
    assert check(tmp_path, Case(case.epochs, queries), 1 + seed % 2, seed)


@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(
    case_seed=st.integers(0, 10**6), events=st.integers(0, 30), epochs=st.integers(1, 6),
    instances=st.integers(1, 3), seed=st.integers(0, 9),
)  # fmt: skip
def test_small_streams_in_any_cut(
    case_seed: int, events: int, epochs: int, instances: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pond")
    check(folder, case_of(case_seed, events, 4, epochs), instances, seed)
    shutil.rmtree(folder)


def test_a_coarse_percentile_is_the_same_beside_a_fine_one(tmp_path: Path) -> None:
    """Queries of other accuracies share one tally, and no answer depends on the neighbours."""
    case, windows = random_case(8200, 300, 1, menu=FEW), [one for one in WINDOWS if isinstance(one, Sliding)]
    column, half = Column("amount", "double"), (literal(0.5, "double"),)
    queries = []
    for i, accuracy in enumerate((10, 100, UNSET)):
        asked = Aggregate(PERCENTILE, column, None, "double", UNSET, half, accuracy=accuracy)
        output = (Named("start", Column("window.start", "timestamp")), Named("a", Column("agg:0", "double")))
        queries.append(replace(
            case.queries[0], name=f"q{i}", where=None, keys=(), aggregates=(asked,), output=output, having=None,
            window=windows[i],
        ))  # fmt: skip
    (group,) = build_plan(queries).groups
    assert [tally.bits for tally in group.tallies] == [9]
    for i, some in enumerate((queries, queries[:1])):
        check(tmp_path / str(i), Case(case.epochs, list(some)), 2, 1)


def test_a_finer_query_added_later_begins_with_its_first_window_and_changes_no_other(tmp_path: Path) -> None:
    case = random_case(8300, 400, 1, epochs=10, menu=FEW)
    batches = [[row for row in batch if row["ts"] is not None] for batch in case.epochs]
    rows = sorted((row for batch in batches for row in batch), key=lambda row: row["ts"])
    batches = [rows[start : start + 40] for start in range(0, len(rows), 40)]
    column, half = Column("amount", "double"), (literal(0.5, "double"),)
    output = (Named("start", Column("window.start", "timestamp")), Named("a", Column("agg:0", "double")))
    kept, other = (
        replace(
            case.queries[0], name=name, where=None, keys=(), having=None, output=output, delay_us=SECOND, window=window,
            aggregates=(Aggregate(PERCENTILE, column, None, "double", UNSET, half, accuracy=accuracy),),
        )
        for name, accuracy, window in (
            ("kept", 20, Sliding(60 * SECOND, 20 * SECOND)), ("other", UNSET, Sliding(7 * SECOND, 7 * SECOND)),
        )
    )  # fmt: skip
    first = Run(tmp_path, [kept])
    for batch in batches[:4]:
        first.epoch([batch])
    second = Run(tmp_path, [kept, other])
    for batch in batches[4:7]:
        second.epoch([batch])
    third = Run(tmp_path, [kept])  # the finer one goes, and what it kept is read as before
    for batch in batches[7:]:
        third.epoch([batch])
    third.pond.drain()
    assert_same_rows(oracle.answer(kept, batches, drained=True), third.answers().rows["kept"], about="kept")
    since = max(row["ts"] for batch in batches[:4] for row in batch) + 1
    whole = oracle.answer(other, batches[:7])
    expected = [row for row in whole if row["start"] >= since]
    assert 0 < len(expected) < len(whole)
    assert_same_rows(expected, second.answers().rows["other"], about="other")
