"""Slices that no window distinguishes are coalesced when segments are merged: fewer cells, equal results."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.test_merging import BASE, random_cells

from kit.inputs.cases import SECOND
from kit.inputs.examples import seeds
from kit.judges.answers import Run, dealt
from kit.naive.queries import windows
from millpond.log.manifest import Manifest
from millpond.model.calendars.grids import Regular
from millpond.model.windows import Sliding
from millpond.runtime.fold import coalesce_slices, fold, merge_segments
from millpond.runtime.fold.coalesce_slices import Edges, widened
from millpond.runtime.fold.merge_segments import SegmentMerge, merged
from millpond.state.layout.cells import Cells, Slices, merge, piece_of
from millpond.testing.compare import assert_same_rows

TEN = replace(BASE, name="ten", window=Sliding(10 * SECOND, 10 * SECOND))
LATER = replace(BASE, name="later", window=Sliding(7 * SECOND, 7 * SECOND), delay_us=40 * SECOND)
TILED = replace(BASE, name="tiled", window=Sliding(64 * SECOND, SECOND))
SLIDING = replace(BASE, name="sliding", window=Sliding(45 * SECOND, 15 * SECOND, 4 * SECOND), emit="update")

GRIDS = st.dictionaries(
    st.builds(Regular, st.integers(0, 9), st.sampled_from((3, 10, 40))), st.integers(-50, 150) | st.just(-(1 << 63)),
    max_size=3,
)
SLICE = st.tuples(st.integers(-60, 160), st.sampled_from((1, 3, 10)), st.integers(0, 1))
SLICES = st.lists(SLICE, min_size=1, max_size=30, unique=True)


@given(GRIDS, st.lists(st.integers(-60, 160), max_size=4), SLICES)
def test_a_slice_is_as_wide_as_the_edges_that_are_needed_let_it_be(
    grids: dict[Regular, int], more: list[int], given: list[tuple[int, int, int]]
) -> None:
    needed = {*more} | {
        time for grid, since in grids.items() for time in range(-500, 700)
        if time >= since and (time - grid.phase_us) % grid.step_us == 0
    }  # fmt: skip
    start, end = np.array([(start, start + length) for start, length, _ in given]).T
    edges = Edges(grids, np.array(sorted({*more}), np.int64))
    low, high = edges.around(start, end)
    for i, (begin, until) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        before = [edge for edge in needed if edge <= begin]
        after = [edge for edge in needed if edge >= until]
        assert low[i] == (max(before) if before else begin)
        assert high[i] == (min(after) if after else until)


@given(GRIDS, SLICES, st.integers(0, 1 << 30), st.sampled_from((0, coalesce_slices._MIN_CELLS_PER_PART)))
def test_cells_of_one_key_in_one_slice_are_one(
    grids: dict[Regular, int], given: list[tuple[int, int, int]], seed: int, each: int
) -> None:
    dice = np.random.default_rng(seed)
    start, length, late = np.array(sorted(given)).T
    slots = [np.sort(dice.choice(20, dice.integers(1, 20), replace=False)) for _ in given]
    offsets, rows = np.cumsum([0, *map(len, slots)]), np.concatenate(slots).astype(np.int32)
    columns = {"n": dice.integers(1, 100, len(rows)), "m:max": dice.integers(-100, 100, len(rows))}
    cells = Cells(Slices(start, start + length, late), offsets, rows, columns)
    edges = Edges(grids, np.zeros(0, np.int64))
    low, high = edges.around(start, start + length)
    naive: dict[tuple[int, ...], tuple[int, int]] = {}
    for i in range(len(start)):
        for row in range(*offsets[i : i + 2]):
            at = int(low[i]), int(high[i]), int(late[i]), int(rows[row])
            n, most = naive.get(at, (0, -1000))
            naive[at] = n + int(columns["n"][row]), max(most, int(columns["m:max"][row]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coalesce_slices, "_MIN_CELLS_PER_PART", each)
        parts = widened(cells, edges)
    assert each == 0 or len(parts) == 1, "small slices are made one at once"
    found = merge([piece_of(part) for part in parts], 20)
    slices = np.repeat(np.stack(found.slices[:3], axis=1), np.diff(found.offsets), axis=0)
    at = [(*of, slot) for of, slot in zip(slices.tolist(), found.slots.tolist(), strict=True)]
    values = zip(found.columns["n"].tolist(), found.columns["m:max"].tolist(), strict=True)
    assert len(at) == len(naive) and dict(zip(at, values, strict=True)) == naive


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_small_slices_are_merged_as_large_ones_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact sums, extremes of 128 bits, registers, filters, and more equal slices than words are added at once."""
    dice, many = np.random.default_rng(seed), 1500
    per = dice.integers(1, 4, many)
    rows = np.concatenate([np.sort(dice.choice(4, count, replace=False)) for count in per]).astype(np.int32)
    count = len(rows)
    words = {f"s:w{place}": dice.integers(-(1 << 51), 1 << 51, count) for place in range(3)}
    low = dice.integers(-(1 << 62), 1 << 62, (5, count))
    columns = words | {
        "n": dice.integers(0, 9, count).astype(np.int8), "e:min": low[0], "e:minlow": low[1], "e:max": low[2],
        "e:maxlow": low[3], "x:min": dice.integers(-9, 9, count), "h:r0": low[4],
    }  # fmt: skip
    start = np.arange(many)
    cells = Cells(Slices(start, start + 1, start % 2), np.cumsum([0, *per]), rows, columns)
    edges, found = Edges({Regular(0, 6000): -6000}, np.zeros(0, np.int64)), []
    for each in (0, 1 << 30):
        monkeypatch.setattr(coalesce_slices, "_MIN_CELLS_PER_PART", each)
        parts = widened(cells, edges)
        assert len(parts) == (1 if each else many // 2)
        found.append(merge([piece_of(part) for part in parts], 4))
    large, small = found
    assert large.rows == small.rows == 8 and large.columns.keys() == small.columns.keys()
    assert large.slots.tolist() == small.slots.tolist() and large.offsets.tolist() == small.offsets.tolist()
    assert all(column.tolist() == small.columns[name].tolist() for name, column in large.columns.items())


@pytest.mark.parametrize("going", [False, True])
@pytest.mark.parametrize("seed", seeds(0, 20))
def test_portions_lose_nothing_while_edges_go(seed: int, going: bool) -> None:
    dice = np.random.default_rng(seed)
    old = [random_cells(dice, int(dice.choice([4, 30])), int(dice.choice([5, 60]))) for _ in range(4)]
    due, since, keys = SegmentMerge(tuple(range(4)), 1, 1), int(dice.integers(-60, 200)), 60 + int(dice.integers(0, 5))

    def edges() -> Edges:
        return Edges({Regular(0, 10): since, Regular(0, 40): since - 80, Regular(0, 160): -1000}, np.zeros(0, np.int64))

    def totals(cells: Iterable[Cells]) -> Counter[tuple[int, int]]:
        found = Counter[tuple[int, int]]()
        for part in cells:
            low = edges().around(*part.slices[:2])[0]
            part = part._replace(slices=part.slices._replace(start_us=low))
            for at, number in zip(cells_at(part), part.columns["n"].tolist(), strict=True):
                found[at] += number
        return found

    whole, found = merged(due, old, None, 60, keys, None, edges=edges()).cells.rows, list[Cells]()
    while True:
        one = merged(due._replace(portions=int(dice.integers(1, 30))), old, None, 60, keys, None, edges=edges())
        found += [one.cells] if one.cells.rows else []
        if one.until is None:
            break
        assert one.until > due.begin and one.cells.rows
        due, since = due._replace(begin=one.until), since + going * int(dice.choice([0, 0, 10, 70]))
    assert totals(found) == totals(old)
    assert going or sum(cells.rows for cells in found) == whole, "slices that become one are in one portion"


def cells_at(cells: Cells) -> list[tuple[int, int]]:
    """Where each cell is: the start of its slice, and its slot."""
    starts = np.repeat(cells.slices.start_us, np.diff(cells.offsets))
    return list(zip(starts.tolist(), cells.slots.tolist(), strict=True))


def cells_in(manifest: Manifest) -> int:
    """Cells that are read."""
    every = [one for one in manifest.sections.values() if one.kind == "segment"]
    return sum(one.rows for one in every if "instead" not in one.info and "tiles" not in one.info)


@pytest.mark.parametrize(("portion_bytes", "seconds"), [(8 << 20, 4), (2000, 2)])
def test_beside_narrow_windows_a_wide_one_keeps_few_cells(
    portion_bytes: int, seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    #   ten seconds beside an hour: 20 keys in each epoch, 600 s; all slices would be 60 for each key
    monkeypatch.setattr(fold, "FAN_IN", 3)
    monkeypatch.setattr(merge_segments, "PORTION_BYTES", portion_bytes)
    monkeypatch.setattr(merge_segments, "_PORTION_PER_ADDED_BYTE", 0)
    same = {"v": 1, "amount": 1.0, "g": 1, "f": 1.0, "flag": True}
    epochs = [[same | {"k": f"k{i}", "ts": now * SECOND + i} for i in range(20)] for now in range(0, 600, seconds)]
    run, most = Run(tmp_path, [BASE, TEN], 2), 0
    for rows in epochs:
        run.epoch([rows])
        most = max(most, cells_in(run.pond.manifest))
    assert most < 20 * 20, "of sixty slices of a key few are left"
    run.pond.drain()
    found = run.answers()
    for query in (BASE, TEN):
        assert_same_rows(windows.answer(query, epochs, drained=True), found.rows[query.name], about=query.name)


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_answers_are_those_of_the_naive_twin(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 2)
    if seed % 2:
        monkeypatch.setattr(merge_segments, "PORTION_BYTES", 4000)
        monkeypatch.setattr(merge_segments, "_PORTION_PER_ADDED_BYTE", 0)
    dice, now, epochs = random.Random(seed), 0, []
    for _ in range(50):
        now += dice.choice((1, 1, 2, 5))
        times = [now - dice.choice((0, 0, 1, 4, 20, 60)) for _ in range(12)]
        epochs.append([
            {"k": dice.choice("abcdefgh"), "ts": time * SECOND + dice.randrange(SECOND), "v": dice.randrange(100),
             "amount": dice.randrange(1000) / 8, "g": 1, "f": 1.0, "flag": True}
            for time in times
        ])  # fmt: skip
    queries = [BASE, TEN, LATER, SLIDING, *([TILED] if seed % 3 else [])]
    run, deal = Run(tmp_path, queries, 1 + seed % 3), dealt(seed)
    for rows in epochs:
        run.epoch(deal(rows))
    run.pond.drain()
    found = run.answers()
    assert not found.quarantined
    for query in queries:
        if query.emit != "update":
            assert_same_rows(windows.answer(query, epochs, drained=True), found.rows[query.name], about=query.name)
