"""Every kind of window with every allowed mode, in one pond: each query has the rows of its naive twin."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.inputs.cases import SECOND, SESSIONS, STREAM, WINDOWS, Case, random_case
from kit.inputs.examples import examples, seeds
from kit.judges.answers import Run, dealt
from kit.naive.expressions import Raised
from kit.naive.queries import windows
from kit.naive.queries.deduplicate import without_repeats
from kit.naive.queries.output_modes import emitted_by_epoch
from millpond.errors import OverflowedError, UnsupportedQuery
from millpond.model.expressions import Column, columns_of
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.windows import NEVER_LATE_US, RUNNING, Counted, Range, Window
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.deduplication import deduplicated
from millpond.plan.options.output_modes import with_mode
from millpond.runtime.fold import fold
from millpond.testing.compare import assert_same_rows, rows_of

FRAMES: tuple[Window, ...] = (
    Range(0), Range(4 * SECOND), Range(40 * SECOND), Counted(1, 1), Counted(3, 2), Counted(7, 3),
)  # fmt: skip
KINDS: tuple[tuple[Window, ...], ...] = (WINDOWS, WINDOWS, SESSIONS, FRAMES, (RUNNING,))
MODES = ("final", "update", "corrected", "deduplicated")
TIMES = (1, 7 * SECOND, 40 * SECOND)


def moded(query: Query, mode: str, time_us: int) -> Query:
    """The query in a mode; as it is where that is refused."""
    names = [field.name for field in STREAM.columns if field.name != "ts"]
    compared = sorted({*names} & {name for key in query.keys for name in columns_of(key)} | {"k"})
    if query.window == RUNNING:
        timeless = tuple(item for item in query.output if not any(map(_of_window, columns_of(item.expression))))
        query, mode = replace(query, delay_us=NEVER_LATE_US, output=timeless), "update"
    try:
        found: AnyQuery = query
        if mode == "deduplicated":
            found = deduplicated(query, STREAM, compared, time_us)
        elif mode != "final":
            found = with_mode(query, *(("update", None) if mode == "update" else ("final", time_us)))
    except UnsupportedQuery:
        return query if query.window != RUNNING else replace(query, window=WINDOWS[0], delay_us=SECOND)
    assert isinstance(found, Query)
    return found


def _of_window(column: str) -> bool:
    return column.partition(".")[0] == "window"


def mixed_case(seed: int, events: int, queries: int, epochs: int, era: int = 0) -> Case:
    """Windows and modes at random; of the events many come again, and no others have one time.

    `era`: after this many epochs most keys are other ones, and keys that are texts are the column `k`.
    """
    dice = random.Random(seed)
    case, batches, rows = random_case(seed, events, queries, epochs=epochs), [], list[dict[str, Any]]()
    for now, batch in enumerate(case.epochs):
        batches.append(list[dict[str, Any]]())
        for row in batch:
            if era and row["k"] is not None and dice.random() < 0.7:
                row["k"] = f"era-{now // era}-{row['k']}"
            if row["ts"] is not None:
                row["ts"] += len(rows)
            rows.append(row)
            batches[-1].append(row)
            if dice.random() < 0.4:
                again = dict(dice.choice(rows[-20:]))
                if again["ts"] is not None:
                    again["ts"] += dice.choice((0, 1, 5, 30)) * SECOND
                batches[-1].append(again)
    made = [replace(query, window=dice.choice(dice.choice(KINDS))) for query in case.queries]
    if era:
        made = [
            replace(query, keys=(Column("k", "string"), *query.keys[1:]))
            if query.keys and query.keys[0].type == "string" else query
            for query in made
        ]  # fmt: skip
    return Case(batches, [moded(query, dice.choice(MODES), dice.choice(TIMES)) for query in made])


def check(folder: Path, case: Case, instances: int, seed: int) -> set[tuple[str, str]]:
    """Hold each epoch against the naive twins, then a drain; which windows had rows in which mode."""
    run, deal = Run(folder, case.queries, instances, 16), dealt(seed)
    emitted: dict[str, list[list[dict[str, Any]]]] = {query.name: [] for query in case.queries}
    for batch in case.epochs:
        before = {name: len(sink.table()) for name, sink in run.sinks.items()}
        run.epoch(deal(batch))
        for name, sink in run.sinks.items():
            emitted[name].append(rows_of(sink.table().slice(before[name])))
    counts, stopped, seen = run.answers().counts, dict(run.pond.manifest.quarantined), set()
    run.pond.drain()
    after = run.answers()
    for query in case.queries:
        counterpart, epochs = without_repeats(query, case.epochs) if query.deduplicated else (query, case.epochs)
        twin = emitted_by_epoch if query.changing else windows.answer_by_epoch
        expected_counts = windows.counts(query, case.epochs)
        assert counts.get(query.name, {}) == (expected_counts if expected_counts["read"] else {}), query
        try:
            expected = twin(counterpart, epochs)
        except (Raised, OverflowedError):
            assert query.name in stopped, query
            continue
        assert query.name not in stopped, query
        for mine, theirs in zip(expected, emitted[query.name], strict=True):
            assert_same_rows(mine, theirs, about=str(query))
            if mine:
                kind = "running" if query.window == RUNNING else type(query.window).__name__
                seen.add((kind, mode_of(query)))
        if query.changing:
            continue
        try:
            whole = windows.answer(counterpart, epochs, drained=True)
        except (Raised, OverflowedError):
            assert query.name in after.quarantined, query
            continue
        assert_same_rows(whole, after.rows[query.name], about=str(query))
    return seen


def mode_of(query: Query) -> str:
    if query.deduplicated is not None:
        return "deduplicated"
    return "update" if query.updating else "corrected" if query.changing else "final"


def test_all_that_is_allowed_is_answered_together(tmp_path: Path) -> None:
    seen: set[tuple[str, str]] = set()
    mixed = 0
    for seed in range(7000, 7008):
        case = mixed_case(seed, 60, 7, 5)
        groups = build_plan(case.queries).groups
        mixed += sum(
            any(isinstance(plan.query.window, Range) for plan in group.queries)
            and any(plan.query.changing for plan in group.queries)
            for group in groups
        )
        seen |= check(tmp_path / str(seed), case, 1 + seed % 3, seed)
    finals = {(kind, "final") for kind in ("Sliding", "Session", "Range", "Counted")}
    sessions = {("Session", mode) for mode in ("update", "corrected")}
    assert seen == finals | sessions | {("Sliding", mode) for mode in MODES} | {("running", "update")}
    assert mixed  # rows per event and rows that change share a group


@pytest.mark.parametrize("seed", seeds(7100, 2))
def test_keys_that_end_and_sections_that_merge_change_nothing(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 2)
    assert check(tmp_path, mixed_case(seed, 130, 12, 15, era=3), 1 + seed % 2, seed)


@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(
    case_seed=st.integers(0, 10**6), events=st.integers(0, 30), epochs=st.integers(1, 6),
    instances=st.integers(1, 3), seed=st.integers(0, 9),
)  # fmt: skip
def test_small_streams_in_any_cut(
    case_seed: int, events: int, epochs: int, instances: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pond")
    check(folder, mixed_case(case_seed, events, 5, epochs), instances, seed)
    shutil.rmtree(folder)
