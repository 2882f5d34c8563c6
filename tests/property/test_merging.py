"""Merges in portions: no epoch rewrites more than its share, every cell is read once, and nothing is left behind."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from millpond.log.manifest import Manifest
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.windows import Sliding
from millpond.runtime import fold, merging
from millpond.runtime.epoch import group_state
from millpond.runtime.merging import merges_due
from millpond.runtime.tasks import GroupState, SectionPlace
from millpond.state import atoms
from millpond.state.cells import Cells, Slices
from millpond.testing import oracle
from millpond.testing.answers import Run, dealt
from millpond.testing.cases import SECOND, STREAM, aggregate_of, random_case
from millpond.testing.compare import assert_same_rows

BASE = Query(
    "hours", STREAM.name, "ts", 3 * SECOND, Sliding(3600 * SECOND, 3600 * SECOND), (Column("k", "string"),),
    (aggregate_of("count", None), aggregate_of("sum", Column("amount", "double")),
     aggregate_of("max", Column("v", "int"))),
    (Named("k", Column("key:0", "string")), Named("end", Column("window.end", "timestamp")),
     Named("n", Column("agg:0", "bigint")), Named("total", Column("agg:1", "double")),
     Named("most", Column("agg:2", "int"))),
)  # fmt: skip
QUERIES = [
    BASE,
    replace(BASE, name="long", window=Sliding(256 * SECOND, 2 * SECOND)),
    replace(BASE, name="ten", window=Sliding(10 * SECOND, 10 * SECOND)),
    replace(BASE, name="changing", emit="update"),
]


@pytest.fixture
def long_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 3)
    monkeypatch.setattr(merging, "PORTION_BYTES", 1000)
    monkeypatch.setattr(merging, "_REWRITTEN", 0)
    monkeypatch.setattr(atoms, "_LARGE", 0)


def states(run: Run) -> list[GroupState]:
    groups, manifest = run.pond.setting.plan.groups, run.pond.manifest
    return [group_state(manifest, instance, group) for group in groups for instance in range(2)]


def written(before: Manifest, after: Manifest) -> list[int]:
    """Rows of the portions that one epoch wrote."""
    return [one.rows for name, one in after.sections.items() if name not in before.sections and "instead" in one.info]


@pytest.mark.usefixtures("long_merges")
@pytest.mark.parametrize("seed", range(3))
def test_a_merge_takes_many_epochs_and_no_answer_changes(seed: int, tmp_path: Path) -> None:
    case, deal = random_case(seed + 900, 1500, 1, epochs=60), dealt(seed)
    queries = QUERIES if seed else QUERIES[:1]
    run, waited, most, taken = Run(tmp_path, queries, 2), 0, 0, 0
    for rows in case.epochs:
        before = run.pond.manifest
        run.epoch(deal(rows))
        waiting = [len(state.portions) for state in states(run)]
        waited, most = waited + any(waiting), max([most, *waiting])
        taken += len(written(before, run.pond.manifest))
        for state in states(run):
            live = {place.id for place in state.segments + state.tiles + state.revisions}
            for place in state.portions:
                assert live & {*place.instead}, "it waits for sections that are there"
            assert not any(live & {*place.instead} for place in state.segments), "no cell is read twice"
    assert waited > 10 and most > 2 and taken > 20
    run.pond.drain()
    found = run.answers()
    assert not found.quarantined
    for query in queries:
        if query.emit != "update":
            assert_same_rows(oracle.answer(query, case.epochs, drained=True), found.rows[query.name], about=query.name)
    if seed:
        last = {(row["k"], row["end"]): row for row in found.rows["changing"]}
        final = [{name: row[name] for name in ("k", "end", "n", "total", "most")} for row in last.values()]
        assert_same_rows(oracle.answer(BASE, case.epochs, drained=True), final, about="changing")


@pytest.mark.usefixtures("long_merges")
def test_portions_end_with_what_they_are_made_of(tmp_path: Path) -> None:
    dice = random.Random(5)
    same = {"v": 1, "amount": 1.0, "g": 1, "f": 1.0, "flag": True}
    epochs = [
        [same | {"k": f"k{dice.randrange(40)}", "ts": (now + i) * SECOND} for i in range(20)]
        for now in range(0, 1200, 20)
    ]
    run, waited = Run(tmp_path, [replace(BASE, window=Sliding(60 * SECOND, 20 * SECOND))], 2), 0
    for rows in epochs:
        run.epoch([rows])
        waited += any(state.portions for state in states(run))
    run.epoch([[dict(epochs[-1][0], ts=100_000 * SECOND)]])
    run.epoch([[dict(epochs[-1][0], ts=200_000 * SECOND)]])
    assert waited
    left = [one for one in run.pond.manifest.sections.values() if one.kind == "segment"]
    assert len(left) <= 2 and sum(one.rows for one in left) <= 2


def place(name: str, level: int, size: int = 100, instead: tuple[str, ...] = (), until: int = 0) -> SectionPlace:
    return SectionPlace(name, "file", False, 0, size, 1, level, 0, (), None, "", instead, until)


def test_what_is_due() -> None:
    eight = [place(f"a{i}", 0) for i in range(8)]
    assert merges_due(eight[:7], (), 8, 1000, 0) == []
    assert merges_due(eight, (), 8, 1000, 0) == [(tuple(range(8)), 1, 0, None)]
    large = [place(f"b{i}", 1, 4 << 20) for i in range(8)]
    assert merges_due(large, (), 8, 1000, 0) == [(tuple(range(8)), 2, 0, 250)]
    assert merges_due(large, (), 8, 1000, 4 << 20) == [(tuple(range(8)), 2, 0, 500)], "as fast as events come"
    begun = [place("p0", 2, 8 << 20, tuple(f"b{i}" for i in range(8)), 250)]
    assert merges_due([*large, *eight], begun, 8, 1000, 0) == [
        (tuple(range(8)), 2, 250, 250), (tuple(range(8, 16)), 1, 0, None),
    ]  # fmt: skip
    more = [place(f"c{i}", 0, 4 << 20) for i in range(8)]
    assert merges_due([*large, *more], begun, 8, 1000, 0) == [(tuple(range(8)), 2, 250, 250)], "one at a time"
    assert merges_due(large, begun, 8, 0, 0) == [(tuple(range(8)), 2, 250, 1)]
    portions = [place(f"p{i}", 2, 8 << 20, ("b0", "b1"), i) for i in range(12)]
    assert merges_due(portions, (), 8, 1000, 0) == [], "portions of one merge are one segment"


@pytest.mark.parametrize("seed", range(20))
def test_slots_are_found_slice_by_slice_as_among_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = np.random.default_rng(seed)
    some = [np.sort(dice.choice(50, dice.integers(1, 30), replace=False)) for _ in range(dice.integers(1, 6))]
    offsets, slots = np.cumsum([0, *map(len, some)]), np.concatenate(some).astype(np.int32)
    starts = np.arange(len(some)) * 10
    cells = Cells(Slices(starts, starts + 10, starts * 0), offsets, slots, {"n": np.arange(len(slots))})
    first, until = sorted(dice.integers(0, 2**32, 2).tolist() if seed == 3 else dice.integers(0, 60, 2).tolist())
    found = []
    for large in (0, 1 << 40):
        monkeypatch.setattr(atoms, "_LARGE", large)
        one = atoms.between(cells, first, until)
        found.append([part.tolist() for part in (*one.slices[:3], one.offsets, one.slots, one.columns["n"])])
    assert found[0] == found[1]
    assert found[0][4] == [slot for slot in slots.tolist() if first <= slot < until]
