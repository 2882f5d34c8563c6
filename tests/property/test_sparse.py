"""Cells that are merged window by window have the results of dense arrays and of the naive twin."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.inputs.cases import random_case
from kit.inputs.examples import seeds
from kit.judges.answers import Run, dealt
from kit.judges.naive_judge import held_against_twin
from millpond.errors import UnsupportedQuery
from millpond.model.selection import AnyQuery
from millpond.plan.options.output_modes import with_mode
from millpond.runtime.windows import choose_combine as choice
from millpond.runtime.windows import combine_sparse
from millpond.runtime.windows.closing import Closing
from millpond.runtime.windows.combine import blocks, edges_of, ranges_of, slices_between
from millpond.runtime.windows.combine_sparse import sparse_blocks
from millpond.runtime.windows.tiles import LiveCells
from millpond.state.layout.cells import Cells, Piece, Slices, merge
from millpond.testing.compare import canonical

NAMES = ("a:n", "a:w-1", "a:w0", "b:min", "b:minlow", "c:max", "d:r0", "other:n")
REQUESTED = {"a", "b", "c", "d"}


def merge_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is spread out, however little it is."""
    for name in ("LEAST_PLACES", "_PLACES_PER_ROW", "_PLACES_PER_PIECE"):
        monkeypatch.setattr(combine_sparse, name, 0)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    merge_always(monkeypatch)


def some_cells(dice: random.Random, slots: int) -> Cells:
    where = sorted({(dice.randint(-5, 8) * 10, dice.randint(0, 2), dice.randint(0, slots - 1)) for _ in range(60)})
    slices = sorted({(start, start + 10, late) for start, late, _ in where})
    table = np.array(slices)
    rows = np.array([slices.index((start, start + 10, late)) for start, late, _ in where])
    values = np.random.default_rng(dice.randint(0, 99))
    columns = {name: values.integers(0 if name == "d:r0" else -99, 99, len(where)) for name in NAMES}
    columns["a:n"] = values.integers(0, 3, len(where))
    piece = Piece(Slices(*table.T), rows, np.array([slot for *_, slot in where]), columns)
    return merge([piece], slots)


@pytest.mark.parametrize("seed", seeds(0, 14))
def test_each_window_and_slot_has_the_same_columns(seed: int, always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(combine_sparse, "_ROWS_AT_ONCE", dice.choice((7, 50, 1 << 19)))
    slots = dice.choice((3, 60, 20_000))
    parts = [some_cells(dice, slots) for _ in range(dice.randint(1, 4))]
    starts = [dice.randint(-5, 6) * 10 for _ in range(dice.randint(1, 6))]
    run = [Closing(start + dice.randint(1, 6) * 10, start, 0, 2) for start in starts]
    edges = edges_of(run)
    chosen = slices_between(LiveCells(parts, []), edges, dice.randint(0, 2))
    spread = list(blocks(edges, ranges_of(parts, edges, chosen), REQUESTED, slots))
    merged = list(sparse_blocks(run, parts, chosen, REQUESTED, slots) or ())
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for few in merged:
        rows, of = few.found("a:n", run)
        columns = few.columns(REQUESTED, rows)
        for i, (window, slot) in enumerate(zip(of.tolist(), few.slots[few.cells.slots[rows]].tolist(), strict=True)):
            assert (window, slot) not in found
            found[window, slot] = {name: column[i].item() for name, column in columns.items()}
    expected: dict[tuple[int, int], dict[str, Any]] = {}
    for block in spread:
        for window, closing in enumerate(run):
            for slot in np.flatnonzero(block.window("a:n", closing) > 0).tolist():
                expected[window, slot + block.first] = {
                    name: block.window(name, closing)[slot].item() for name in (*block.columns, *block.extremes)
                }
    assert found == expected


def test_what_is_dense_is_spread_out() -> None:
    slots, run = 1 << 15, [Closing(10 * (i + 1), 10 * i, 0, 0) for i in range(20)]
    starts = np.arange(20) * 10
    slices = Slices(starts, starts + 10, np.zeros(20, np.int64))

    def every(step: int) -> Cells:
        own = np.arange(0, slots, step)
        return Cells(slices, np.arange(21) * len(own), np.tile(own, 20), {"a:n": np.ones(20 * len(own), np.int64)})

    chosen = [np.ones(20, bool)]
    assert sparse_blocks(run, [every(2)], chosen, REQUESTED, slots) is None
    assert sparse_blocks(run, [every(100)], chosen, REQUESTED, slots) is not None
    assert sparse_blocks(run[:2], [every(100)], chosen, REQUESTED, slots) is None, "it is little either way"
    # a window over all of it holds each cell once more: fewer cells, or the dense way
    many = [Closing(10 * (i + 1), 0, 0, 0) for i in range(20)]
    assert sparse_blocks(many, [every(40)], chosen, REQUESTED, slots) is None
    # slots whose blocks have no cell would not be spread out either
    assert sparse_blocks(run, [every(100)], chosen, REQUESTED, 100 * slots) is not None
    assert sparse_blocks(run, [every(2)], chosen, REQUESTED, 100 * slots) is None


def case_of(seed: int) -> tuple[list[list[dict[str, Any]]], list[AnyQuery]]:
    dice = random.Random(f"{seed} sparse")
    case = random_case(seed + 500, 150, 5, epochs=5)
    queries: list[AnyQuery] = []
    for query in case.queries:
        try:
            queries.append(with_mode(query, dice.choice(("final", "final", "update")), None))
        except UnsupportedQuery:
            queries.append(query)
    return case.epochs, queries


def played(folder: Path, seed: int) -> Run:
    epochs, queries = case_of(seed)
    folder.mkdir()
    run, deal = Run(folder, queries, 1 + seed % 3), dealt(seed)
    for rows in epochs:
        run.epoch(deal(rows))
    run.pond.drain()
    return run


def answers_of(run: Run) -> dict[str, list[str]]:
    return {name: sorted(map(repr, map(canonical, rows))) for name, rows in run.answers().rows.items()}


@pytest.mark.parametrize("seed", seeds(0, 4))
def test_random_cases_give_the_same_rows(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spread = played(tmp_path / "spread", seed)
    used = []

    def noted(*given: Any) -> Any:
        used.append(sparse_blocks(*given))
        return used[-1]

    monkeypatch.setattr(choice, "sparse_blocks", noted)
    merge_always(monkeypatch)
    merged = played(tmp_path / "merged", seed)
    assert answers_of(merged) == answers_of(spread)
    assert any(one is not None for one in used)


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_random_cases_are_answered_as_the_naive_twin_does(seed: int, tmp_path: Path, always: None) -> None:
    case = random_case(seed + 900, 150, 5, epochs=5)
    run, deal = Run(tmp_path, case.queries, 2), dealt(seed)
    for rows in case.epochs:
        run.epoch(deal(rows))
    run.pond.drain()
    held_against_twin(case, run.answers())
