"""Buckets that get other owners, and instances that come and go, while a pond runs: no answer changes, and state is
where the map says it is.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.inputs.cases import SECOND, SESSIONS, STREAM, WINDOWS, Case, aggregate_of, random_case
from kit.inputs.examples import examples, seeds
from kit.inputs.pattern_cases import pattern_case
from kit.inputs.strategies import cases_of
from kit.judges.answers import Answers, Run, dealt
from kit.judges.naive_judge import held_against_twin
from kit.naive.queries import patterns
from kit.simulator.changing_pond import DyingLog
from millpond.errors import CorruptError
from millpond.log.manifest import Manifest
from millpond.log.records import STATE
from millpond.model.change_json import Scale
from millpond.model.expressions import Column
from millpond.model.join import ANTI, KINDS, Join, Side, Within
from millpond.model.query import Deduplication, Named, Query
from millpond.model.selection import AnyQuery
from millpond.model.windows import Counted, Range, Session, Sliding
from millpond.placement.alignment import Owners, rescaled
from millpond.placement.slots import buckets_of, slots_of
from millpond.plan.upstream.rows_as_stream import chained_stream
from millpond.reconfigure import validate
from millpond.reconfigure.placement_changes import owned_by
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.epoch import maps, requested_bucket_map
from millpond.runtime.fold import fold, merge_segments
from millpond.runtime.fold import state as fold_state
from millpond.runtime.keys import current_slots
from millpond.runtime.keys.current_slots import departed_slots, read_cells, read_section
from millpond.runtime.task.state_locations import group_state
from millpond.runtime.task.task_values import SectionPlace
from millpond.state.keys.keys import texts_of
from millpond.state.layout.delta import Files
from millpond.testing.compare import assert_same_rows, canonical

PROPERTY = settings(suppress_health_check=list(HealthCheck))
FRAMES = (Range(0), Range(20 * SECOND), Counted(3, 2), Counted(10, 1))


def other_owners(dice: random.Random, run: Run) -> Owners:
    """A random map, a map that differs in a few buckets, or one with one owner; for the last requested instances."""
    _, owners, instances = requested_bucket_map(run.pond.setting, run.pond.manifest)
    rare = dice.choice((1.0, 0.5, 0.1))
    if dice.random() < 0.2:
        return (dice.randrange(instances),) * len(owners)
    return tuple(dice.randrange(instances) if dice.random() < rare else owner for owner in owners)


def other_scale(dice: random.Random, run: Run) -> Scale:
    """Another number of instances; buckets anyhow, or as few as balance needs."""
    pond, now = KnownPond(run.pond.spec, run.pond.manifest), requested_bucket_map(run.pond.setting, run.pond.manifest)
    instances = dice.choice([count for count in range(1, 5) if count != now.instances and count <= len(now.owners)])
    if dice.random() < 0.6:
        return owned_by(pond, rescaled(now.owners, instances), instances)
    return owned_by(pond, tuple(dice.randrange(instances) for _ in now.owners), instances)


def played(
    folder: Path, queries: Sequence[AnyQuery], case: Case, seed: int, instances: int, buckets: int = 16,
    drained: bool = True, moving: bool = True, after: Callable[[Run], None] = lambda _run: None, **more: object,
) -> Answers:  # fmt: skip
    """The answers of a pond whose buckets move, and whose instances come and go, before most epochs; drivers die around
    these records and epochs.
    """
    dice, deal, drivers = random.Random(f"{seed} moves"), dealt(seed), count()
    step_bytes = dice.choice((1, 2_000, 10_000, 1 << 25))

    def started() -> Run:
        token = f"driver-{next(drivers)}"  # of its own: it claims the log
        run = Run(folder, queries, instances, buckets, token=token, **more)  # type: ignore[arg-type]
        run.pond.setting = run.pond.setting._replace(step_bytes=step_bytes)
        return run

    def moved(run: Run) -> Run:
        while moving and dice.random() < 0.6:
            dies = dice.choice([None, None, None, "before", "after"])
            change = other_owners(dice, run) if dice.random() < 0.6 else other_scale(dice, run)
            make = run.pond.change if isinstance(change, Scale) else run.pond.move
            if dies is None:
                make(change)  # type: ignore[operator]
                continue
            run.pond.log = DyingLog(folder, dies)
            with pytest.raises(KeyboardInterrupt):
                make(change)  # type: ignore[operator]
            run = started()
        return run

    run = started()
    for rows in case.epochs:
        run, parts = moved(run), deal(rows)
        if dice.random() < 0.8:
            run.pond.step()
        dies = dice.choice([None] * 6 + ["before", "after"]) if moving else None
        run = started() if dice.random() < 0.2 else run
        if dies is not None:
            run.pond.log = DyingLog(folder, dies)
            with pytest.raises(KeyboardInterrupt):
                run.epoch(parts)
            run = started()
        if dies != "after":
            run.epoch(parts)
        after(run)
    if drained:
        run = moved(run)
        run.pond.drain()
        after(run)
    # a new driver's sinks begin at the first record: all rows there are
    return started().answers()


def check(case: Case, found: Answers, drained: bool = True) -> int:
    """Hold the answers against the naive twin; returns how many rows were compared."""
    return sum(held_against_twin(case, found, drained).values())


def test_patterns_move(folders: Iterator[Path]) -> None:
    case = pattern_case(8301, 100, 10, 8)
    found = played(next(folders), case.queries, case, 8300, 2)
    for query in case.queries:
        assert_same_rows(patterns.answer(query, case.epochs), found.rows[query.name], about=str(query))
    assert sum(map(len, found.rows.values())) > 40


def state_is_where_the_map_says(run: Run) -> None:
    """Every key is in the dictionary of the instance that owns its bucket; elsewhere it has left."""
    setting, files = run.pond.setting, Files(Path(run.pond.setting.folder))
    lies = maps(setting, run.pond.manifest)[0]
    owners, state = np.array(lies.owners), [one for one in run.pond.manifest.sections.values() if one.kind in STATE]
    assert all(section.instance < lies.instances for section in state)
    for group in setting.plan.groups:
        for instance in range(lies.instances):
            state = group_state(run.pond.manifest, instance, group)
            held = [np.zeros(0, bool)]
            for place in state.keys:
                section = read_section(files, place)
                texts = texts_of(section.columns[: len(group.keys)], section.num_rows)
                held.append(owners[buckets_of(slots_of(texts), len(owners))] == instance)
            gone = departed_slots(files, state)
            assert np.delete(np.concatenate(held), [] if gone is None else gone).all()


def mixed(case: Case, seed: int) -> Case:
    """The queries with windows of every kind."""
    dice = random.Random(seed)
    windows = [*WINDOWS[:4], *SESSIONS[:4], *FRAMES]
    return Case(case.epochs, [replace(query, window=dice.choice(windows)) for query in case.queries])


@pytest.mark.parametrize("first", seeds(7000, 1, step=6))
def test_answers_are_those_of_the_naive_twin(
    first: int, folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 3)
    monkeypatch.setattr(merge_segments, "_PORTION_PER_ADDED_BYTE", 0)
    compared = 0
    for seed in range(first, first + 6):
        monkeypatch.setattr(merge_segments, "PORTION_BYTES", 1 if seed % 2 else 1 << 20)
        case = mixed(random_case(seed, 80, 5), seed)
        dice = random.Random(seed)
        found = played(
            next(folders), case.queries, case, seed, dice.randint(2, 4), dice.choice((4, 64)),
            after=state_is_where_the_map_says,
        )  # fmt: skip
        compared += check(case, found)
    assert compared > 300


@settings(PROPERTY, max_examples=examples(12))
@given(case=cases_of(max_events=30, max_queries=4), seed=st.integers(0, 2**16), drained=st.booleans())
def test_small_nasty_streams(case: Case, seed: int, drained: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, case = tmp_path_factory.mktemp("pond"), mixed(case, seed)
    check(case, played(folder, case.queries, case, seed, 2 + seed % 3, drained=drained), drained)
    shutil.rmtree(folder)


def joins() -> list[Join]:
    """Joins by a key, by none whose events lie by bucket, and by none whose events are dealt."""
    values = (Column("k", "string"), Column("v", "int"), Column("ts", "timestamp"))
    output = tuple(
        Named(f"{side}{i}", Column(f"{side}:{i}", value.type)) for side in ("left", "right")
        for i, value in enumerate(values)
    )  # fmt: skip
    found = []
    for kind in KINDS:
        for keys in ((Column("k", "string"),), (Column("g", "bigint"), Column("flag", "boolean")), ()):
            side = Side(STREAM.name, "ts", 5 * SECOND, keys, values)
            within = Within(-2 * SECOND, 3 * SECOND)
            if kind == ANTI and not keys:
                within = Within(1, 2)  # otherwise each event is its own partner
            found.append(Join(f"{kind.replace(' ', '_')}_{len(keys)}", side, side, kind, within, output))
    return found


def others(seed: int) -> tuple[list[AnyQuery], dict[str, object]]:
    """Rows that change, events that repeat none, queries over queries."""
    aggregates = (aggregate_of("count", None), aggregate_of("sum", Column("v", "int")))
    output = (
        Named("k", Column("key:0", "string")), Named("at", Column("window.end", "timestamp")),
        Named("n", Column("agg:0", "bigint")), Named("total", Column("agg:1", "bigint")),
    )  # fmt: skip
    key, window = Column("k", "string"), Sliding(20 * SECOND, 10 * SECOND)
    base = Query("base", STREAM.name, "ts", 3 * SECOND, window, (key,), aggregates, output)
    over = replace(
        base, name="over", stream="base", event_time="at", window=Sliding(60 * SECOND, 60 * SECOND),
        aggregates=(aggregate_of("count", None), aggregate_of("sum", Column("n", "bigint"))),
    )  # fmt: skip
    made: list[AnyQuery] = [
        base, over,
        replace(base, name="update", emit="update"), replace(base, name="corrected", correct_us=40 * SECOND),
        replace(base, name="sessions", window=Session(4 * SECOND), correct_us=30 * SECOND),
        replace(base, name="once", deduplicate=Deduplication((key, Column("v", "int")), 30 * SECOND)),
        replace(base, name="long", window=Sliding(120 * SECOND, 2 * SECOND)),
        replace(base, name="late", delay_us=0, window=Sliding(120 * SECOND, 60 * SECOND)),
    ]  # fmt: skip
    return [*made, *joins()], {"others": [chained_stream(base)]}


@pytest.mark.parametrize("seed", seeds(0, 1))
def test_rows_that_change_joins_and_chains_are_those_of_a_pond_that_stays(
    seed: int, folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 3)
    (queries, more), case = others(seed), random_case(seed, 100, 1, epochs=9)
    kept = played(next(folders), queries, case, seed, 3, moving=False, **more)
    found = played(next(folders), queries, case, seed, 3, after=state_is_where_the_map_says, **more)
    assert not kept.quarantined and not found.quarantined
    for query in queries:
        assert kept.rows[query.name], query.name
        rows = [sorted(repr(canonical(row)) for row in side.rows[query.name]) for side in (kept, found)]
        assert rows[0] == rows[1], query.name
    names = {query.name for query in queries}
    assert all(found.counts.get(name) == kept.counts.get(name) for name in names)
    assert all(found.withheld.get(name) == kept.withheld.get(name) for name in names)


def kinds(manifest: Manifest, instance: int) -> set[str]:
    return {section.kind for section in manifest.sections.values() if section.instance == instance}


def test_many_buckets_move_in_steps_and_what_stays_is_not_touched(tmp_path: Path) -> None:
    case, base = random_case(3, 400, 1, epochs=24), next(one for one in others(3)[0] if isinstance(one, Query))
    queries = [replace(base, window=Sliding(3600 * SECOND, 3600 * SECOND))]
    run = Run(tmp_path, queries, 2, 16)
    run.pond.setting = run.pond.setting._replace(step_bytes=1)
    run.epoch([[row for rows in case.epochs[:8] for row in rows]])
    before = {one.id: one for one in run.pond.manifest.sections.values() if one.kind == "segment"}
    pond = KnownPond(run.pond.spec, run.pond.manifest)
    requested = run.pond.change(owned_by(pond, rescaled(maps(run.pond.setting, run.pond.manifest)[1].owners, 3), 3))
    ways, moves = [], []
    for rows in case.epochs[8:]:
        run.pond.step(waits=len(moves) in (0, 2))
        was, now = maps(run.pond.setting, run.pond.manifest)
        moves.append(sum(old != new for old, new in zip(was.owners, now.owners, strict=True)))
        ways.append(now.instances)
        run.epoch([rows])
    assert moves == [0, 1, 0, 1, 1, 1, 1] + [0] * (len(moves) - 7), "a bucket at a time, until all are there"
    assert ways == [2] + [3] * (len(ways) - 1)
    assert not run.pond.step() and requested_bucket_map(run.pond.setting, run.pond.manifest).number == requested
    live = run.pond.manifest.sections
    written = [one for one in live.values() if one.kind == "segment" and one.instance < 2 and one.n > requested]
    least = min(one.rows for one in before.values())
    assert written and all(one.rows < least for one in written if not one.info["level"])
    run.pond.drain()
    kept = Run(tmp_path / "kept", queries, 2, 16)
    kept.epoch([[row for rows in case.epochs[:8] for row in rows]])
    for rows in case.epochs[8:]:
        kept.epoch([rows])
    kept.pond.drain()
    rows_of = [sorted(repr(canonical(row)) for row in one.answers().rows["base"]) for one in (run, kept)]
    assert rows_of[0] == rows_of[1] and rows_of[0]


def test_steps_are_as_large_to_the_end(tmp_path: Path) -> None:
    """Departed cells stay in their segments until these are merged, and are not counted as state."""
    same = {"v": 1, "amount": 1.0, "g": 1, "f": 1.0, "flag": True}
    base = next(one for one in others(3)[0] if isinstance(one, Query))
    run = Run(tmp_path, [replace(base, window=Sliding(3600 * SECOND, 3600 * SECOND))], 2, 256)
    run.epoch([[same | {"k": f"k{i}", "ts": SECOND} for i in range(10_000)]])
    size = sum(one.size for one in run.pond.manifest.sections.values() if one.kind in STATE)
    run.pond.setting = run.pond.setting._replace(step_bytes=size // 16)
    run.pond.change(owned_by(KnownPond(run.pond.spec, run.pond.manifest), (0,) * 256, 1))
    moves = []
    while run.pond.step():
        was, now = maps(run.pond.setting, run.pond.manifest)
        moves.append(sum(old != new for old, new in zip(was.owners, now.owners, strict=True)))
        run.epoch([[same | {"k": "k1", "ts": SECOND}]])
    assert len(moves) > 5 and min(moves[:-1]) > 0.7 * max(moves)
    run.pond.setting = run.pond.setting._replace(step_bytes=size)
    run.pond.change(owned_by(KnownPond(run.pond.spec, run.pond.manifest), (1,) * 256, 2))
    assert run.pond.step(waits=True) and not run.pond.step(), "what is little goes at once, and does not wait"


def test_short_windows_leave_what_has_moved_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a move brings is old, but for what the newest windows need: epochs that close short ones open that alone."""
    same = {"v": 1, "amount": 1.0, "g": 1, "f": 1.0, "flag": True}
    base = next(one for one in others(3)[0] if isinstance(one, Query))
    hours, tens = (replace(base, name=f"s{size}", window=Sliding(size * SECOND, size * SECOND)) for size in (3600, 10))
    run, time = Run(tmp_path, [hours, tens], 2, 64), 0

    def epoch() -> list[SectionPlace]:
        nonlocal time
        time, opened = time + 2, list[SectionPlace]()
        monkeypatch.setattr(current_slots, "read_cells", lambda files, place, delays: (
            opened.append(place), read_cells(files, place, delays))[1])  # fmt: skip
        run.epoch([[same | {"k": f"k{i}", "ts": time * SECOND} for i in range(400)]])
        return opened

    for _ in range(50):
        epoch()
    monkeypatch.setattr(fold_state, "merges_due", lambda *_: [])
    monkeypatch.setattr(fold_state.State, "roll", lambda *_: False)  # which looks at all cells now and then
    run.pond.setting = run.pond.setting._replace(step_bytes=1)
    run.pond.change(owned_by(KnownPond(run.pond.spec, run.pond.manifest), (0,) * 64, 1))
    opened = list[SectionPlace]()
    while run.pond.step():
        opened = epoch()
    brought = [place for place in opened if place.first_us == 0]
    opened = [place for _ in range(10) for place in epoch()]
    assert brought and opened and all((place.first_us or 0) > 70 * SECOND for place in opened)
    run.pond.drain()
    rows = run.answers().rows
    assert sum(row["n"] for row in rows["s3600"]) == sum(row["n"] for row in rows["s10"]) == 400 * time // 2


def columns_of(run: Run) -> set[str]:
    files, found = Files(Path(run.pond.setting.folder)), set[str]()
    for group in run.pond.setting.plan.groups:
        for instance in range(2):
            for place in group_state(run.pond.manifest, instance, group).segments:
                found.update(read_section(files, place).schema.names)
    return found


@pytest.mark.parametrize("moving", [False, True])
def test_columns_without_readers_are_dropped_when_cells_are_rewritten(tmp_path: Path, moving: bool) -> None:
    """By merges, and with buckets that move."""
    same = {"v": 1, "amount": 1.0, "g": 1, "f": 1.0, "flag": True}
    base = next(one for one in others(3)[0] if isinstance(one, Query))
    hours = replace(base, window=Sliding(3600 * SECOND, 3600 * SECOND))
    least = (Named("k", Column("key:0", "string")), Named("least", Column("agg:0", "int")))
    more = replace(hours, name="more", aggregates=(aggregate_of("min", Column("v", "int")),), output=least)
    run = Run(tmp_path, [hours, more], 2, 16)
    run.epoch([[same | {"k": f"k{i}", "ts": SECOND} for i in range(200)]])
    assert any(name.endswith(":min") for name in columns_of(run))
    run.pond.change(validate.drop(KnownPond(run.pond.spec, run.pond.manifest), "more"))
    if moving:
        run.pond.change(owned_by(KnownPond(run.pond.spec, run.pond.manifest), (0,) * 16, 1))
        run.epoch([[]])
        places = group_state(run.pond.manifest, 0, run.pond.setting.plan.groups[0]).segments
        names = read_section(Files(Path(run.pond.setting.folder)), places[-1]).schema.names
        assert places[-1].rows > 50 and not any(name.endswith(":min") for name in names)
    else:
        for i in range(24):
            run.epoch([[same | {"k": f"k{n}", "ts": SECOND} for n in range(i, i + 20)]])
        assert not any(name.endswith(":min") for name in columns_of(run))
    run.pond.drain()
    rows_of_base = run.answers().rows["base"]
    assert sum(1 for row in rows_of_base if row["k"]) == 200


def test_state_migrates_once_and_completely(tmp_path: Path) -> None:
    case = random_case(3, 120, 4)
    base = next(query for query in others(3)[0] if isinstance(query, Query))
    queries = [replace(base, window=Sliding(3600 * SECOND, 3600 * SECOND))]
    run = Run(tmp_path, queries, 3, 12)
    for rows in case.epochs[:4]:
        run.epoch([rows])
    untouched = [section for section in run.pond.manifest.sections.values() if section.instance == 2]
    assert all("keys" in kinds(run.pond.manifest, instance) for instance in range(3))
    run.pond.move((0,) * 8 + (2,) * 4, "because")
    number = run.pond.manifest.n
    assert run.pond.manifest.map == 0, "it is in force from the next epoch on"
    run.epoch([case.epochs[4]])
    manifest = run.pond.manifest
    assert manifest.map == number
    assert kinds(manifest, 1) <= {"rows"}, "who owns nothing keeps nothing"
    assert {section.id for section in untouched} <= manifest.sections.keys(), "who owns the same keeps what it has"
    run = Run(tmp_path, queries, 3, 12, token="next")
    assert [change.n for change in run.pond.manifest.changes] == [number], "a claim keeps the map by which state lies"
    run.epoch([case.epochs[5]])
    assert run.pond.manifest.map == number
    remade = [one for one in run.pond.manifest.sections.values() if one.n > number + 2 and one.kind == "keys"]
    assert all(int(one.info["base"]) > 0 for one in remade), "what has moved does not move again"  # type: ignore[arg-type]


def test_leftover_copies_of_moves_are_deleted(tmp_path: Path) -> None:
    """State goes to one instance and back, again and again, a little in each epoch."""
    same = {"v": 1, "amount": 1.0, "g": 1, "f": 1.0, "flag": True}
    base = next(one for one in others(3)[0] if isinstance(one, Query))
    run = Run(tmp_path, [replace(base, window=Sliding(3600 * SECOND, 3600 * SECOND))], 2, 16)
    run.pond.setting = run.pond.setting._replace(step_bytes=1)
    run.epoch([[same | {"k": f"k{i}", "ts": i * SECOND} for i in range(3000)]])
    cells = sum(one.rows for one in run.pond.manifest.sections.values() if one.kind == "segment")
    for instances in (1, 2) * 5:
        now = maps(run.pond.setting, run.pond.manifest)[1]
        known = KnownPond(run.pond.spec, run.pond.manifest)
        run.pond.change(owned_by(known, rescaled(now.owners, instances), instances))
        while run.pond.step():
            run.epoch([[same | {"k": "k1", "ts": 3000 * SECOND}]])
        for _ in range(3):
            run.epoch([[same | {"k": "k2", "ts": 3000 * SECOND}]])
    left = sum(one.rows for one in run.pond.manifest.sections.values() if one.kind == "segment")
    assert cells > 2000 and left < 1.5 * cells


def test_a_map_of_another_pond_is_refused(tmp_path: Path) -> None:
    queries = random_case(3, 10, 1).queries
    for driver, owners in enumerate(((0,) * 7, (2,) * 8)):
        run = Run(tmp_path, queries, 2, 8, token=f"driver-{driver}")
        run.pond.move(owners)
        with pytest.raises(CorruptError, match="owners of the pond's buckets"):
            run.epoch([[]])
    run = Run(tmp_path, queries, 2, 8, token="last")
    assert not run.pond.manifest.changes, "what no epoch has followed ends with its driver"
    run.epoch([[]])
