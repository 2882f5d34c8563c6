"""Merges in portions: no epoch rewrites more than its share, every cell is read once, and no segment is left over."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from kit.inputs.cases import SECOND, STREAM, aggregate_of, random_case
from kit.inputs.examples import seeds
from kit.judges.answers import Run, dealt
from kit.naive.queries import windows
from millpond.log.manifest import Manifest
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.windows import Sliding
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.epoch import group_state
from millpond.runtime.fold import fold, merge_segments
from millpond.runtime.fold.merge_segments import SegmentMerge, merged, merges_due
from millpond.runtime.keys.current_slots import departed_fractions, departed_within
from millpond.runtime.task.task_values import GroupState, Position, SectionPlace, Watermark
from millpond.runtime.windows.closing import each_closes, may_close
from millpond.state.layout import cells as cells_module
from millpond.state.layout.cells import Cells, Slices, merge, part_of, piece_of, span_of
from millpond.state.layout.session_atoms import some_atoms
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

PORTION = merge_segments.PORTION_BYTES


@pytest.fixture
def long_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 3)
    monkeypatch.setattr(merge_segments, "PORTION_BYTES", 1000)
    monkeypatch.setattr(merge_segments, "_PORTION_PER_ADDED_BYTE", 0)


def states(run: Run) -> list[GroupState]:
    groups, manifest = run.pond.setting.plan.groups, run.pond.manifest
    return [group_state(manifest, instance, group) for group in groups for instance in range(2)]


def written(before: Manifest, after: Manifest) -> list[int]:
    """Rows of the portions that one epoch wrote."""
    return [one.rows for name, one in after.sections.items() if name not in before.sections and "instead" in one.info]


@pytest.mark.usefixtures("long_merges")
@pytest.mark.parametrize("seed", seeds(0, 2))
def test_a_merge_takes_many_epochs_and_no_answer_changes(seed: int, tmp_path: Path) -> None:
    case, deal = random_case(seed + 900, 1000, 1, epochs=45), dealt(seed)
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
            assert_same_rows(windows.answer(query, case.epochs, drained=True), found.rows[query.name], about=query.name)
    if seed:
        last = {(row["k"], row["end"]): row for row in found.rows["changing"]}
        final = [{name: row[name] for name in ("k", "end", "n", "total", "most")} for row in last.values()]
        assert_same_rows(windows.answer(BASE, case.epochs, drained=True), final, about="changing")


@pytest.mark.usefixtures("long_merges")
def test_portions_end_with_what_they_are_made_of(tmp_path: Path) -> None:
    dice = random.Random(5)
    same = {"v": 1, "amount": 1.0, "g": 1, "f": 1.0, "flag": True}
    epochs = [
        [same | {"k": f"k{dice.randrange(40)}", "ts": (now + i) * SECOND} for i in range(20)]
        for now in range(0, 1200, 20)
    ]
    run, waited = Run(tmp_path, [replace(BASE, window=Sliding(180 * SECOND, 20 * SECOND))], 2), 0
    for rows in epochs:
        run.epoch([rows])
        waited += any(state.portions for state in states(run))
    run.epoch([[dict(epochs[-1][0], ts=100_000 * SECOND)]])
    run.epoch([[dict(epochs[-1][0], ts=200_000 * SECOND)]])
    run.epoch([[dict(epochs[-1][0], ts=200_000 * SECOND)]])  # no window closes: there is time to merge
    assert waited
    left = [one for one in run.pond.manifest.sections.values() if one.kind == "segment"]
    assert len(left) <= 2 and sum(one.rows for one in left) <= 2


@pytest.mark.usefixtures("long_merges")
def test_an_epoch_that_is_behind_merges_nothing(tmp_path: Path) -> None:
    case, deal, dice = random_case(904, 900, 1, epochs=36), dealt(4), random.Random(4)
    run, merged = Run(tmp_path, QUERIES[:3], 2), {True: 0, False: 0}
    for rows in case.epochs:
        run.pond.merges_wait = dice.random() < 0.5
        before = run.pond.manifest
        run.epoch(deal(rows))
        level = {name: one.info.get("level") for name, one in run.pond.manifest.sections.items() if "level" in one.info}
        merged[run.pond.merges_wait] += sum(bool(level[name]) for name in level.keys() - before.sections.keys())
    assert merged[False] > 10 and not merged[True]
    run.pond.drain()
    for query in QUERIES[:3]:
        expected = windows.answer(query, case.epochs, drained=True)
        assert_same_rows(expected, run.answers().rows[query.name], about=query.name)


def place(
    name: str, level: int, size: int = 100, instead: tuple[str, ...] = (), until: tuple[int, int] = (0, 0)
) -> SectionPlace:
    return SectionPlace(name, "file", False, 0, size, 1, level, 0, (), None, "", instead, Position(*until))


def test_what_is_due() -> None:
    eight = [place(f"a{i}", 0) for i in range(8)]
    assert merges_due(eight[:7], (), 8, 0) == []
    assert merges_due(eight, (), 8, 0) == [SegmentMerge(tuple(range(8)), 1)]
    large = [place(f"b{i}", 1, PORTION // 2) for i in range(8)]
    assert merges_due(large, (), 8, 0) == [SegmentMerge(tuple(range(8)), 2, 4)]
    assert merges_due(large, (), 8, PORTION // 2) == [SegmentMerge(tuple(range(8)), 2, 2)], "as fast as events come"
    ends = (10, 3), (7, 900)
    begun = [place(f"p{i}", 2, PORTION, tuple(f"b{i}" for i in range(8)), end) for i, end in enumerate(ends)]
    goes_on = SegmentMerge(tuple(range(8)), 2, 4, Position(10, 3))
    assert merges_due([*large, *eight], begun, 8, 0) == [goes_on, SegmentMerge(tuple(range(8, 16)), 1)]
    for many, size in ((8, 2), (16, 1)):
        behind = [place(f"d{i}", 0, 1) for i in range(many)]
        assert merges_due([*large, *behind], begun, 8, PORTION // 2)[0].portions == size, "faster where many wait"
    more = [place(f"c{i}", 0, PORTION // 2) for i in range(8)]
    assert merges_due([*large, *more], begun, 8, 0) == [goes_on], "one at a time"
    assert merges_due(large, begun, 8, 1 << 30) == [goes_on._replace(portions=1)]
    portions = [place(f"p{i}", 2, PORTION, ("b0", "b1"), (i, 0)) for i in range(12)]
    assert merges_due([*large, *eight], begun, 8, 0, moving=True) == [SegmentMerge(tuple(range(8, 16)), 1)]
    assert merges_due(large, (), 8, 0, moving=True) == [], "portions wait where buckets move"
    assert merges_due(portions, (), 8, 0) == [], "portions of one merge are one segment"


def test_merges_wait_while_windows_close_however_many_are_due() -> None:
    many = [place(f"a{i}", 0) for i in range(80)]
    assert merges_due(many, (), 8, 0, no_merges=True) == []
    large = [place(f"b{i}", 1, PORTION // 2) for i in range(8)]
    begun = [place("p", 2, PORTION, tuple(f"b{i}" for i in range(8)), (10, 3))]
    assert merges_due([*large, *many], begun, 8, 0, no_merges=True) == []
    assert merges_due([*large, *many], begun, 8, 0)[0] == SegmentMerge(tuple(range(8)), 2, 4, Position(10, 3))
    gone = [1.0, *(0.6 for _ in many[1:])]
    assert merges_due(many, (), 8, 0, moved_fractions=gone, no_merges=True) == [SegmentMerge((0,), 0, 0)], (
        "which reads nothing"
    )


def windows_of(*slides: int) -> GroupPlan:
    return build_plan([replace(BASE, name=f"w{i}", delay_us=0, window=Sliding(slide, slide)) for i, slide in
                       enumerate(slides)]).groups[0]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "each"),
    [(97, 101, False), (99, 110, True), (95, 104, True), (None, 104, False), (80, 100, True), (98, 98, False)],
)
def test_whether_the_epochs_around_one_close_windows_too(before: int | None, after: int, each: bool) -> None:
    for group in (windows_of(10), windows_of(10, 100)):
        assert each_closes(group, Watermark(before), Watermark(after)) == each


@pytest.mark.parametrize("seed", seeds(0, 7))
def test_merges_do_not_wait_where_event_time_goes_as_far_as_in_the_epochs_around(seed: int) -> None:
    """Of epochs that all close windows those wait that are shorter than one of their neighbours, at most."""
    dice = random.Random(seed)
    group = windows_of(*dice.sample((7, 10, 12, 60), dice.randint(1, 3)))
    times = list(itertools.accumulate((dice.randint(1, 25) for _ in range(2_000)), initial=1_000))
    gains = [after - before for before, after in itertools.pairwise(times)]
    closes = [may_close(group, Watermark(before), Watermark(after)) for before, after in itertools.pairwise(times)]
    seen = 0
    for i in range(1, len(gains) - 1):
        if all(closes[i - 1 : i + 2]) and gains[i] >= max(gains[i - 1], gains[i + 1]):
            seen += 1
            assert each_closes(group, Watermark(times[i]), Watermark(times[i + 1]))
    assert seen > 50


def test_what_has_left_is_merged_at_any_level() -> None:
    some = [place(f"a{i}", i) for i in range(5)]
    assert merges_due(some, (), 8, 0, moved_fractions=[0.0, 0.4, 0.5, 0.9, 1.0]) == [
        SegmentMerge((4,), 0, 0),
        SegmentMerge((2, 3), 3),
    ]
    assert merges_due(some, (), 8, 0, moved_fractions=[1.0] * 5) == [SegmentMerge((0, 1, 2, 3, 4), 0, 0)]
    large = [place(f"b{i}", 1, PORTION // 2) for i in range(8)]
    assert merges_due(large, (), 8, 0, moved_fractions=[0.5] * 8) == [SegmentMerge(tuple(range(8)), 1, 4)]
    assert merges_due(large, (), 8, 0, moved_fractions=[0.5] * 2 + [0.1] * 6) == [SegmentMerge((0, 1), 1)]
    begun = [place("p", 2, PORTION, ("b0", "b1"), (10, 3))]
    goes_on = SegmentMerge((0, 1), 2, 1, Position(10, 3))
    others = SegmentMerge(tuple(range(2, 8)), 0, 0)
    assert merges_due(large, begun, 8, 0, moved_fractions=[1.0] * 8) == [goes_on, others]
    assert merges_due(large, begun, 8, 0, moved_fractions=[0.5] * 8) == [goes_on], "one in portions at a time"


@pytest.mark.parametrize("seed", seeds(0, 7))
def test_the_share_that_has_left_is_that_of_the_slots(seed: int) -> None:
    dice = np.random.default_rng(seed)
    cells = random_cells(dice, 20, 40)
    first, end = int(cells.slots.min()), int(cells.slots.max()) + 1
    before = np.flatnonzero(dice.random(45) < 0.3)
    after = np.union1d(before, np.flatnonzero(dice.random(45) < 0.5))
    inside = [int(((left >= first) & (left < end)).sum()) for left in (before, after)]
    keys = place("k", 0)
    clean = some_atoms(cells, ~np.isin(cells.slots, before))
    assert departed_within((first, end), after) == inside[1]
    with_slots = replace(place("a", 0), slots=(first, end))
    assert departed_fractions(GroupState((keys,)), [with_slots], [], after) == [inside[1] / (end - first)], (
        "without the cells"
    )
    assert departed_fractions(GroupState((keys,)), [place("a", 0)], [cells], after) == [inside[1] / (end - first)]
    assert departed_fractions(GroupState((keys,)), [place("a", 0)], [cells], None) == [0.0]
    if clean.rows:
        written = replace(place("a", 0), gone=departed_within(span_of(clean), before))
        assert departed_fractions(GroupState((keys,)), [written], [clean], before) == [0.0], (
            "what has gone is not there"
        )
        older = GroupState((replace(keys, generation=1),))
        assert departed_fractions(older, [written], [clean], before)[0] * (span_of(clean)[1] - span_of(clean)[0]) == (
            pytest.approx(written.gone)
        ), "the slots of a generation before were others"
    every = np.arange(45)
    assert departed_fractions(GroupState((keys,)), [place("a", 0)], [cells], every) == [1.0]
    assert merged(SegmentMerge((0,), 0, 0), [cells], every, 40, 40, None).cells.rows == 0


def random_cells(dice: np.random.Generator, slices: int, slots: int) -> Cells:
    starts = np.sort(dice.choice(slices * 2, dice.integers(1, slices + 1), replace=False)) * 10 - 50
    classes = np.zeros(len(starts), np.int64)
    some = [np.sort(dice.choice(slots, dice.integers(1, slots + 1), replace=False)) for _ in starts]
    offsets, rows = np.cumsum([0, *map(len, some)]), np.concatenate(some).astype(np.int32)
    return Cells(Slices(starts, starts + 10, classes), offsets, rows, {"n": dice.integers(1, 100, len(rows))})


def as_dict(cells: Cells) -> dict[tuple[int, int], int]:
    slices = np.repeat(cells.slices.start_us, np.diff(cells.offsets))
    keys = list(zip(slices.tolist(), cells.slots.tolist(), strict=True))
    if not keys:
        return {}
    assert len(set(keys)) == len(keys), "a slot once per slice"
    assert keys == sorted(keys)
    return dict(zip(keys, cells.columns["n"].tolist(), strict=True))


@pytest.mark.parametrize("seed", seeds(0, 20))
def test_portions_are_together_what_a_whole_merge_is(seed: int) -> None:
    dice = np.random.default_rng(seed)
    slots = int(dice.choice([1, 5, 60]))
    old = [random_cells(dice, int(dice.choice([1, 4, 30])), slots) for _ in range(dice.integers(1, 5))]
    horizon = None if seed % 3 else int(dice.integers(-50, dice.choice([-20, 400])))
    left = None if seed % 2 else np.unique(dice.integers(0, slots, 3))
    keys, chosen = slots + int(dice.integers(0, 5)), tuple(range(len(old)))
    whole = as_dict(merged(SegmentMerge(chosen, 1), old, left, slots, keys, horizon).cells)
    naive: dict[tuple[int, int], int] = {}
    for cells in old:
        for (start, slot), number in as_dict(cells).items():
            if (horizon is None or start + 10 > horizon) and (left is None or slot not in left):
                naive[start, slot] = naive.get((start, slot), 0) + number
    assert whole == naive
    found: dict[tuple[int, int], int] = {}
    due, now, total = SegmentMerge(chosen, 1, 1), horizon, sum(cells.rows for cells in old)
    while True:
        many = int(dice.integers(1, 30))
        one = merged(due._replace(portions=many), old, left, slots, keys, now)
        part = as_dict(one.cells)
        assert not found or not part or max(found) < min(part)
        begins = {start for start, _ in part}
        read = sum(start in begins for cells in old for start, _ in as_dict(cells))
        assert len(begins) < 2 or read <= -(-total // many)
        found |= part
        if one.until is None:
            break
        assert one.until > due.begin and part
        due, now = due._replace(begin=one.until), now if now is None else now + int(dice.choice([0, 15]))
    assert found.items() <= naive.items(), "what is merged before it is needed no more may be there"
    assert {at: number for at, number in naive.items() if now is None or at[0] + 10 > now}.items() <= found.items()


def test_a_slice_that_ends_while_it_is_merged_takes_no_cells_of_the_next_with_it() -> None:
    starts, slots = np.array([0, 10]), np.arange(100, dtype=np.int32)
    slices = Slices(starts, starts + 10, np.zeros(2, np.int64))
    cells = Cells(slices, np.array([0, 100, 200]), np.concatenate([slots, slots]), {"n": np.ones(200, np.int64)})
    first = merged(SegmentMerge((0,), 1, 10), [cells], None, 100, 100, 0)
    assert first.until == (0, 20, 0) and first.cells.slots.tolist() == list(range(20))
    then = merged(SegmentMerge((0,), 1, 10, first.until), [cells], None, 100, 100, 10)
    assert then.until == (10, 20, 0)
    assert as_dict(then.cells) == {(10, slot): 1 for slot in range(20)}


@pytest.mark.parametrize("seed", seeds(0, 4))
def test_portions_of_a_slice_are_alike_wherever_its_slots_are(seed: int) -> None:
    """What has moved here has slots behind those of what was here, and runs of them lie in few segments."""
    dice, keys = np.random.default_rng(seed), 10_000
    bounds = np.sort(dice.choice(np.arange(4_000, keys), 9, replace=False))
    old = []
    for first, end in itertools.pairwise(bounds.tolist()):
        slots = np.sort(dice.choice(np.arange(first, end), -(-(end - first) // 2), replace=False)).astype(np.int32)
        slices = Slices(np.array([0]), np.array([10]), np.zeros(1, np.int64))
        old.append(Cells(slices, np.array([0, len(slots)]), slots, {"n": np.ones(len(slots), np.int64)}))
    total, due, sizes = sum(cells.rows for cells in old), SegmentMerge(tuple(range(8)), 1, 10), list[int]()
    while True:
        one = merged(due, old, None, keys, keys, None)
        sizes.append(one.cells.rows)
        if one.until is None:
            break
        due = due._replace(begin=one.until)
    assert sum(sizes) == total
    share = -(-total // 10)
    assert max(sizes) <= 1.2 * share + 10 and min(sizes[:-1]) >= 0.8 * share - 10, (share, sizes)


@pytest.mark.parametrize("lookup", [0, cells_module._LOOKUP], ids=["cut", "gathered"])
@pytest.mark.parametrize("seed", seeds(0, 12))
def test_a_part_of_cells_is_the_naive_one(seed: int, lookup: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_module, "_LOOKUP", lookup)
    dice = np.random.default_rng(seed)
    cells = random_cells(dice, 6, 130 if seed % 2 else 50)
    if seed % 2:
        cells = cells._replace(slots=cells.slots.astype(np.int16 if seed % 3 else np.int32))
    elif seed % 3:
        cells = cells._replace(slots=cells.slots.astype(np.int8))
    chosen = np.flatnonzero(dice.random(len(cells.slices.start_us)) < 0.7)
    bounds = dice.integers(0, 2**32, 2).tolist() if seed == 3 else dice.integers(0, 140, 2).tolist()
    first, until = (0, None) if seed % 4 == 0 else sorted(bounds)
    found = part_of(cells, chosen, first, until)
    starts = cells.slices.start_us[chosen]
    wanted = {
        (start, slot): number
        for (start, slot), number in as_dict(cells).items()
        if start in starts and first <= slot and (until is None or slot < until)
    }
    assert as_dict(found) == wanted and len(found.offsets) == len(chosen) + 1
    twice = part_of(cells._replace(columns={"n": cells.columns["n"], "m": cells.columns["n"]}), chosen, first, until)
    assert twice.columns["n"] is twice.columns["m"]
    assert as_dict(merge([piece_of(found)], 130)) == wanted
