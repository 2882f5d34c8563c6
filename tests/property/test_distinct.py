"""Queries with one row for each distinct key have the results of the naive twin, for any instances and moves."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from kit.inputs import strategies
from kit.inputs.cases import SECOND, STREAM, aggregate_of
from kit.inputs.event_files import cut
from kit.inputs.examples import examples, seeds
from kit.judges.answers import Run, dealt, run_with_moves
from kit.naive.queries.distinct import first_rows as naive_first_rows
from kit.naive.queries.distinct import firsts
from millpond.model.expressions import Column, call, literal
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.stream import Field, Order
from millpond.model.windows import NEVER_LATE_US, Distinct, Sliding
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.distinct import Timing, distinct_rows
from millpond.plan.upstream.first_rows import first_rows
from millpond.plan.upstream.rows_as_stream import chained_stream
from millpond.reconfigure.changes import Drop
from millpond.runtime.fold import fold
from millpond.testing.compare import canonical

ORDERED = replace(
    STREAM, columns=(*STREAM.columns, Field("o", "bigint")), order=Order("v", "o", ("0", "1")), max_ahead_us=None
)
COLUMNS = tuple(Column(name, kind) for name, kind in (("k", "string"), ("g", "bigint"), ("amount", "double")))
KEY, ID, AMOUNT = COLUMNS
TIME = Column("ts", "timestamp")
LARGE = call("gt", (AMOUNT, literal(5.0, "double")), "boolean")


def distinct(name: str, keys: Sequence[Column], kept_us: int | None, delay_us: int | None, **more: Any) -> Query:
    """A query with the first event of each of `keys`; without a delay it has no event time."""
    shown = (*COLUMNS, TIME)
    window = Distinct(UNSET if kept_us is None else kept_us)
    output = tuple(Named(one.name, Column(f"event:{i}", one.type)) for i, one in enumerate(shown))
    time, delay = ("", NEVER_LATE_US) if delay_us is None else ("ts", delay_us)
    return Query(name, STREAM.name, time, delay, window, tuple(keys), (), output, event=shown, **more)


def queries(delay_us: int) -> list[Query]:
    above = call("gt", (Column("event:2", "double"), literal(5.0, "double")), "boolean")
    return [
        distinct("ever", [KEY, ID], None, delay_us),
        distinct("untimed", [ID], None, None),
        distinct("time", [KEY, TIME], 0, delay_us),
        distinct("within", [ID], delay_us, delay_us),
        distinct("long", [KEY], 60 * SECOND, delay_us),
        distinct("large", [KEY, ID], None, delay_us, where=LARGE),
        distinct("above", [KEY, ID], None, delay_us, having=above),
    ]  # fmt: skip


def events(seed: int, count: int, era: int = 0) -> list[dict[str, Any]]:
    """Events in disorder, of which many come again, as they were or at another time."""
    dice, rows = random.Random(seed), list[dict[str, Any]]()
    for i in range(count):
        if rows and dice.random() < 0.5:
            row = dict(dice.choice(rows[-60:]))
            row["ts"] += dice.choice((0, 0, 1, 5, 30, 60)) * SECOND
        else:
            row = dict.fromkeys((field.name for field in STREAM.columns), None)
            row |= {"k": dice.choice(("a", "b", None)), "g": None if dice.random() < 0.05 else i}
            row["ts"] = (i - dice.choice((0, 0, 3, 10, 25))) * SECOND + i
            if era:
                row["k"] = f"era-{i // era}"
        rows.append({**row, "amount": dice.randint(0, 9) / 1})
    return rows


def shown(query: Query, row: dict[str, Any]) -> str:
    return repr(canonical({item.name: row[item.name] for item in query.output}))


def repeated(run: Run, query: Query) -> int:
    return run.ledger.counts.get(query.name, {}).get("repeated", 0)


def check(registered: Sequence[Query], epochs: Sequence[list[dict[str, Any]]], run: Run) -> dict[str, int]:
    """Compare all rows with the twin; returns the number of repeated events of each query."""
    found = run.answers()
    for query in registered:
        wanted = [candidates for epoch in firsts(replace(query, having=None), epochs) for candidates in epoch]
        if query.having is not None:
            wanted = [candidates for candidates in wanted if candidates[0]["amount"] > 5]
        emitted = sorted(shown(query, row) for row in found.rows[query.name])
        texts = [sorted({shown(query, row) for row in candidates}) for candidates in wanted]
        assert len(emitted) == len(texts), query.name
        exact = sorted(one[0] for one in texts if len(one) == 1)
        assert not [text for text in exact if emitted.count(text) < exact.count(text)], query.name
        assert {*emitted} <= {text for one in texts for text in one}, query.name
        applied, rows = (
            found.counts.get(query.name, {}).get("applied", 0),
            len(emitted) + found.withheld.get(query.name, 0),
        )
        assert repeated(run, query) == applied - rows
    return {query.name: repeated(run, query) for query in registered}


def unlike(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events with amounts that depend on identity and time, so that those of equal time are interchangeable."""
    return [{**row, "amount": float((row["ts"] + (row["g"] or 0) + len(row["k"] or "")) % 10)} for row in rows]


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_first_events_are_those_of_the_naive_twin(seed: int, tmp_path: Path) -> None:
    registered, dice = queries(15 * SECOND), random.Random(seed)
    epochs = cut(unlike(events(seed, 250)), dice)
    run, deal = Run(tmp_path, registered, 1 + seed % 3, 16), dealt(seed)
    for batch in epochs:
        run.epoch(deal(batch))
    run.pond.drain()
    assert min(check(registered, epochs, run).values()) > 2


@pytest.mark.parametrize("seed", seeds(10, 1))
def test_keys_move_and_a_pond_continues(seed: int, tmp_path: Path) -> None:
    """Buckets get other owners before most epochs, and half of the epochs are run by another pond."""
    registered, dice = queries(15 * SECOND), random.Random(seed)
    epochs = cut(unlike(events(seed, 250)), dice)
    check(registered, epochs, run_with_moves(tmp_path, registered, epochs, dice, seed, 0.7))


@pytest.mark.parametrize("seed", seeds(20, 1))
def test_windows_over_first_events_miss_none(seed: int, tmp_path: Path) -> None:
    """A query over the rows counts each of them, whenever its window closes."""
    dice = random.Random(seed)
    rows = Selection("once", STREAM.name, (Named("k", KEY), Named("g", ID), Named("at", TIME)))
    once = distinct_rows(rows, [ID], Timing(TIME, 15 * SECOND), within=True)
    window, key = Sliding(20 * SECOND, 10 * SECOND), Column("k", "string")
    output = (Named("k", Column("key:0", "string")), Named("n", Column("agg:0", "bigint")),
              Named("start", Column("window.start", "timestamp")))  # fmt: skip
    count = Query("n", "once", "at", 0, window, (key,), (aggregate_of("count", None),), output)
    epochs = cut(unlike(events(seed, 250)), dice)
    run, deal, early = Run(tmp_path, [once, count], 2, 16, others=[chained_stream(once)]), dealt(seed), 0
    for batch in epochs:
        run.epoch(deal(batch))
    early = run.sinks["n"].table().num_rows
    run.pond.drain()
    wanted = Counter[tuple[Any, ...]]()
    for candidates in (some for epoch in firsts(once, epochs) for some in epoch):
        wanted.update((candidates[0]["k"], start) for start, _ in window.assign(candidates[0]["ts"]))
    found = {(row["k"], row["start"]): row["n"] for row in run.answers().rows["n"]}
    assert found == dict(wanted)
    assert early > 0


@pytest.mark.parametrize("kept_us", [None, 0, 15 * SECOND])
def test_the_first_of_events_of_equal_time_does_not_depend_on_other_queries(
    kept_us: int | None, tmp_path: Path
) -> None:  # fmt: skip
    """Other queries of the group read other columns; half way, they are dropped."""
    columns = KEY, AMOUNT, Column("v", "int")
    base = distinct("q0", [KEY, TIME] if kept_us == 0 else [KEY], kept_us, 15 * SECOND)
    registered = []
    for i, value in enumerate(columns):
        output = Named(value.name, Column("event:0", value.type)), Named("ts", Column("window.time", "timestamp"))
        registered.append(replace(base, name=f"q{i}", event=(value, *columns[:i]), output=output))
    assert len(build_plan(registered).groups) == 1
    dice = random.Random(5)
    epochs = [
        [{**row, "ts": (20 * i + dice.randint(0, 1)) * SECOND, "amount": dice.random(), "v": dice.randint(0, 9)}
         for row in events(i, 12)]
        for i in range(8)
    ]  # fmt: skip
    for query in registered:
        alone, together = Run(tmp_path / f"{query.name} alone", [query]), Run(tmp_path / query.name, registered, 2)
        for i, batch in enumerate(epochs):
            if i == len(epochs) // 2:
                for other in registered:
                    if other != query:
                        together.pond.change(Drop(other.name))
            alone.epoch([batch])
            together.epoch(dealt(i)(batch))
        rows = [sorted(shown(query, row) for row in run.answers().rows[query.name]) for run in (alone, together)]
        assert rows[0] == rows[1] and rows[0]


def test_queries_that_forget_alike_share_a_group() -> None:
    once = distinct("once", [KEY], None, SECOND)
    plan = build_plan(
        [once, replace(once, name="again", output=once.output[:1]), replace(once, name="soon", delay_us=0)]
    )
    assert sorted(len(group.queries) for group in plan.groups) == [1, 2]


def test_forgotten_keys_leave_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 2)
    registered = [distinct("within", [KEY, ID], 15 * SECOND, 15 * SECOND)]
    epochs = cut(unlike(events(9, 500, era=20)), random.Random(9))
    run, generations, stored, keys = Run(tmp_path, registered, 1, 16), set(), list[int](), list[int]()
    for batch in epochs:
        run.epoch([batch])
        live = run.pond.manifest.sections.values()
        generations |= {section.info["generation"] for section in live if section.kind == "keys"}
        stored.append(sum(section.rows for section in live if section.kind == "events"))
        keys.append(sum(section.rows for section in live if section.kind == "keys"))
    assert check(registered, epochs, run)["within"] > 15
    assert len(generations) > 2
    assert max(stored) < 150 and max(keys) < 250  # of 300 keys and more


@pytest.mark.parametrize("seed", seeds(0, 1))
def test_the_order_decides_which_event_is_the_first(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    rows = [{**row, "v": dice.randint(0, 1), "o": o} for o, row in enumerate(events(seed, 200))]
    registered = [distinct("ever", [KEY, ID], None, 10**6 * SECOND), distinct("untimed", [ID], None, None)]
    twin = [[{**row, "p": row["v"]} for row in batch] for batch in cut(rows, dice)]
    run = Run(tmp_path, registered, 2, 16, stream=ORDERED)
    for batch in twin:
        run.epoch([[row for row in batch if row["v"] == p] for p in (0, 1)])
    assert min(check(registered, twin, run).values()) > 50


@pytest.mark.parametrize(("seed", "ordered"), [(0, False), (1, True)])
def test_a_limit_gives_the_first_rows_of_the_stream(seed: int, ordered: bool, tmp_path: Path) -> None:
    """Whatever owns the only key, and however the events of an epoch are dealt to tasks."""
    dice = random.Random(seed)
    rows = [{**row, "v": dice.randint(0, 1), "o": o} for o, row in enumerate(events(seed, 150))]
    plain = Selection("few", STREAM.name, tuple(Named(one.name, one) for one in COLUMNS))
    registered = [
        first_rows(plain, None, 70),
        first_rows(replace(plain, name="timed"), TIME, 20),
        first_rows(replace(plain, name="large", where=LARGE), TIME, 30),
        first_rows(replace(plain, name="other", output=plain.output[2:]), TIME, 20),
        first_rows(replace(plain, name="none"), None, 0),
        first_rows(replace(plain, name="all"), None, 1000),
    ]
    epochs = cut(rows if ordered else [{k: v for k, v in row.items() if k not in ("v", "o")} for row in rows], dice)
    run = Run(tmp_path, registered, 1 + seed % 3, 16, **({"stream": ORDERED} if ordered else {}))
    deal = dealt(seed)
    for batch in epochs:
        run.epoch([[row for row in batch if row["v"] == p] for p in (0, 1)] if ordered else deal(batch))
    twin = [[{**row, "p": row["v"]} for row in batch] for batch in epochs] if ordered else epochs
    found = run.answers()
    for query in registered:
        wanted = [row for epoch in naive_first_rows(query, twin) for row in epoch]
        emitted = sorted(shown(query, row) for row in found.rows.get(query.name, ()))
        assert emitted == sorted(shown(query, row) for row in wanted), query.name
        assert repeated(run, query) == 0


@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(rows=strategies.events(max_size=40), seed=st.integers(0, 99), instances=st.integers(1, 3))
def test_nasty_values_are_equal_as_keys_are(
    rows: list[dict[str, Any]], seed: int, instances: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dice = random.Random(seed)
    nasty = [Column(field.name, field.type) for field in STREAM.columns if field.name in ("f", "d", "flag", "k")]
    keys = tuple(dice.sample(nasty, dice.randint(1, 3)))
    query = distinct("q", keys, None, dice.choice((None, 10**9 * SECOND)))
    more = [key for key in keys if key != KEY]
    keyed = (Named(key.name, Column(f"event:{i}", key.type)) for i, key in enumerate(more, len(query.of_event)))
    query = replace(query, output=(*query.output, *keyed), event=(*query.of_event, *more))
    epochs = cut(rows + dice.sample(rows, len(rows) // 2), dice)
    folder = tmp_path_factory.mktemp("pond")
    run = Run(folder, [query], instances, 16)
    for batch in epochs:
        run.epoch([batch])
    twin = [[{**row, "f": None if row["f"] is None else row["f"] + 0.0} for row in batch] for batch in epochs]
    check([query], twin, run)  # keys show 0.0 for -0.0
    shutil.rmtree(folder)
