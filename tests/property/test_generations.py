"""Keys that keep changing: the dictionary has at most the keys of live cells, and results do not change."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from kit.inputs.cases import SECOND, STREAM, aggregate_of, random_case
from kit.inputs.examples import seeds
from kit.judges.answers import Partition, Run, dealt, whole
from kit.naive.expressions import Raised
from kit.naive.queries import windows
from millpond.errors import OverflowedError
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, call, literal
from millpond.model.query import Named, Query
from millpond.model.windows import Sliding
from millpond.plan.groups import plan
from millpond.runtime.fold import fold, merge_segments
from millpond.runtime.gather import group_parts
from millpond.runtime.inspect.sharing import sharing
from millpond.state.ports.files import Files
from millpond.testing.compare import assert_same_rows

Event = dict[str, Any]

KEYS = (Column("k", "string"), Column("f", "double"), Column("v", "int"), Column("flag", "boolean"))
AGGREGATES = (aggregate_of("count", None), aggregate_of("sum", Column("amount", "double")),
              Aggregate("max", Column("amount", "double"), None, "double"))  # fmt: skip
ALWAYS = [("always", 1.5, 1, True), (None, None, None, None), ("ünï😀", math.nan, -1, False), ("", -0.0, None, None)]


def query(name: str, size: int, slide: int, delay: int = 0, where: Expression | None = None, offset: int = 0) -> Query:
    outputs = [Named("end", Column("window.end", "timestamp"))]
    outputs += [Named(f"key{i}", Column(f"key:{i}", key.type)) for i, key in enumerate(KEYS)]
    outputs += [Named(f"a{i}", Column(f"agg:{i}", each.type)) for i, each in enumerate(AGGREGATES)]
    window = Sliding(size * SECOND, slide * SECOND, offset * SECOND)
    return Query(name, STREAM.name, "ts", delay * SECOND, window, KEYS, AGGREGATES, tuple(outputs), where)


QUERIES = [query("ten", 10, 10), query("sliding", 45, 15, 3), query("uneven", 21, 7, offset=3)]


def event(key: tuple[Any, ...], amount: float, time_us: int, g: int = 1) -> Event:
    return dict(zip(("k", "f", "v", "flag"), key, strict=True)) | {"g": g, "amount": amount, "ts": time_us}


def named(k: str, amount: float, time_us: int, g: int = 1) -> Event:
    return event((k, None, None, None), amount, time_us, g)


def churning(seed: int, seconds: int, era: int = 40) -> list[list[Event]]:
    """A batch a second; all but four of the keys change every `era` seconds, some late by a few seconds."""
    dice = random.Random(seed)
    batches = []
    for now in range(seconds):
        batch = []
        for _ in range(6):
            name = f"ära-{now // era}-{dice.randint(0, 8)}"
            real = dice.choice((now // era + 0.5, math.nan))
            fresh = (dice.choice((name, None)), real, now // era, dice.choice((True, None)))
            time = (now - dice.choice((0, 0, 0, 1, 2, 5))) * SECOND
            batch.append(event(fresh if dice.random() < 0.8 else dice.choice(ALWAYS), dice.randint(0, 999) / 100, time))
        batches.append(batch)
    return batches


def key_rows(run: Run) -> int:
    return sum(section.rows for section in run.pond.manifest.sections.values() if section.kind == "keys")


def generation(run: Run, kind: str = "keys") -> set[int]:
    sections = run.pond.manifest.sections.values()
    return {int(section.info["generation"]) for section in sections if section.kind == kind}  # type: ignore[arg-type]


def distinct(rows: Sequence[Event]) -> int:
    return len({tuple(str(row[name]).replace("-0.0", "0.0") for name in ("k", "f", "v", "flag")) for row in rows})


def check(queries: Sequence[Query], epochs: list[list[Event]], run: Run) -> int:
    found, compared = run.answers(), 0
    for each in queries:
        try:
            expected = windows.answer(each, epochs, drained=True)
        except (Raised, OverflowedError):
            assert each.name in found.quarantined
            continue
        assert_same_rows(expected, found.rows[each.name], about=each.name)
        compared += len(expected)
    return compared


@pytest.mark.parametrize(("instances", "deal", "at_once"), [(1, whole, 4), (4, dealt(3), 4)])
def test_a_dictionary_holds_a_constant_times_the_keys_of_the_horizon(
    instances: int, deal: Partition, at_once: int, tmp_path: Path
) -> None:
    #   era 0 ........ | era 1 ........ | …    a key lives while an event of the last 45 + 3 + 15 s names it
    seconds = churning(instances, 320)
    epochs = [list(chain.from_iterable(seconds[i : i + at_once])) for i in range(0, len(seconds), at_once)]
    run = Run(tmp_path, QUERIES, instances)
    held, live, generations = [], [], set()
    for rows in epochs:
        run.epoch(deal(rows))
        now = max(row["ts"] for row in rows)
        held.append(key_rows(run))
        live.append(distinct([row for batch in epochs for row in batch if now - 63 * SECOND <= row["ts"] <= now]))
        generations |= generation(run)
    run.pond.drain()
    assert check(QUERIES, epochs, run) > 1500
    assert len(generations) >= 3
    assert max(count / alive for count, alive in zip(held, live, strict=True)) < 4
    every = distinct([row for batch in epochs for row in batch])
    assert max(held) < every / 2


@pytest.mark.parametrize("seed", seeds(2, 3))
def test_random_cases_are_answered_as_the_naive_twin_does_while_generations_roll(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(plan, "SIGNED_FROM", 2)
    if seed > 3:  # merges take as many epochs as they can
        monkeypatch.setattr(merge_segments, "PORTION_BYTES", 1)
        monkeypatch.setattr(merge_segments, "_PORTION_PER_ADDED_BYTE", 0)
    monkeypatch.setattr(fold, "FAN_IN", 2)  # sections merge, and generations begin, as often as they can
    case = random_case(seed + 70, 120, 4, epochs=28)
    for at, batch in enumerate(case.epochs):
        for row in batch:
            row["k"] = row["k"] if row["k"] is None or len(row["k"]) < 2 else f"{row['k']}-{at // 6}"
    by_text = query("by text", 45, 15, 5)
    queries = [*case.queries, by_text, query("long", 32, 1, 5)]  # the last has tiles
    deal = dealt(seed)
    run = Run(tmp_path, queries, 1 + seed % 4)
    rolled, spans = set(), 0
    for rows in case.epochs:
        run.epoch(deal(rows))
        rolled |= generation(run)
        spans += len(generation(run, "segment") | generation(run)) > 1
    run.pond.drain()
    assert check(queries, case.epochs, run) > 100
    assert len(rolled) > 1
    assert spans > 0


@pytest.mark.parametrize("portion_bytes", [8 << 20, 1])
def test_a_segment_of_two_generations_ago_is_read_through_one_table(
    portion_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    #   keys of a second   20 | 8 | 3 | 1 …    windows of 30 s: the first 10 s die, a generation opens; the next
    #   die soon after, another opens, and segments of the first are still live: they are rewritten
    monkeypatch.setattr(merge_segments, "PORTION_BYTES", portion_bytes)
    monkeypatch.setattr(merge_segments, "_PORTION_PER_ADDED_BYTE", 0)
    monkeypatch.setattr(fold, "FAN_IN", 2)
    queries = [query("sliding", 30, 5)]
    dice, epochs = random.Random(3), []
    for now in range(80):
        names = ["always", *(f"k{now}-{i}" for i in range((20, 8, 3, 1)[min(now // 10, 3)]))]
        epochs.append([named(k, dice.random(), now * SECOND) for k in names])
    run = Run(tmp_path, queries)
    generations: list[int] = []
    for rows in epochs:
        run.epoch([rows])
        newest = max(generation(run))
        assert {newest} == generation(run)
        assert generation(run, "segment") <= {newest, newest - 1}
        generations.append(newest)
    run.pond.drain()
    assert check(queries, epochs, run) > 300
    begun = [generations.index(each) for each in sorted(set(generations)) if each]
    assert min(b - a for a, b in pairwise(begun)) < 30, "none began while the one before was live"


def test_what_is_shared_is_counted_over_both_generations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 2)
    queries = [query("ten", 10, 10), query("thirty", 30, 30)]
    epochs = churning(5, 80, era=5)
    run = Run(tmp_path, queries, 2)
    both = 0
    for rows in epochs:
        run.epoch([rows])
        both += len(generation(run, "segment") | generation(run)) > 1
        manifest = run.pond.manifest
        newest = manifest.max_time[STREAM.name]["*"]
        kept = _accepted(epochs[: epochs.index(rows) + 1], newest // (30 * SECOND) * 30 * SECOND)
        assert sharing(run.pond.plan, manifest, Files(tmp_path), 2).shared.keys == distinct(kept)
    assert both > 3


def _accepted(epochs: list[list[Event]], since_us: int) -> list[Event]:
    """Events from a time on that were not late when they came (delay 0)."""
    kept, mark = [], -math.inf
    for rows in epochs:
        kept += [row for row in rows if row["ts"] >= since_us and row["ts"] > mark]
        mark = max(mark, *(row["ts"] for row in rows))
    return kept


@pytest.mark.parametrize("signed_from", [plan.SIGNED_FROM, 2])
@pytest.mark.parametrize("raw", [True, False])
def test_keys_of_events_that_no_query_takes_are_not_numbered(
    signed_from: int, raw: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SIGNED_FROM", signed_from)
    monkeypatch.setattr(group_parts, "is_smaller_raw", lambda *_: raw)
    taken = call("eq", (Column("g", "bigint"), literal(1, "bigint")), "boolean")
    also = call("eq", (Column("g", "bigint"), literal(2, "bigint")), "boolean")
    queries = [query("one", 10, 10, 0, taken), query("two", 10, 10, 30, also)]
    rows = [named(f"k{i}", 1.0, 100 * SECOND, i % 10) for i in range(100)]
    # late for "one" only, which alone would take them: g = 1; "two" takes g = 2
    late = [dict(row, k=f"late-{row['k']}", ts=80 * SECOND) for row in rows]
    run = Run(tmp_path, queries, 2)
    for batch in (rows, late):
        run.epoch([batch])
    assert key_rows(run) == 10 + 10 + 10
    run.pond.drain()
    assert check(queries, [rows, late], run) == 30
