"""Streams with an order: lateness is a property of the event, so no cut of the input changes a result."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from kit.inputs.examples import seeds
from kit.naive.row_patterns import matches
from kit.simulator.changing_pond import ChangingPond
from millpond.log.cursor import Cursor
from millpond.log.manifest import Manifest
from millpond.log.records import Entry, EpochRecord, Fates
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, call, literal
from millpond.model.patterns.grammar import parse
from millpond.model.patterns.variables import PREVIOUS, Variable
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Order, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Counted, Pattern, Range, Sliding, Window
from millpond.plan.groups.build import build_plan
from millpond.runtime.packets.event_counts import add_fates
from millpond.runtime.packets.packet import SourceFates
from millpond.runtime.task.counters import FATES
from millpond.testing.compare import rows_of

SECOND = 1_000_000
PARTITIONS = ("0", "1", "2")
STREAM = Stream(
    "tx",
    (Field("ts", "timestamp"), Field("k", "string"), Field("v", "double"), Field("p", "int"), Field("o", "bigint")),
    order=Order("p", "o", PARTITIONS),
)
Event = dict[str, Any]


def query(name: str, size: int, slide: int, delay: int) -> Query:
    outputs = (
        Named("w", Column("window", WINDOW)), Named("k", Column("key:0", "string")),
        Named("n", Column("agg:0", "bigint")), Named("s", Column("agg:1", "double")),
    )  # fmt: skip
    aggregates = (Aggregate("count", None, None, "bigint"), Aggregate("sum", Column("v", "double"), None, "double"))
    return Query(
        name, "tx", "ts", delay * SECOND, Sliding(size * SECOND, slide * SECOND), (Column("k", "string"),),
        aggregates, outputs, sink=Sink("memory"),
    )  # fmt: skip


QUERIES = [query("short", 20, 10, 3), query("patient", 20, 10, 15), query("odd", 7, 7, 3)]
OPEN = [replace(query(f"open {size}", size, slide, 3), late_by="window") for size, slide in ((20, 20), (40, 10))]
"""Two that take late events of windows that are open."""
LARGE = call("gt", (Column("v", "double"), literal(0.5, "double")), "boolean")
PICKY = replace(query("picky", 20, 10, 3), where=LARGE, late=Sink("memory"))
ASKING = [*QUERIES[:2], PICKY, replace(query("all", 7, 7, 15), late=Sink("memory"), keys=(Column("p", "int"),))]
"""Two of them want their late events, with and without a filter, in two groups."""


class Rows:
    """A follower that keeps the rows of every query, and what became of events."""

    name = "rows"

    def __init__(self, folder: Path, queries: Sequence[Query] = ()) -> None:
        self._folder, self._cursor = folder, Cursor()
        names = {query.name for query in (*QUERIES, *ASKING, *OPEN, *queries)}
        self.rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in names}
        self.late: dict[str, list[Event]] = {name: [] for name in names}
        self.counts: dict[str, dict[str, int]] = {name: {} for name in names}
        self.fates: Fates = {}

    def cursor(self) -> Cursor:
        return self._cursor

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        found = record.record
        if isinstance(found, EpochRecord):
            for receipt in found.receipts:
                file = receipt.file
                data = bytes(record.inline(receipt)) if file is None else (self._folder / file).read_bytes()
                for section in receipt.sections:
                    if section.kind not in ("rows", "late"):
                        continue
                    table = pa.ipc.open_stream(data[section.offset : section.offset + section.size]).read_all()
                    if section.kind == "late":
                        self.late[section.group] += rows_of(table)
                    else:
                        self.rows[section.group] += [tuple(map(str, row.values())) for row in table.to_pylist()]
            add_fates(self.fates, (SourceFates([name], fates) for name, fates in found.fates.items()))
            for name, counts in found.counts.items():
                for fate, count in counts.items():
                    if name in self.counts:
                        self.counts[name][fate] = self.counts[name].get(fate, 0) + count
        self._cursor = Cursor(n)


def events(seed: int, count: int = 80) -> list[list[Event]]:
    """Three partitions of disordered events, one of them far behind the others."""
    dice = random.Random(seed)
    streams = []
    for number, behind in enumerate((0, 2, 25)):
        clock, partition = 0, []
        for offset in range(count):
            clock += dice.choice((0, 0, 1, 2, 5)) * SECOND
            time = clock - (behind + dice.choice((0, 0, 0, 1, 4, 12, 40))) * SECOND
            partition.append({"ts": time, "k": dice.choice("ab"), "v": dice.random(), "p": number, "o": offset})
        streams.append(partition)
    return streams


def table(rows: list[Event]) -> pa.Table:
    columns = {field.name: [row[field.name] for row in rows] for field in STREAM.columns}
    types = {"ts": pa.int64(), "k": pa.string(), "v": pa.float64(), "p": pa.int32(), "o": pa.int64()}
    return pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})


def run(folder: Path, streams: list[list[Event]], dice: random.Random, queries: Sequence[Query] = QUERIES) -> Rows:
    """Any cut: each epoch takes some more events of some partitions, in one source task or several."""
    kept = Rows(folder, queries)
    pond = ChangingPond(folder, [STREAM], queries, instances=dice.randint(1, 3), followers=[kept])
    taken = [0] * len(streams)
    while any(at < len(stream) for at, stream in zip(taken, streams, strict=True)):
        tables = []
        for number, stream in enumerate(streams):
            more = dice.choice((0, 1, 7, 40))
            if rows := stream[taken[number] : taken[number] + more]:
                tables.append(table(rows))
            taken[number] += more
        if tables and dice.random() < 0.3:
            tables = [pa.concat_tables(tables)]
        pond.epoch({"tx": tables})
    pond.drain()
    return kept


def expected_late(query: Query, streams: list[list[Event]]) -> int:
    """The naive rule: it, or the end of its window, is at or below the largest time before it in its own partition,
    minus the delay.
    """
    late = 0
    for stream in streams:
        newest: int | None = None
        for event in stream:
            assert isinstance(query.window, Sliding)
            judged = query.window.assign(event["ts"])[0].end_us if query.late_by_window else event["ts"]
            late += newest is not None and judged <= newest - query.delay_us
            newest = event["ts"] if newest is None else max(newest, event["ts"])
    return late


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_no_cut_changes_an_answer(seed: int, tmp_path: Path) -> None:
    streams = events(seed)
    queries = [*QUERIES, *OPEN]
    first = run(tmp_path / "first", streams, random.Random(seed), queries)
    for other in range(1, 4):
        again = run(tmp_path / str(other), streams, random.Random(1000 * other + seed), queries)
        for name in first.rows:
            assert sorted(first.rows[name]) == sorted(again.rows[name])
            assert len(first.rows[name]) == len(set(first.rows[name])), "a window was emitted twice"


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_lateness_is_judged_in_the_events_own_partition(seed: int, tmp_path: Path) -> None:
    streams = events(seed)
    kept = run(tmp_path, streams, random.Random(seed), [*QUERIES, *OPEN])
    for each in (*QUERIES, *OPEN):
        counts = kept.counts[each.name]
        assert counts["late"] == expected_late(each, streams)
        assert counts["read"] == sum(counts[fate] for fate in ("applied", "late", "dead", "filtered"))
        assert counts["read"] == sum(map(len, streams))
    assert 0 < kept.counts["open 20"]["late"] < kept.counts["short"]["late"]


def crowd() -> list[Query]:
    """Enough filters to split cells by signature; what passes them is known without reading each event."""
    above = [call("gt", (Column("v", "double"), literal(i / 20, "double")), "boolean") for i in range(20)]
    return [replace(query(f"over {i}", 20, 10, 3 + i % 2), where=where) for i, where in enumerate(above)]


@pytest.mark.parametrize("seed", seeds(0, 1))
def test_many_filters_are_counted_alike_in_one_source_task_and_in_several(seed: int, tmp_path: Path) -> None:
    streams, queries = events(seed), crowd()
    assert build_plan(queries).groups[0].signed
    kept = Rows(tmp_path, queries)
    pond = ChangingPond(tmp_path, [STREAM], queries, followers=[kept])
    dice = random.Random(seed)
    for start in range(0, 80, 20):
        tables = [table(stream[start : start + 20]) for stream in streams]
        pond.epoch({"tx": [pa.concat_tables(tables)] if dice.random() < 0.5 else tables})
    for i, each in enumerate(queries):
        for partition, stream in zip(PARTITIONS, streams, strict=True):
            assert kept.fates[each.name][partition] == naive_fates(each, stream, i / 20)[0]


def naive_fates(query: Query, partition: list[Event], above: float = 0.5) -> tuple[list[int], list[Event]]:
    """Read, applied, late, dead, filtered of one partition, and its late rows that WHERE takes; one plain loop."""
    fates, late = dict.fromkeys(FATES, 0), []
    newest: int | None = None
    for event in partition:
        taken = query.where is None or event["v"] > above
        fates["read"] += 1
        if event["ts"] is None:
            fates["dead"] += 1
            continue
        if newest is not None and event["ts"] <= newest - query.delay_us:
            fates["late"] += 1
            late += [{**event, "_watermark": newest - query.delay_us}] if taken else []
        else:
            fates["applied" if taken else "filtered"] += 1
        newest = event["ts"] if newest is None else max(newest, event["ts"])
    return list(fates.values()), late


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_every_event_has_one_fate_per_query_and_source_partition(seed: int, tmp_path: Path) -> None:
    streams, dice = events(seed), random.Random(seed)
    for event in itertools.chain(*streams):
        event["ts"] = None if dice.random() < 0.05 else event["ts"]
    kept = run(tmp_path, streams, dice, ASKING)
    lost = 0
    for each in ASKING:
        late: list[Event] = []
        for partition, stream in zip(PARTITIONS, streams, strict=True):
            fates, rows = naive_fates(each, stream)
            assert kept.fates[each.name][partition] == fates
            assert fates[0] == sum(fates[1:]) == len(stream)
            late += rows
        assert [kept.counts[each.name][fate] for fate in FATES] == [
            sum(numbers) for numbers in zip(*kept.fates[each.name].values(), strict=True)
        ]
        found = {(row["p"], row["o"]): row for row in kept.late[each.name]}
        expected = {(row["p"], row["o"]): row for row in late} if each.late_sink else {}
        assert len(found) == len(kept.late[each.name]), "a late event was written twice"
        assert found.keys() == expected.keys()
        for at, row in found.items():
            names = row.keys() - {"_epoch"}
            assert names == {"ts", "p", "o", "v", "_watermark"} | ({"k"} if each.name == "picky" else set())
            assert {name: row[name] for name in names} == {name: expected[at][name] for name in names}
        lost += len(found)
    assert lost


def test_the_watermark_waits_for_every_partition_that_is_expected(tmp_path: Path) -> None:
    #  partition 0: 0 ─────────── 100     partitions 1, 2: silent, so no window may close
    kept = Rows(tmp_path)
    pond = ChangingPond(tmp_path, [STREAM], QUERIES, followers=[kept])
    rows = [{"ts": t * SECOND, "k": "a", "v": 1.0, "p": 0, "o": t} for t in range(100)]
    pond.epoch({"tx": [table(rows)]})
    assert not any(kept.rows.values())
    for number in (1, 2):
        pond.epoch({"tx": [table([{"ts": 60 * SECOND, "k": "a", "v": 1.0, "p": number, "o": 0}])]})
    assert len(kept.rows["short"]) == 5  # windows that end at 10, 20, … 50: the watermark is 57 s


RISES = Variable("B", call("gt", (Column("v", "double"), Column(f"{PREVIOUS}0", "double")), "boolean"))
RISING = Pattern("A B{1,3}", 8 * SECOND, (Variable("A", LARGE), RISES), previous=(Column("v", "double"),))


def framed(name: str, window: Range | Counted | Pattern, delay: int) -> Query:
    value = Column("v", "double")
    aggregates = (Aggregate("sum", value, None, "double"), Aggregate("last", value, None, "double"))
    outputs = (
        Named("k", Column("key:0", "string")), Named("end", Column("window.end", "timestamp")),
        *(Named(f"a{i}", Column(f"agg:{i}", "double")) for i in range(2)),
    )  # fmt: skip
    return replace(query(name, 20, 10, delay), window=window, aggregates=aggregates, output=outputs)


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_events_of_one_time_count_by_partition_and_offset(seed: int, tmp_path: Path) -> None:
    streams = events(seed)
    queries = [
        framed("last three", Counted(3, 2), 3), framed("every four", Counted(4, 4), 15),
        framed("seconds", Range(9 * SECOND), 3), framed("patient", Range(20 * SECOND), 15),
        framed("rising", RISING, 3), framed("overlapping", replace(RISING, overlapping=True), 15),
    ]  # fmt: skip
    for cut in range(2):
        kept = run(tmp_path / str(cut), streams, random.Random(10 * cut + seed), queries)
        for each in queries:
            assert sorted(kept.rows[each.name]) == naive_frames(each, streams), each.name


def naive_frames(each: Query, streams: list[list[Event]]) -> list[tuple[str, ...]]:
    """The rows, of plain sorted lists."""
    taken = []
    for stream in streams:
        newest: int | None = None
        for event in stream:
            if newest is None or event["ts"] > newest - each.delay_us:
                taken.append(event)
            newest = event["ts"] if newest is None else max(newest, event["ts"])
    taken.sort(key=lambda event: (event["ts"], str(event["p"]), event["o"]))
    rows = []
    for key in "ab":
        for frame, end in frames_of(each.window, [event for event in taken if event["k"] == key]):
            shown = str(datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=end))
            rows.append((key, shown, str(math.fsum(one["v"] for one in frame)), str(frame[-1]["v"])))
    return sorted(rows)


def frames_of(window: Window, mine: list[Event]) -> Iterator[tuple[list[Event], int]]:
    """The frames of a key's events in order, each with its end."""
    if isinstance(window, Pattern):
        times = [event["ts"] for event in mine]
        held = [{"A"} if event["v"] > 0.5 else set[str]() for event in mine]
        for before, event, met in zip(mine, mine[1:], held[1:], strict=False):
            if event["ts"] - before["ts"] <= window.within_us and event["v"] > before["v"]:
                met.add("B")
        for match in matches(parse(window.text), held, times, window.within_us, overlapping=window.overlapping):
            frame = mine[match.start :][: len(match.variables)]
            yield frame, frame[-1]["ts"]
    for i, event in enumerate(mine):
        if isinstance(window, Range):
            since = event["ts"] - window.preceding_us
            yield [other for other in mine if since <= other["ts"] <= event["ts"]], event["ts"] + 1
        elif isinstance(window, Counted) and (i + 1) % window.every == 0:
            yield mine[max(0, i + 1 - window.size) : i + 1], event["ts"]
