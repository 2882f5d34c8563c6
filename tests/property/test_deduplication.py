"""Deduplication has the results of the naive twin, and for sources with an order these do not depend on the cut."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.inputs import strategies
from kit.inputs.cases import SECOND, STREAM, aggregate_of
from kit.inputs.event_files import cut
from kit.inputs.examples import examples, seeds
from kit.judges.answers import Run, dealt
from kit.naive.queries import windows
from kit.naive.queries.deduplicate import without_repeats
from millpond.model.expressions import Column, call, literal
from millpond.model.query import Deduplication, Named, Query
from millpond.model.stream import Field, Order, Stream
from millpond.model.windows import Sliding
from millpond.plan.groups.build import build_plan
from millpond.runtime.fold import fold
from millpond.runtime.fold.next_due import Due
from millpond.runtime.inspect.next_close import next_due
from millpond.state.ports.files import Files
from millpond.testing.compare import assert_same_rows, canonical

ORDERED = Stream(
    "tx",
    (Field("ts", "timestamp"), Field("k", "string"), Field("g", "bigint"), Field("amount", "double"),
     Field("v", "int"), Field("p", "int"), Field("o", "bigint")),
    order=Order("p", "o", ("0", "1")), max_ahead_us=None,
)  # fmt: skip
KEY, ID, AMOUNT = Column("k", "string"), Column("g", "bigint"), Column("amount", "double")
LARGE = call("gt", (AMOUNT, literal(5.0, "double")), "boolean")


def queries(stream: str, delay: int, count: int = 4) -> list[Query]:
    """Queries of two groups that leave repeated events out, and one that does not."""
    aggregates = (aggregate_of("count", None), aggregate_of("sum", AMOUNT), aggregate_of("max", Column("v", "int")))
    output = (
        Named("at", Column("window.end", "timestamp")), Named("k", Column("key:0", "string")),
        *(Named(f"a{i}", Column(f"agg:{i}", one.type)) for i, one in enumerate(aggregates)),
    )  # fmt: skip
    found = Deduplication((KEY, ID), 40 * SECOND)
    base = Query("", stream, "ts", delay * SECOND, Sliding(20 * SECOND, 20 * SECOND), (KEY,), aggregates, output)
    made = [
        replace(base, name="plain"),
        replace(base, name="once", deduplicate=found),
        replace(base, name="long", window=Sliding(64 * SECOND, 2 * SECOND), deduplicate=found),
        replace(base, name="soon", deduplicate=replace(found, within_us=5 * SECOND), where=LARGE),
        replace(base, name="patient", deduplicate=found, delay_us=2 * delay * SECOND),
    ]
    for i in range(count - 4):
        above = call("gt", (AMOUNT, literal(i / 3, "double")), "boolean")
        made.append(replace(base, name=f"large{i}", deduplicate=found, where=above))
    return made


def events(seed: int, count: int, era: int = 0) -> list[dict[str, Any]]:
    """Events in disorder, of which many come again: later, with another time, or as they were."""
    dice, rows = random.Random(seed), list[dict[str, Any]]()
    for i in range(count):
        if rows and dice.random() < 0.4:
            row = dict(dice.choice(rows[-30:]))
            row["ts"] += dice.choice((0, 1, 5, 30, 60)) * SECOND
        else:
            key = dice.choice(("a", "b", None)) if not era or dice.random() < 0.5 else f"era-{i // era}"
            time = (i - dice.choice((0, 0, 3, 10, 25))) * SECOND + i
            row = {"k": key, "g": None if dice.random() < 0.05 else i, "v": dice.randint(-9, 9), "ts": time}
        # events of one id and time are alike, for without an order nothing tells which is first
        rows.append({**row, "amount": float((row["ts"] // SECOND * 7 + row["ts"]) % 10)})
    return rows


def check(registered: Sequence[Query], epochs: list[list[dict[str, Any]]], run: Run) -> int:
    found, left_out = run.answers(), 0
    for query in registered:
        twin, marked = (query, epochs) if query.deduplicated is None else without_repeats(query, epochs)
        expected = windows.answer(twin, marked, drained=True)
        assert_same_rows(expected, found.rows[query.name], about=query.name)
        repeated = run.ledger.counts.get(query.name, {}).get("repeated", 0)
        expected_repeats = windows.counts(query, epochs)["applied"] - windows.counts(twin, marked)["applied"]
        assert repeated == expected_repeats
        left_out += repeated
    return left_out


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_events_that_repeat_are_left_out_as_the_naive_twin_does(seed: int, tmp_path: Path) -> None:
    registered, dice = queries(STREAM.name, 15), random.Random(seed)
    epochs = cut(events(seed, 250), dice)
    run, deal = Run(tmp_path, registered, 1 + seed % 3, 16), dealt(seed)
    for batch in epochs:
        run.epoch(deal(batch))
    run.pond.drain()
    assert check(registered, epochs, run) > 30


def test_cells_split_by_signature_leave_out_the_same_events(tmp_path: Path) -> None:
    registered, dice = queries(STREAM.name, 15, 24), random.Random(8)
    assert any(group.signed and group.deduplicated for group in build_plan(registered).groups)
    epochs = cut(events(8, 150), dice)
    run = Run(tmp_path, registered, 2, 16)
    for batch in epochs:
        run.epoch(dealt(8)(batch))
    run.pond.drain()
    assert check(registered, epochs, run) > 100


def test_keys_of_events_that_wait_outlive_a_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 2)
    registered, dice = queries(STREAM.name, 15)[1:4], random.Random(9)
    group, plan = build_plan(registered).of_query("once")
    epochs = cut(events(9, 500, era=20), dice)
    run = Run(tmp_path, registered, 1, 16)
    generations, waiting, due = set(), 0, list[Due | None]()
    for batch in epochs:
        run.epoch([batch])
        live = run.pond.manifest.sections.values()
        generations |= {section.info["generation"] for section in live if section.kind == "keys"}
        pond = run.pond
        due.append(next_due(group, plan, pond.manifest, Files(Path(pond.setting.folder)), 1))
        waiting = max(waiting, sum(section.rows for section in live if section.kind == "events"))
    run.pond.drain()
    assert check(registered, epochs, run) > 50
    assert len(generations) > 2
    assert all(due[next(i for i, batch in enumerate(epochs) if batch) :])  # what waits is due, too
    assert waiting < 500  # two logs; each holds what the watermark has not passed, and 40 seconds more


@pytest.mark.parametrize("seed", seeds(0, 1))
def test_no_cut_changes_which_events_are_left_out(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    rows = events(seed, 200)
    for o, row in enumerate(rows):
        row.update(p=dice.randint(0, 1), o=o, amount=float(dice.randint(0, 9)))  # an order tells which is first
    patient, impatient = queries("tx", 500), [replace(query, name=f"{query.name}2") for query in queries("tx", 10)]
    found = []
    for turn in range(3):
        run = Run(tmp_path / str(turn), [*patient, *impatient], 1 + turn, 16, stream=ORDERED)
        for batch in cut(rows, dice, (5, 30, 200)[turn]):
            run.epoch([[row for row in batch if row["p"] == p] for p in (0, 1)])
        run.pond.drain()
        check(patient, [rows], run)
        answers = run.answers().rows
        found.append({name: sorted(repr(canonical(row)) for row in answers[name]) for name in answers})
    assert found[0] == found[1] == found[2]


@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(
    rows=strategies.events(max_size=40), seed=st.integers(0, 99), within=st.sampled_from((0, 1, SECOND, 40 * SECOND))
)
def test_nasty_values_are_equal_as_keys_are(
    rows: list[dict[str, Any]], seed: int, within: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dice = random.Random(seed)
    rows = [row | {"p": dice.randint(0, 1), "o": o} for o, row in enumerate(rows + dice.sample(rows, len(rows) // 2))]
    stream = replace(STREAM, columns=(*STREAM.columns, *ORDERED.columns[-2:]), order=ORDERED.order, max_ahead_us=None)
    nasty = [Column(field.name, field.type) for field in STREAM.columns if field.name in ("f", "d", "flag", "k")]
    columns = tuple(dice.sample(nasty, dice.randint(1, 3)))
    counted = (aggregate_of("count", None), aggregate_of("min", Column("v", "int")))
    output = (Named("n", Column("agg:0", "bigint")), Named("v", Column("agg:1", "int")))
    window = Sliding(20 * SECOND, 10 * SECOND)
    query = Query("q", STREAM.name, "ts", 10**9 * SECOND, window, columns[:1], counted, output)
    query = replace(query, deduplicate=Deduplication(columns, within))
    folder = tmp_path_factory.mktemp("pond")
    run = Run(folder, [query], 2, 16, stream=stream)
    for batch in cut(rows, dice):
        run.epoch([[row for row in batch if row["p"] == p] for p in (0, 1)])
    run.pond.drain()
    check([query], [rows], run)
    shutil.rmtree(folder)
