"""Gather: equal partials for any batches of a partition's events, and a packet for every instance."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, Foreign, call, literal
from millpond.model.query import Named, Query
from millpond.model.windows import Range, Sliding
from millpond.placement.slots import buckets_of, even_owners, slots_of
from millpond.plan.groups.build import build_plan
from millpond.runtime.event_log.select_events import value_name
from millpond.runtime.gather import gather as gathering
from millpond.runtime.gather.gather import gather
from millpond.runtime.packets.packet import Header, decode_packet
from millpond.runtime.packets.raw_columns import RawRows, piece_of_raw
from millpond.runtime.task.column_layout import ReadColumn, ReadLayout, StreamLayout
from millpond.runtime.task.counters import Counts
from millpond.runtime.task.task_values import GatherTask, TimeLine, Watermark
from millpond.state.keys.keys import texts_of
from millpond.state.layout.cells import merge
from millpond.state.layout.merge_rules import rule_of

S = 1_000_000
TYPES = {"k": ("string", pa.string()), "ts": ("timestamp", pa.timestamp("us", "UTC")), "v": ("double", pa.float64())}
LAYOUT = ReadLayout(
    tuple(
        StreamLayout(name, tuple(ReadColumn(column, at + i, TYPES[column][0]) for i, column in enumerate(TYPES)))
        for name, at in (("tx", 1), ("clicks", 4))
    )
)
Event = tuple[str | None, float | None, float | None]
"""Key, second, value."""


def query(name: str, stream: str = "tx", delay: float = 0, keys: tuple[Expression, ...] = (Column("k", "string"),),
          size: float = 10, slide: float = 10) -> Query:  # fmt: skip
    value = Column("v", "double")
    aggregates = (Aggregate("sum", value, None, "double"), Aggregate("max", value, None, "double"))
    output = (Named("n", Column("agg:0", "double")),)
    window = Sliding(int(size * S), int(slide * S))
    return Query(name, stream, "ts", int(delay * S), window, keys, aggregates, output)


def task_of(queries: Sequence[Query], instances: int = 1, lines: Mapping[str, TimeLine] | None = None,
            layout: ReadLayout = LAYOUT, **more: Any) -> GatherTask:  # fmt: skip
    return GatherTask(build_plan(queries), layout, dict(lines or {}), even_owners(64, instances), instances, **more)


def batch(events: Sequence[Event], stream: int = 0) -> pa.RecordBatch:
    n = len(events)
    columns = [
        pa.array([event[0] for event in events], pa.string()),
        pa.array([None if event[1] is None else int(event[1] * S) for event in events], pa.int64()).view(
            TYPES["ts"][1]
        ),
        pa.array([event[2] for event in events], pa.float64()),
    ]
    empty = [pa.nulls(n, column.type) for column in columns]
    arrays = [
        pa.array([stream] * n, pa.int32()),
        *(columns if stream == 0 else empty),
        *(columns if stream == 1 else empty),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(7)])


def packets(task: GatherTask, batches: Iterable[pa.RecordBatch]) -> list[tuple[int, Header, list[Any]]]:
    found = []
    for instance, data in gather(task, batches, 5):
        header, parts = decode_packet(pa.py_buffer(data))
        found.append((instance, header, parts))
    return found


def with_dictionaries(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, where text columns have dictionaries, as readers of Parquet files make them."""
    columns = [column.dictionary_encode() if column.type == pa.string() else column for column in rows]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


Cell = tuple[str, tuple[Any, ...], tuple[int, int, int]]


def cells_of(task: GatherTask, found: Iterable[tuple[int, Header, list[Any]]]) -> dict[Cell, dict[str, int]]:
    """All partials by group, key and slice, raw rows summed up first."""
    total: dict[Cell, dict[str, int]] = {}
    for instance, _, parts in found:
        for part in parts:
            group = next(group for group in task.plan.groups if group.id == part.group)
            buckets = buckets_of(slots_of(texts_of(part.keys, part.key_count)), len(task.owners))
            assert (np.array(task.owners)[buckets] == instance).all()
            assert part.buckets is None if not part.keys else part.buckets.tolist() == sorted(buckets.tolist())
            body = piece_of_raw(group, part.body, part.key_count) if isinstance(part.body, RawRows) else part.body
            cells = merge([body], part.key_count)
            keys = list(zip(*(key.to_pylist() for key in part.keys), strict=True)) or [()]
            for i, at in enumerate(zip(*(column.tolist() for column in cells.slices[:3]), strict=True)):
                for row in range(int(cells.offsets[i]), int(cells.offsets[i + 1])):
                    cell = total.setdefault((group.id, keys[int(cells.slots[row])], at), {})
                    for name, column in cells.columns.items():
                        how = {"add": lambda a, b: a + b, "minimum": min, "maximum": max}[rule_of(name).name]
                        value = int(column[row])
                        cell[name] = how(cell[name], value) if name in cell else value
    return {at: {name: value for name, value in cell.items() if value} for at, cell in total.items()}


def stream_of(seed: int, n: int) -> list[Event]:
    dice = random.Random(seed)
    return [
        (dice.choice(["a", "b", "ü", None, f"c{dice.randint(0, 30)}"]), dice.choice((dice.randint(0, 90), None)),
         dice.choice((None, dice.randint(-9, 99) / 4, math.inf)))
        for _ in range(n)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("instances", [1, 3])
def test_chunks_of_any_size_give_the_same_partials(seed: int, instances: int, monkeypatch: pytest.MonkeyPatch) -> None:
    #   batches   |....|..|........|      chunks   |......|.......|
    events = stream_of(seed, 200)
    task = task_of([query("a", delay=5), query("b", size=7, slide=3)], instances)
    whole = cells_of(task, packets(task, [batch(events)]))
    assert len(whole) > 50
    dice = random.Random(seed)
    for size in (1 << 19, 64, 7):
        monkeypatch.setattr(gathering, "CHUNK_ROWS", size)
        cuts = sorted(dice.randint(0, 200) for _ in range(5))
        batches = [batch(events[a:b]) for a, b in zip([0, *cuts], [*cuts, 200], strict=True)]
        batches = [with_dictionaries(one) if dice.random() < size / 64 else one for one in batches]
        found = packets(task, batches)
        assert cells_of(task, found) == whole
        sequences = [header.sequence for instance, header, _ in found if instance == 0]
        assert sequences == list(range(len(sequences)))
        assert len(sequences) >= 200 // size
        read = sum(header.counts.get("a", Counts()).read for _, header, _ in found)
        assert read == 200


def test_large_batches_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of text holds two gigabytes: joined ones that had more would be cut, and only their first part read."""
    events = stream_of(1, 200)
    task = task_of([query("a")])
    whole = cells_of(task, packets(task, [batch(events)]))
    few = [batch(events[first : first + 10]) for first in range(0, 200, 10)]
    monkeypatch.setattr(gathering, "CHUNK_BYTES", 2 * few[0].nbytes + few[0].nbytes // 2)
    found = packets(task, few)
    assert cells_of(task, found) == whole
    assert len([header for instance, header, _ in found if instance == 0]) >= 10


def test_an_empty_partition_sends_a_packet_to_every_instance() -> None:
    task = task_of([query("a")], 3)
    for batches in ([], [batch([])], [batch([]), batch([])]):
        found = packets(task, batches)
        assert [instance for instance, _, _ in found] == [0, 1, 2]
        assert all(header == Header("", 5, 0, {}, {}) and not parts for _, header, parts in found)


def test_every_instance_hears_of_the_largest_time_and_one_of_the_counts() -> None:
    found = packets(task_of([query("a")], 3), [batch([("a", 7, 1), ("b", 42, 1), ("b", None, 1)])])
    assert [header.newest_us for _, header, _ in found] == [{"*": 42 * S}] * 3
    assert found[0][1].counts["a"] == Counts(read=3, applied=2, dead=1)
    assert [header.counts for _, header, _ in found[1:]] == [{}, {}]


def test_events_without_a_time_are_dead_even_if_nothing_else_is_there() -> None:
    found = packets(task_of([query("a")]), [batch([("a", None, 1), (None, None, None)])])
    ((_, header, parts),) = found
    assert (header.newest_us, parts) == ({}, [])
    assert header.counts["a"] == Counts(read=2, dead=2)


def test_an_event_has_the_class_of_the_delays_it_missed() -> None:
    #   largest time before: 100       delays 0 | 5 | 30
    #   events   60 | 70 | 71 | 95 | 96 | 100 | 101
    #   missed    3    3    2    2    1    1     0
    queries = [query("none", delay=0), query("five", delay=5), query("thirty", delay=30)]
    lines = {"tx": TimeLine(Watermark(100 * S))}
    seconds = (60, 70, 71, 95, 96, 100, 101)
    task = task_of(queries, lines=lines)
    found = packets(task, [batch([("a", second, second) for second in seconds])])
    counts = found[0][1].counts
    assert [counts[name].late for name in ("none", "five", "thirty")] == [6, 4, 2]
    late = {(start // S, missed) for _, _, (start, _, missed) in cells_of(task, found)}
    assert late == {(70, 2), (90, 2), (90, 1), (100, 1), (100, 0)}


def test_hundreds_of_delays_are_counted_rightly() -> None:
    queries = [query(f"q{i}", delay=i) for i in range(300)]
    task = task_of(queries, lines={"tx": TimeLine(Watermark(1000 * S))})
    found = packets(task, [batch([("a", 790.5, 1.0), ("a", 0, 1.0)])])
    assert {missed for _, _, (_, _, missed) in cells_of(task, found)} == {210}
    assert found[0][1].counts["q209"].applied == 0
    assert found[0][1].counts["q210"].applied == 1


def test_a_floor_makes_everything_below_it_late() -> None:
    lines = {"tx": TimeLine(Watermark(None, 50 * S))}
    found = packets(task_of([query("a", delay=30)], lines=lines), [batch([("a", 50, 1), ("a", 50.5, 1), ("a", 3, 1)])])
    assert found[0][1].counts["a"].late == 2


def test_events_too_far_ahead_of_the_clock_are_dead_and_move_no_watermark() -> None:
    lines = {"tx": TimeLine(max_ahead_us=60 * S)}
    task = task_of([query("a")], lines=lines, now_us=1000 * S)
    found = packets(task, [batch([("a", 1060, 1), ("a", 1060.5, 1), ("a", 2**42, 1)])])
    assert found[0][1].newest_us == {"*": 1060 * S}
    assert found[0][1].counts["a"] == Counts(read=3, applied=1, dead=2)


def test_two_streams_in_one_partition_are_kept_apart() -> None:
    queries = [query("a"), query("b", "clicks")]
    tx, clicks = [("a", 1, 1.0), ("b", 2, 2.0)], [("z", 500, 3.0)]
    task = task_of(queries)
    apart = cells_of(task, [*packets(task, [batch(tx)]), *packets(task, [batch(clicks, 1)])])
    mixed = pa.Table.from_batches([batch(tx[:1]), batch(clicks, 1), batch(tx[1:])]).combine_chunks().to_batches()[0]
    for batches in ([batch(tx), batch(clicks, 1)], [mixed], [batch(clicks, 1), batch([]), batch(tx)]):
        found = packets(task, batches)
        assert cells_of(task, found) == apart
        newest = {header.stream: header.newest_us["*"] for _, header, _ in found}
        assert newest == {"tx": 2 * S, "clicks": 500 * S}


def test_streams_whose_rows_alternate_are_gathered_in_one_chunk_each() -> None:
    """Spark copies each row of a source for each stream that is derived from it, one row after the other."""
    queries = [query("a"), query("b", "clicks")]
    tx, clicks = stream_of(3, 100), stream_of(4, 100)
    task = task_of(queries, instances=2)
    apart = cells_of(task, [*packets(task, [batch(tx)]), *packets(task, [batch(clicks, 1)])])
    copies = [one for pair in zip(tx, clicks, strict=True) for one in (batch(pair[:1]), batch(pair[1:], 1))]
    mixed = pa.Table.from_batches(copies).combine_chunks().to_batches()[0]
    for batches in ([mixed], [mixed.slice(0, 99), mixed.slice(99)], copies):
        found = packets(task, batches)
        assert cells_of(task, found) == apart
        assert [header.stream for instance, header, _ in found if instance == 0] == ["tx", "clicks"]


def test_a_foreign_value_that_raised_is_dead_and_one_that_is_null_is_a_key() -> None:
    foreign = Foreign("x", "soundex(k)", "string", ("k",))
    columns = (ReadColumn("ts", 1, "timestamp"), ReadColumn("v", 2, "double"), ReadColumn("x_x", 3, "string", True))
    layout = ReadLayout((StreamLayout("tx", columns),))
    held = pa.StructArray.from_arrays(
        [pa.array(["cut", "a", None, "lost", "b"])], names=["v"], mask=pa.array([False, False, False, True, False])
    )
    times = pa.array([0, 1, 2, 3, 4]).view(TYPES["ts"][1])
    arrays = [pa.array([0] * 5, pa.int32()), times, pa.array([1.0] * 5), held]
    rows = pa.RecordBatch.from_arrays(arrays, names=list("abcd")).slice(1)
    task = task_of([query("a", keys=(foreign,))], layout=layout)
    found = packets(task, [rows])
    assert found[0][1].counts["a"] == Counts(read=4, applied=3, dead=1)
    assert {keys for _, keys, _ in cells_of(task, found)} == {("a",), (None,), ("b",)}


def test_slices_are_those_of_the_group_s_windows() -> None:
    task = task_of([query("a"), query("b", size=4, slide=4)])
    found = cells_of(task, packets(task, [batch([("a", 9, 1.0), ("a", 11, 1.0)])]))
    assert {(start // S, end // S) for _, _, (start, end, _) in found} == {(8, 10), (10, 12)}


def test_only_the_first_rows_of_a_rank_are_sent() -> None:
    """Three of 1,000 events at each of two times, and both events that tie for the last place."""
    value, directions = Column("v", "double"), (literal("desc nulls last", "string"),)
    rank = Aggregate("rank", value, None, "int", parameters=directions)
    having = call("le", (Column("agg:0", "int"), literal(3, "int")), "boolean")
    output = (Named("v", Column("event:0", "double")),)
    top = Query("top", "tx", "ts", 0, Range(0), (), (rank,), output, having=having, event=(value,))
    events = [("a", second, float(i) + (i == 996)) for second in (1, 2) for i in range(1000)]
    found = packets(task_of([top], 2), [batch(events)])
    sent = [one for _, _, parts in found for part in parts for one in part.body.columns[value_name(value)].to_pylist()]
    assert sorted(sent) == [*[997.0] * 4, 998.0, 998.0, 999.0, 999.0]
    assert sum(header.counts["top"].withheld for _, header, _ in found if "top" in header.counts) == 2 * 996
