"""Reads the rows of upstream queries as events: rows committed in one epoch are events of the next.

The rows of an epoch are sections of its record. The next epoch reads the sections of the previous epoch's record, so
each row is read by exactly one record and no cursor is needed. The rows are gathered like events of a source, with
one source partition per instance that wrote them, and are sent to the instances that own their new keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.arrays import IPC_READ
from millpond.errors import CorruptError
from millpond.log.manifest import LiveSection, Manifest
from millpond.model.join import Join
from millpond.model.selection import AnyQuery, Selection
from millpond.model.stream import Stream
from millpond.plan.groups.build import needed_columns
from millpond.plan.groups.plan import Plan
from millpond.plan.upstream.late_sinks import late_sinks
from millpond.plan.upstream.rows_as_stream import reached_us, upstream_queries
from millpond.runtime.gather.gather import gather
from millpond.runtime.joins.fold_joins import lesser_mark
from millpond.runtime.packets.row_batches import row_column
from millpond.runtime.task.column_layout import ReadColumn, ReadLayout, StreamLayout
from millpond.runtime.task.state_locations import place_of
from millpond.runtime.task.task_values import ChainedRows, GatherTask, TimeLine, Watermark
from millpond.state.ports.files import Files


class _Rows(NamedTuple):
    """The live sections in which one instance wrote the rows of one query."""

    query: str
    instance: int
    sections: list[LiveSection]


def with_chained(layout: ReadLayout | None, streams: Iterable[Stream], plan: Plan) -> ReadLayout:
    """The layout of the read, with the streams made of query rows appended.

    Each of these streams is read as batches of its own, so its column positions start again at 1.
    """
    all_streams = list(streams)
    late = late_sinks(plan, all_streams)
    layouts = []
    for stream in all_streams:
        if stream.upstreams:
            types = {field.name: field.type for field in stream.columns}
            late_columns = {name for sink in late.get(stream.name, ()) for name in sink.columns}
            names = sorted({*needed_columns(plan, stream.name)} | late_columns)
            columns = tuple(ReadColumn(name, at, types[name]) for at, name in enumerate(names, 1))
            layouts.append(StreamLayout(stream.name, columns, chained=True))
    source_layout = layout or ReadLayout(())
    return replace(source_layout, streams=(*source_layout.streams, *layouts))


def chained_rows(manifest: Manifest, streams: Iterable[Stream], layout: ReadLayout) -> tuple[ChainedRows, ...]:
    """The rows of the previous epoch that the epoch after `manifest` reads as events, in a fixed order."""
    all_streams = list(streams)
    committed = _committed(manifest, upstream_queries(all_streams))
    parts = []
    for position, columns in enumerate(layout.streams):
        upstreams = next((one.upstreams for one in all_streams if one.name == columns.name), ())
        for rows in committed if columns.chained else ():
            if rows.query in upstreams:
                places = tuple(map(place_of, rows.sections))
                parts.append(ChainedRows(columns.name, position, rows.instance, places))
    return tuple(parts)


def _committed(manifest: Manifest, queries: frozenset[str]) -> list[_Rows]:
    """The rows that the last epoch committed, by query and instance, without those of quarantined queries."""
    by_writer: dict[tuple[str, int], list[LiveSection]] = {}
    for section in manifest.sections.values():
        if section.kind == "rows" and section.n == manifest.epoch_n and section.group in queries and section.rows:
            by_writer.setdefault((section.group, section.instance), []).append(section)
    return [_Rows(*writer, by_writer[writer]) for writer in sorted(by_writer) if writer[0] not in manifest.quarantined]


def chained_lines(
    plan: Plan, streams: Iterable[Stream], manifest: Manifest, marks: Mapping[str, Watermark],
    replayed: Collection[str] = (),
) -> dict[str, TimeLine]:  # fmt: skip
    """The watermark of each stream made of query rows before the next epoch, and the event time that the epoch reaches.

    The event time of a UNION ALL is the least of its branches'. The event time of a stream whose query is quarantined
    does not advance, because windows over it would close without the missing rows. `replayed`: queries that begin with
    replayed events in the next epoch, and so have emitted nothing yet.
    """
    lines = {}
    queries = {query.name: query for query in plan.all_queries}
    for stream in streams:
        if stream.upstreams:
            reaches: list[int | None] = [None]
            event_time = plan.event_time_of(stream.name)
            silent = {*manifest.quarantined, *replayed}
            if event_time is not None and silent.isdisjoint(stream.upstreams):
                reaches = [_reached(queries[name], event_time, marks) for name in stream.upstreams]
            known = [time for time in reaches if time is not None]
            least = min(known) if len(known) == len(reaches) else None
            united = len(stream.upstreams) > 1  # a branch that has emitted nothing yet may still emit any row
            lines[stream.name] = TimeLine(marks.get(stream.name, Watermark()), reaches_us=least, follows=united)
    return lines


def _reached(upstream: AnyQuery, event_time: str, marks: Mapping[str, Watermark]) -> int | None:
    at = _mark(upstream, marks)
    return None if at is None else reached_us(upstream, event_time, at)


def _mark(upstream: AnyQuery, marks: Mapping[str, Watermark]) -> int | None:
    """The watermark in microseconds up to which an upstream query has emitted rows; None before its first event."""
    if isinstance(upstream, Join):
        return lesser_mark(upstream, marks)
    if isinstance(upstream, Selection):
        return None if upstream.timing is None else marks.get(upstream.stream, Watermark()).at(upstream.timing[1])
    return marks.get(upstream.stream, Watermark()).at(upstream.delay_us)


def is_pending(manifest: Manifest, streams: Iterable[Stream], lines: Mapping[str, TimeLine]) -> bool:
    """Whether queries over queries have rows to process or time to advance, even if no new events arrive."""
    queries = upstream_queries(streams)
    if not queries:
        return False
    advances = any(
        line.reaches_us is not None and line.mark.advanced(line.reaches_us) != line.mark for line in lines.values()
    )
    return advances or bool(_committed(manifest, queries))


def gather_chained(task: GatherTask, part: int, files: Files) -> Iterator[tuple[int, bytes]]:
    """The packets of `task.chained[part]`, gathered like a source partition.

    Raises:
        CorruptError: a section is not readable.
    """
    rows = task.chained[part]
    layout = task.layout.streams[rows.position]
    return gather(task.without_texts, _frames(files, rows, layout), part)


def _frames(files: Files, rows: ChainedRows, layout: StreamLayout) -> Iterator[pa.RecordBatch]:
    files.fetch(section.file for section in rows.places)
    for section in rows.places:
        read = files.read_inline if section.inline else files.read
        try:
            with pa.ipc.open_stream(read(section.file, section.offset, section.size), options=IPC_READ) as stream:
                for batch in stream:
                    yield _frame(batch, rows.position, layout)
        except (pa.ArrowInvalid, KeyError) as error:
            raise CorruptError(
                f"The rows of {rows.stream} in {section.file} do not read: {error}.", "Restore the pond's folder."
            ) from error


def _frame(batch: pa.RecordBatch, position: int, layout: StreamLayout) -> pa.RecordBatch:
    arrays = [pa.array(np.full(batch.num_rows, position, np.int32))]
    arrays += [row_column(batch, column.name) for column in layout.columns]
    return pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])
