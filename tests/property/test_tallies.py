"""Percentiles from bins equal those of a dict of exact bins, and aggregates of counted values those of all events."""

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

from kit.inputs.cases import SECOND, WINDOWS, Case, Menu, logged_aggregate, random_case
from kit.inputs.examples import examples, seeds
from kit.judges.answers import Run, dealt
from kit.naive.expressions import Raised
from kit.naive.queries import windows as oracle
from kit.naive.queries.output_modes import emitted_by_epoch
from millpond.errors import OverflowedError
from millpond.model.aggregates import PERCENTILE, Aggregate
from millpond.model.expressions import Column, Expression, call, columns_of, literal
from millpond.model.query import Named, Query
from millpond.model.windows import NEVER_LATE_US, RUNNING, Range, Session, Sliding
from millpond.plan.groups import build, tallies
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.tallies import EXACT, keeps_tallies
from millpond.plan.options.output_modes import with_mode
from millpond.reconfigure.placement_changes import owned_by
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.epoch import requested_bucket_map
from millpond.runtime.fold import fold
from millpond.state.layout.delta import DeltaWriter
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
    """The query with additional percentiles or aggregates of distinct values, in a random window and mode."""
    counted = dice.random() < 0.5
    made, functions = [], sorted(EXACT)

    def another(where: Expression | None) -> Aggregate:
        return logged_aggregate(dice, FEW, where, functions) if counted else replace(percentile(dice), filter=where)

    for one in query.aggregates:
        made += [another(one.filter)] if dice.random() < 0.6 else [one]
    made.append(another(None))
    if dice.random() < 0.1:
        made.append(Aggregate("first", Column("v", "int"), None, "int"))  # events are kept, so all is exact
    keys = [item for item in query.output if item.name.startswith(("w", "key", "start", "end", "time"))]
    output = (*keys, *(Named(f"agg{i}", Column(f"agg:{i}", one.type)) for i, one in enumerate(made)))
    query = replace(query, aggregates=tuple(made), output=output, having=None)
    pick = dice.random()
    if pick < 0.15:
        return replace(query, window=dice.choice(OTHERS))
    if not keeps_tallies(query) or pick < 0.6:
        return query
    if pick < 0.75:
        timeless = tuple(one for one in output if not any(c.startswith("window") for c in columns_of(one.expression)))
        query = replace(query, window=RUNNING, delay_us=NEVER_LATE_US, output=timeless)
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
    emitted: dict[str, list[list[dict[str, Any]]]] = {query.name: [] for query in case.queries}
    for batch in case.epochs:
        before = {name: len(sink.table()) for name, sink in run.sinks.items()}
        run.epoch(deal(batch))
        for name, sink in run.sinks.items():
            emitted[name].append(rows_of(sink.table().slice(before[name])))
    stopped, seen = dict(run.pond.manifest.quarantined), set()
    run.pond.drain()
    after = run.answers().rows
    for query in case.queries:
        twin = emitted_by_epoch if query.changing else oracle.answer_by_epoch
        try:
            expected = twin(query, case.epochs)
        except (Raised, OverflowedError):
            assert query.name in stopped, query
            continue
        for mine, theirs in zip(expected, emitted[query.name], strict=True):
            assert_same_rows(mine, theirs, about=str(query))
            how = "update" if query.updating else "corrected" if query.changing else "final"
            kind = "running" if query.window == RUNNING else type(query.window).__name__
            tallies = {tally.bits > 0 for tally in build_plan([query]).groups[0].tallies}
            what = "events" if not tallies else "bins" if True in tallies else "values"
            seen |= {f"{kind} {how} {what}"} if mine else set()
        if not query.changing:
            whole = oracle.answer(query, case.epochs, drained=True)
            assert_same_rows(whole, after[query.name], about=str(query))
    return seen


def test_answers_are_those_of_the_naive_twins_in_every_window_and_mode(tmp_path: Path) -> None:
    seen: set[str] = set()
    for seed in range(8000, 8014):
        case = case_of(seed, 60, 6, 5)
        seen |= check(tmp_path / str(seed), case, 1 + seed % 3, seed)
    assert seen == {
        "Sliding final bins", "Sliding update bins", "Sliding corrected bins", "running update bins",
        "Sliding final values", "Sliding update values", "Sliding corrected values", "running update values",
        "Sliding final events", "Session final events", "Range final events",
    }  # fmt: skip


@pytest.mark.parametrize("seed", seeds(8100, 2))
def test_tallies_that_merge_and_keys_that_end_change_nothing(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 2)
    case = case_of(seed, 160, 8, 16)
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
        percentile = Aggregate(PERCENTILE, column, None, "double", UNSET, half, accuracy=accuracy)
        output = (Named("start", Column("window.start", "timestamp")), Named("a", Column("agg:0", "double")))
        queries.append(replace(
            case.queries[0], name=f"q{i}", where=None, keys=(), aggregates=(percentile,), output=output, having=None,
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


def earlier_version(patch: pytest.MonkeyPatch) -> None:
    """Let ponds plan and store as in version 0.2, which kept events for aggregates of distinct values."""
    write = DeltaWriter.add

    def add(self: DeltaWriter, *section: Any) -> None:
        section[4].pop("counted", None)
        write(self, *section)

    patch.setattr(DeltaWriter, "add", add)
    patch.setattr(tallies, "EXACT", frozenset())


def forget_plans() -> None:
    for cached in (keeps_tallies, build.logged_of, build._needs_of, build._planned):
        cached.cache_clear()
    build._groups.clear()


@pytest.mark.parametrize(("seed", "beside", "moves"), [(8400, False, False), (8401, True, True), (8402, False, True)])
def test_the_events_of_an_earlier_version_are_counted_once(
    seed: int, beside: bool, moves: bool, tmp_path: Path
) -> None:
    """`beside`: a query with short windows needs the events, too, and goes on with them. `moves`: buckets get other
    owners in the first epoch, before the events are counted.
    """
    case = random_case(seed, 240, 1, epochs=8, menu=FEW)
    batches = [[row for row in batch if row["ts"] is not None] for batch in case.epochs]
    rows = sorted((row for batch in batches for row in batch), key=lambda row: row["ts"])
    batches = [rows[start : start + 30] for start in range(0, len(rows), 30)]
    columns = Column("k", "string"), Column("v", "int"), Column("amount", "double")
    modes = [Aggregate("mode", column, None, column.type) for column in columns]
    sets = [Aggregate("count_distinct", columns[1], None, "bigint", columns[0])]
    lists = [Aggregate("collect_list", columns[1], None, "array<int>")]
    queries = []
    for name, window, aggregates in (
        ("counted", RUNNING, modes), ("long", Sliding(60 * SECOND, 20 * SECOND), [*modes, *sets]),
        *((("beside", Sliding(2 * SECOND, 2 * SECOND), lists),) if beside else ()),
    ):  # fmt: skip
        output = [Named(f"a{i}", Column(f"agg:{i}", one.type)) for i, one in enumerate(aggregates)]
        output += [Named("key", Column("key:0", "boolean"))]
        output += [] if window == RUNNING else [Named("start", Column("window.start", "timestamp"))]
        one = replace(
            case.queries[0], name=name, where=None, keys=(Column("flag", "boolean"),), having=None, window=window,
            aggregates=tuple(aggregates), output=tuple(output), delay_us=NEVER_LATE_US if window == RUNNING else SECOND,
        )  # fmt: skip
        queries.append(with_mode(one, "update", None) if window == RUNNING else one)
    try:
        with pytest.MonkeyPatch.context() as patch:
            forget_plans()
            earlier_version(patch)
            old = Run(tmp_path, queries, 2)
            assert not any(group.tallies for group in old.pond.plan.groups)
            for batch in batches[:4]:
                old.epoch([batch])
    finally:
        forget_plans()
    new = Run(tmp_path, queries, 2)
    assert all(group.tallies for group in new.pond.plan.groups)
    if moves:
        _, owners, _ = requested_bucket_map(new.pond.setting, new.pond.manifest)
        known = KnownPond(new.pond.spec, new.pond.manifest)
        new.pond.change(owned_by(known, tuple(1 - owner for owner in owners), 2))
    for batch in batches[4:]:
        new.epoch([batch])
    kinds = {section.kind for section in new.pond.manifest.sections.values()}
    assert "tallies" in kinds and ("events" in kinds) is beside
    new.pond.drain()
    found = new.answers().rows
    for query in queries:
        assert isinstance(query, Query)
        emitted = [row for rows in emitted_by_epoch(query, batches) for row in rows] if query.changing else None
        expected = oracle.answer(query, batches, drained=True) if emitted is None else emitted
        assert len(expected) > len(old.answers().rows[query.name]) > 0
        assert_same_rows(expected, found[query.name], about=query.name)


def test_tallies_of_other_values_are_not_taken_for_a_query_s_own(tmp_path: Path) -> None:
    """`a` where `b` is not NULL and the pair (b, a) have equal filters, and a filter is stored for each."""
    case = random_case(8500, 300, 1, epochs=3, menu=FEW)
    a, b = Column("v", "int"), Column("k", "string")
    shapes = (
        ("mode", Aggregate("mode", a, None, "int"), call("isnotnull", (b,), "boolean")),
        ("pairs", Aggregate("count_distinct", b, None, "bigint", a), None),
    )
    queries = [
        replace(
            case.queries[0], name=name, where=where, keys=(), aggregates=(one,), having=None, window=WINDOWS[0],
            output=(Named("start", Column("window.start", "timestamp")), Named("a", Column("agg:0", one.type))),
        )
        for name, one, where in shapes
    ]  # fmt: skip
    (group,) = build_plan(queries).groups
    assert len({condition for tally in group.tallies for condition in tally.filters}) == 1 < len(group.tallies)
    check(tmp_path, Case(case.epochs, queries), 2, 1)
