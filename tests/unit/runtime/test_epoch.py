"""From manifest to tasks and from receipts to the record: floors of drains, offsets, what retires, quarantine."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from msgspec.structs import replace

from millpond.log.manifest import LiveSection, Manifest
from millpond.log.protocol import Run
from millpond.log.records import Receipt, Section, decode, encode
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.stream import Stream
from millpond.model.windows import Sliding
from millpond.placement.slots import even_owners
from millpond.plan.groups.build import build_plan
from millpond.runtime.epoch import (
    Batch,
    Setting,
    assemble,
    drain_floors,
    fold_task,
    gather_task,
    retired,
    watermarks,
)
from millpond.runtime.event_log.retention import needed_from
from millpond.runtime.task import state_locations
from millpond.runtime.task.column_layout import ReadLayout
from millpond.runtime.task.state_locations import group_state
from millpond.runtime.task.task_values import Watermark

COUNT = Aggregate("count", None, None, "bigint")


def query(name: str, window: Sliding, delay_us: int = 0, stream: str = "tx", **more: Any) -> Query:
    output = (Named("n", Column("agg:0", "bigint")),)
    return Query(name, stream, "ts", delay_us, window, (), (COUNT,), output, **more)


QUERIES = (query("ten", Sliding(10, 10), 5), query("long", Sliding(45, 15)), query("other", Sliding(8, 8), 0, "clicks"))
PLAN = build_plan(QUERIES)
STREAMS = (Stream("tx", ()), Stream("clicks", ()))
SETTING = Setting("p", "/pond", "/cache", STREAMS, PLAN, ReadLayout(()), 2, even_owners(64, 2))
TX = next(group for group in PLAN.groups if group.stream == "tx")


def run(manifest: Manifest) -> Run:
    return Run(manifest.n + 1, "ab" * 32, manifest, False)


def section(kind: Any, n: int, instance: int = 0, group: str = TX.id, **more: Any) -> LiveSection:
    found = LiveSection(f"{n}/{instance}/0", n, instance, kind, group, 64, 10, 3, "00" * 32)
    return replace(found, **more)


def manifest_of(*sections: LiveSection, **more: Any) -> Manifest:
    return Manifest(n=9, sections={found.id: found for found in sections}, **more)


def test_a_drain_closes_the_last_window_that_holds_an_event() -> None:
    #   newest of tx: 33     ten   [30 .. 40)     long   [30 ......... 75)     floor 75
    #   newest of clicks: -1 other [-8 .. 0)                                   floor 0
    manifest = manifest_of(max_time={"tx": {"*": 33}, "clicks": {"*": -1}})
    assert drain_floors(PLAN, manifest) == {"tx": 75, "clicks": 0}
    assert drain_floors(PLAN, manifest_of(max_time={"tx": {"*": 33}})) == {"tx": 75}
    assert drain_floors(PLAN, Manifest()) == {}


def test_a_drain_sets_its_floors_in_the_task_and_the_record() -> None:
    manifest = manifest_of(max_time={"tx": {"*": 33}})
    task = fold_task(SETTING, run(manifest), "w", drain=True)
    assert (task.drained, task.drain_floor_us) == (True, {"tx": 75})
    record, _ = assemble(SETTING, run(manifest), task, Batch("q", 4, {}, {}), [], 0, -1)
    assert (record.drained, record.watermark_floor) == (True, {"tx": 75})


def test_counts_of_one_query_from_several_instances_are_added() -> None:
    """Malformed records are counted by another instance than events are."""
    counted = [{"ten": {"t-0": [6, 6, 0, 0, 0], "t-1": [4, 4, 0, 0, 0]}}, {"ten": {"t-0": [3, 0, 0, 3, 0]}}]
    deltas = [(Receipt(n, "a", 0, "", fates=fates), b"") for n, fates in enumerate(counted)]
    task = fold_task(SETTING, run(manifest_of()), "w")
    record, _ = assemble(SETTING, run(manifest_of()), task, Batch("q", 4, {}, {}), deltas, 0, -1)
    assert record.fates == {"ten": {"t-0": [9, 6, 0, 3, 0], "t-1": [4, 4, 0, 0, 0]}}


def test_watermarks_come_from_the_manifest() -> None:
    manifest = manifest_of(max_time={"tx": {"*": 33, "0": 40}}, watermark_floor={"clicks": 5})
    assert watermarks(manifest) == {"tx": Watermark(33, None), "clicks": Watermark(None, 5)}
    task = gather_task(SETTING, run(replace(manifest, quarantined={"ten": "why"})))
    assert task.lines["tx"].mark.at(5) == 28
    assert task.lines["clicks"].mark.at(5) == 5
    assert (len(task.owners), task.instances, task.quarantined) == (64, 2, frozenset({"ten"}))


def test_a_watermark_never_decreases() -> None:
    mark = Watermark(10, 7)
    assert mark.advanced(9) == mark.advanced(None) == mark
    assert mark.advanced(20) == Watermark(20, 7)
    assert [mark.at(delay) for delay in (0, 3, 4)] == [10, 7, 7]
    assert Watermark().at(0) is None


def test_keys_are_read_in_the_order_of_their_numbers_even_after_a_merge() -> None:
    merged = section("keys", 8, info={"base": 0, "level": 1}, rows=20)
    young = section("keys", 7, info={"base": 20, "level": 0}, file="delta/7")
    cells = section("segment", 6, info={"level": 2})
    state = group_state(manifest_of(young, cells, merged, section("keys", 5, 1)), 0, TX)
    assert [place.id for place in state.keys] == ["8/0/0", "7/0/0"]
    assert [(place.file, place.inline) for place in state.keys] == [
        ("log/00000000000000000008", True),
        ("delta/7", False),
    ]
    assert [place.level for place in (*state.keys, *state.segments)] == [1, 0, 2]
    assert group_state(manifest_of(young), 1, TX).keys == ()


def test_a_group_is_of_the_generation_of_its_keys_and_a_segment_of_its_own() -> None:
    opening = section("keys", 7, info={"base": 0, "level": -1, "generation": 4}, rows=0)
    first = replace(section("keys", 8, info={"base": 0, "level": 0, "generation": 4}), id="8/0/1")
    state = group_state(manifest_of(opening, section("segment", 6, info={"generation": 3}), first), 0, TX)
    assert [place.id for place in state.keys] == ["7/0/0", "8/0/1"]
    assert (state.generation, [place.generation for place in state.segments]) == (4, [3])
    assert group_state(Manifest(), 0, TX).generation == 0


def test_where_a_section_is_is_its_own_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_locations, "_MOST", 3)
    here, there = (section("keys", 7, info={"base": 0}, file=file) for file in ("delta/a", "delta/b"))
    many = [section("segment", n, file=f"delta/{n}") for n in range(9)]
    for _ in range(2):
        assert [state_locations.place_of(one).file for one in (here, there)] == ["delta/a", "delta/b"]
        assert [state_locations.place_of(one).file for one in many] == [one.file for one in many]
    assert state_locations.place_of(here) is state_locations.place_of(here)


def test_slices_are_needed_from_the_start_of_the_earliest_open_window() -> None:
    #   watermark of ten (delay 5): 35 -> its first open window is [30, 40)
    #   watermark of long: 40          -> [0, 45) is open, [-15, 30) is closed
    assert needed_from(TX.queries, Watermark(40)) == 0
    only_ten = [plan for plan in TX.queries if plan.query.name == "ten"]
    assert needed_from(only_ten, Watermark(40)) == 30
    assert needed_from(only_ten, Watermark(45)) == 40  # [30, 40) closed at 40
    assert needed_from(only_ten, Watermark(-3)) == -10
    assert needed_from(TX.queries, Watermark()) is None


@pytest.mark.parametrize("newest", range(-60, 90, 7))
def test_no_slice_of_an_open_window_is_given_up(newest: int) -> None:
    horizon = needed_from(TX.queries, Watermark(newest))
    assert horizon is not None
    for plan in TX.queries:
        mark = newest - plan.query.delay_us
        open_windows = [
            w for time in range(newest - 60, newest + 60) for w in plan.query.window.assign(time) if w.end_us > mark
        ]
        assert horizon <= min(window.start_us for window in open_windows)


def test_segments_retire_when_no_open_window_holds_them_and_rows_when_all_have_them() -> None:
    sections = (
        section("segment", 1, info={"last": 0}), section("segment", 2, info={"last": 1}),
        section("segment", 3, info={"last": 0}, group="gone"), section("keys", 4),
        section("rows", 5, group="ten"), section("rows", 6, group="ten"), section("rows", 3, group="served"),
    )  # fmt: skip
    sections = tuple(replace(found, id=f"s{i}") for i, found in enumerate(sections))
    plan = build_plan([*QUERIES, query("served", Sliding(10, 10), serve=True)])
    manifest = manifest_of(*sections)
    assert retired(plan, manifest, {"tx": Watermark(40)}, 5) == ("s0", "s4")
    assert retired(plan, manifest, {"tx": Watermark(44)}, -1) == ("s0",)
    assert retired(plan, manifest, {"tx": Watermark(45)}, -1) == ("s0", "s1")
    assert retired(plan, manifest, {}, -1) == ()


def receipt(instance: int, body: bytes, **more: Any) -> tuple[Receipt, bytes]:
    made = Receipt(
        instance,
        "w-1",
        len(body),
        hashlib.sha256(body).hexdigest(),
        sections=(Section("rows", "ten", 0, len(body), 1),),
    )
    return replace(made, **more), body


def test_inline_deltas_lie_one_after_another_in_the_body() -> None:
    task = fold_task(SETTING, run(Manifest()), "w")
    deltas = [receipt(2, b"third", host="a"), receipt(0, b"first"), receipt(1, b"", file="delta/1", size=99)]
    record, body = assemble(SETTING, run(Manifest()), task, Batch("q", 4, {"tx": "1"}, {"tx": "2"}), deltas, 7, -1)
    assert body == b"firstthird"
    assert [(found.instance, found.at, found.file) for found in record.receipts] == [
        (0, 0, None),
        (1, 0, "delta/1"),
        (2, 5, None),
    ]
    entry = decode(encode(record, body))
    assert [bytes(entry.inline(record.receipts[i])) for i in (0, 2)] == [b"first", b"third"]
    assert {found.host for found in record.receipts} == {""}, "a record does not depend on where it was computed"
    assert (record.n, record.prev, record.at, record.batch, record.start, record.end) == (
        0,
        "ab" * 32,
        7,
        4,
        {"tx": "1"},
        {"tx": "2"},
    )


def test_counts_of_instances_add_up_and_times_are_the_largest() -> None:
    task = fold_task(SETTING, run(manifest_of(max_time={"tx": {"*": 33}})), "w")
    counts = (
        {"applied:a:b": 2, "rows:a:b": 1, "max_time:tx:*": 30, "raised:ten": 1},
        {"applied:a:b": 3, "max_time:tx:*": 30},
    )
    deltas = [receipt(i, b"", counts=found) for i, found in enumerate(counts)]
    record, _ = assemble(SETTING, run(Manifest()), task, Batch("q", 4, {}, {}), deltas, 0, -1)
    assert record.counts == {"a:b": {"applied": 5, "rows": 1}}
    assert record.max_time == {"tx": {"*": 33}}  # the base of the watermark never goes back
    assert list(record.quarantined) == ["ten"]
    assert record.quarantined["ten"].startswith("[MP-OVERFLOW]")


def test_rows_of_a_query_that_is_quarantined_in_the_same_epoch_are_not_counted() -> None:
    task = fold_task(SETTING, run(Manifest()), "w")
    counts = (
        {"read:ten": 2, "applied:ten": 2, "raised:ten": 1, "rows:own": 4},
        {"read:ten": 1, "applied:ten": 1, "rows:ten": 1, "withheld:ten": 3, "late_rows:ten": 1},
    )
    deltas = [receipt(i, b"", counts=found) for i, found in enumerate(counts)]
    record, _ = assemble(SETTING, run(Manifest()), task, Batch("q", 4, {}, {}), deltas, 0, -1)
    # what became of events is known; late events leave whether or not a result raised
    assert record.counts == {
        "ten": {"read": 3, "applied": 3, "late": 0, "dead": 0, "filtered": 0, "late_rows": 1},
        "own": {"rows": 4},
    }


def test_a_reason_of_an_instance_takes_precedence() -> None:
    task = fold_task(SETTING, run(Manifest()), "w")
    deltas = [
        receipt(0, b"", counts={"raised:ten": 1}, reasons={"ten": "[MP-FUNCTION] f@1 raised, for the key [1]."}),
        receipt(1, b"", counts={"raised:ten": 1, "raised:own": 1}, reasons={"ten": "[MP-FUNCTION] another key"}),
    ]
    record, _ = assemble(SETTING, run(Manifest()), task, Batch("q", 4, {}, {}), deltas, 0, -1)
    assert record.quarantined["ten"] == "[MP-FUNCTION] f@1 raised, for the key [1]."
    assert record.quarantined["own"].startswith("[MP-OVERFLOW]")
