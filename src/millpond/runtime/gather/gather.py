"""Gather: turns the events of one source partition into packets, one per instance, pre-aggregated by key and slice.

Events are taken in chunks of bounded size. For each group of queries on their stream, lateness, key codes, slices,
filters, arguments and exact partial sums are computed once; equal expressions of different queries are evaluated
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints
from millpond.clock import cpu_us, lap_us, now_us
from millpond.faults import reached
from millpond.kernels.evaluate import Evaluator
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.aggregates.partials import Rows
from millpond.runtime.gather.dead_letters import DeadLetters
from millpond.runtime.gather.group_parts import group_parts, join_parts
from millpond.runtime.gather.late_packets import LateCollector
from millpond.runtime.gather.lateness import Judge, Judged, judged_times, late_classes, late_on_join_side
from millpond.runtime.gather.owner_lookups import rows_by_instance
from millpond.runtime.gather.retained_events import distribute, kept_rows
from millpond.runtime.gather.stream_columns import StreamColumns
from millpond.runtime.gather.text_events import TextEvents
from millpond.runtime.packets.event_counts import ChunkCounts, Sources, count_rows, count_side
from millpond.runtime.packets.packet import GroupPart, Header, encode_packet
from millpond.runtime.task.column_layout import StreamLayout
from millpond.runtime.task.counters import WHOLE_POND, Counters, Counts
from millpond.runtime.task.task_values import GatherTask, TimeLine
from millpond.spans import Spans
from millpond.state.keys.keys import plain

CHUNK_ROWS = 1 << 19
"""Rows taken at once: bounds memory, and keeps every partial of an exact sum below 2**53."""

CHUNK_BYTES = 1 << 28
"""Batches are not joined beyond this size, as a text column holds at most two gigabytes."""


def gather(task: GatherTask, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[tuple[int, bytes]]:
    """The packets of a source partition, as (instance, bytes).

    Every instance gets at least one packet, so all instances see the largest event time of each source partition.
    """
    reached("gather.start")
    sequence = 0
    judges: dict[str, Judge] = {}
    dead, texts, spans = DeadLetters(task), TextEvents(task.layout), Spans(f"gather {partition}")
    read = _chunks(dead.alive(texts.parsed(spans.timed("wait for rows", batches))))
    for table in spans.timed("read", read):
        if table is None:
            yield from dead.packets(partition)
            continue
        stream = task.layout.streams[table.column(0)[0].as_py()]
        if stream.name not in judges:
            line = task.lines.get(stream.name, TimeLine())
            ahead = None if task.now_us is None or line.max_ahead_us is None else task.now_us + line.max_ahead_us
            judges[stream.name] = Judge(line, ahead)
        size = table.nbytes + texts.take_bytes()
        yield from _gather_chunk(task, stream, table, judges[stream.name], partition, sequence, size, spans)
        sequence += 1
    yield from dead.packets(partition)
    if not sequence:
        for instance in range(task.instances):
            yield instance, encode_packet(Header("", partition, 0, {}, {}), [])


def gather_source(task: GatherTask, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[tuple[int, bytes]]:
    """Like `gather`, for events that a source delivers: a fault may happen before each packet."""
    for found in gather(task, batches, partition):
        reached("gather.packet")
        yield found


def _chunks(batches: Iterable[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch | None]:
    """Batches joined or cut to at most CHUNK_ROWS rows, joined to at most CHUNK_BYTES, each of one stream.

    Several streams share these limits. A None is passed on at once.
    """
    buffered: dict[int, list[pa.RecordBatch]] = {}
    rows = size = 0
    for read_batch in batches:
        if read_batch is None:
            yield None
            continue
        for batch in _runs(read_batch):
            added = batch.nbytes  # which is slow for hundreds of columns
            if buffered and (rows + batch.num_rows > CHUNK_ROWS or size + added > CHUNK_BYTES):
                yield from map(_concatenated, buffered.values())
                buffered, rows, size = {}, 0, 0
            buffered.setdefault(batch.column(0)[0].as_py(), []).append(batch)
            rows, size = rows + batch.num_rows, size + added
    yield from map(_concatenated, buffered.values())


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Runs of at most CHUNK_ROWS rows of one stream; the rows of each stream keep their order.

    Where a source has several derived streams, Spark makes a copy of a row for each of them, one after the other.
    """
    streams = np.asarray(batch.column(0))
    changes = (np.flatnonzero(streams[1:] != streams[:-1]) + 1).tolist()
    if len(changes) >= len(np.unique(streams)):
        order = np.argsort(streams, kind="stable")
        batch, streams = batch.take(pa.array(order)), streams[order]
        changes = (np.flatnonzero(streams[1:] != streams[:-1]) + 1).tolist()
    for first, end in zip([0, *changes], [*changes, len(streams)], strict=True):
        for start in range(first, end, CHUNK_ROWS):
            yield batch.slice(start, min(CHUNK_ROWS, end - start))


def _concatenated(buffered: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(buffered) == 1:
        return buffered[0]
    if any(batch.schema != buffered[0].schema for batch in buffered):  # only some have dictionaries
        names = buffered[0].schema.names
        buffered = [pa.RecordBatch.from_arrays([plain(column) for column in batch], names=names) for batch in buffered]
    return pa.Table.from_batches(buffered).combine_chunks().to_batches()[0]


class _Chunk:
    """The events of one stream that are gathered at once; their times are judged once, when first needed."""

    def __init__(self, task: GatherTask, stream: StreamLayout, table: pa.RecordBatch, judge: Judge, size: int) -> None:
        self._task, self._stream, self._table, self._judge = task, stream, table, judge
        self._columns = StreamColumns(stream, table)
        self.evaluator = Evaluator(self._columns, table.num_rows, task.parameters, self._columns.encoded)
        self._floor = task.lines.get(stream.name, TimeLine()).mark.floor_us
        self._order = _order(stream, self._columns)
        self.sources = None if self._order[0] is None else Sources.of(self._order[0])
        self._late = LateCollector(task.late.get(stream.name, ()))
        self._judged: Judged | None = None
        events = table.num_rows if stream.counted else 0
        self.pond_counts = Counts() if stream.chained else Counts(events=events, bytes_read=size)
        self.counts = ChunkCounts(Counters({WHOLE_POND: self.pond_counts}), [])
        self.parts: list[list[GroupPart]] = [[] for _ in range(task.instances)]

    def judge(self, event_time: str) -> tuple[Ints, Judged]:
        """The event times, and which of them are valid and late; a stream has one event-time column."""
        times = self._columns[event_time]
        if self._judged is None:
            self._judged = self._judge.judge(times.data, times.null, *self._order)
        return times.data, self._judged

    def add_group(self, group: GroupPlan) -> None:
        """Add the events that the queries of a group take."""
        began, count, withheld = lap_us(), self._table.num_rows, dict[str, int]()
        timed, times_us, late = np.ones(count, bool), np.zeros(count, np.int64), np.zeros(count, np.int64)
        if group.event_time:  # without one, no event is late
            times_us, judged = self.judge(group.event_time)
            timed = judged.timed
            late = late_classes(judged_times(times_us, group.late_by), judged, self._floor, group.delays_us)
        passed = group_parts(
            self._task, group, self.evaluator, timed, times_us, late, self._order, self.parts, withheld
        )
        count_rows(self.counts, group, self.evaluator, timed, late, self.sources, passed)
        self.counts.withhold(withheld)
        self._late.add_group(group, self.evaluator, late)
        self.counts.counters[group.id] = Counts(group_us=lap_us() - began)

    def add_join_events(self, log: SideLog) -> None:
        """Add the events that joins keep in a log."""
        task = self._task
        times_us, judged = self.judge(log.event_time)
        own = late_classes(times_us, judged, self._floor, log.delays_us)
        late = late_on_join_side(own, times_us, task.lines, log.late_beside)
        chosen = Rows(self.evaluator, judged.timed & (late < len(log.delays_us)))
        join_parts(task, log, chosen, times_us, late, self._order, self.parts)
        for join, side in task.plan.joins.users_of(log):
            in_time = late <= log.delays_us.index(join.sides[side].delay_us)
            count_side(self.counts, join, side, self.evaluator, judged.timed, in_time, self.sources)

    def add_retained(self) -> None:
        """Add the events that the stream retains for queries that are added later."""
        name = self._stream.name
        if self._judged is None and name in self._task.plan.watched:
            self.judge(self._task.plan.watched[name])
        retained = self._task.plan.retained_of(name)
        if self._judged is not None and retained is not None:
            times_us = self._columns[retained.event_time].data
            events = kept_rows(retained, self._stream, self._table, times_us, self._judged, self._floor, self._order)
            distribute(retained, events, self.parts)

    def late_rows(self) -> bytes:
        """The late events that queries take."""
        return b"" if self._judged is None else self._late.packed(self._stream, self._table, self._judged)

    def newest_us(self) -> dict[str, int]:
        """The newest event time of each source partition."""
        return {} if self._judged is None else self._judged.newest_us


def _gather_chunk(
    task: GatherTask, stream: StreamLayout, table: pa.RecordBatch, judge: Judge, partition: int, sequence: int,
    size: int, spans: Spans,
) -> Iterator[tuple[int, bytes]]:
    """Yields each instance and its packet of a chunk of one stream."""
    began, began_cpu, began_us = lap_us(), cpu_us(), now_us()
    chunk = _Chunk(task, stream, table, judge, size)
    for group in (one for one in task.plan.groups if one.stream == stream.name):
        chunk.add_group(group)
    for log in task.plan.joins.logs_of(stream.name):
        chunk.add_join_events(log)
    chunk.add_retained()
    late_rows = chunk.late_rows()
    selected = rows_by_instance(task, stream, table, chunk.evaluator, chunk.sources, chunk.counts, partition)
    chunk.pond_counts.gather_us = lap_us() - began
    chunk.pond_counts.cpu_us = cpu_us() - began_cpu
    spans.add("gather", began_us)
    for instance in range(task.instances):
        header = Header(stream.name, partition, sequence, chunk.newest_us(), {})
        if instance == 0:
            header.counts, header.fates, header.spans = *chunk.counts, spans.take()
        late = late_rows if instance == partition % task.instances else b""
        yield instance, encode_packet(header, chunk.parts[instance], late, selected.get(instance, b""))


def _order(stream: StreamLayout, columns: StreamColumns) -> tuple[pa.Array | None, Ints | None]:
    """The source partition (as text) and the offset of each event; None if the stream does not have them."""
    if stream.partition is None:
        return None, None
    partition = columns[stream.partition].data
    text = partition if isinstance(partition, pa.Array) else pa.array(partition).cast(pa.string())
    return text, None if stream.offset is None else columns[stream.offset].data
