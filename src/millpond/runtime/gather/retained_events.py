"""Retained events of streams: collected in the gather once per stream, independent of queries; stored by the fold.

A section is an Arrow IPC stream, lz4. Its columns are `time` (µs); `base`, the time that the event was compared with,
before a delay is subtracted (INT64_MIN: no earlier event; INT64_MAX: it arrived after a drain and is late for every
delay); `c:<name>` for each column; and, for a stream with an order, `partition` and `offset`. So it is known for which
delays each event was late. Each chunk is cut into equal runs, one per instance: these events belong to no bucket and
are never migrated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from millpond.arrays import IPC_READ, Ints
from millpond.errors import CorruptError
from millpond.kernels.columns import arrow_type
from millpond.log.manifest import LiveSection, Manifest
from millpond.plan.groups.plan import KeptEvents
from millpond.runtime.event_log.event_log import MOST_ROWS
from millpond.runtime.gather.lateness import Judged
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.packets.row_batches import rows_stream
from millpond.runtime.task.column_layout import StreamLayout
from millpond.runtime.task.levels import Levels
from millpond.runtime.task.task_values import FoldTask, SectionPlace, Watermark
from millpond.state.layout.delta import DeltaWriter
from millpond.state.layout.event_log import OFFSET, PARTITION, TIME, Events
from millpond.state.ports.files import Files

BASE = "base"

ALWAYS_LATE = np.iinfo(np.int64).max
"""The base of an event that arrived after a drain."""


def column_name(name: str) -> str:
    """The name in a section of a column of the stream."""
    return f"c:{name}"


def kept_rows(
    retained: KeptEvents, layout: StreamLayout, table: pa.RecordBatch, times_us: Ints, judged: Judged,
    floor_us: int | None, order: tuple[pa.Array | None, Ints | None],
) -> Events:  # fmt: skip
    """The events of a chunk that have a time, in stored form; `order`: their source partitions and offsets."""
    rows = np.flatnonzero(judged.timed)
    places, count = pa.array(rows), table.num_rows
    base = np.broadcast_to(judged.base_us, (count,))[rows]
    if floor_us is not None:
        base = np.where(times_us[rows] <= floor_us, ALWAYS_LATE, base)
    where = {column.name: column for column in layout.columns}
    columns = {BASE: pa.array(base)}
    for column in retained.columns:
        place = where[column.name]
        sent = table.column(place.position)
        sent = sent.field("v") if place.foreign else sent
        columns[column_name(column.name)] = sent.take(places).cast(arrow_type(column.type))
    partition, offset = order
    if partition is not None and offset is not None:
        columns[PARTITION] = partition.take(places).cast(pa.string())
        columns[OFFSET] = pa.array(np.broadcast_to(offset, (count,))[rows])
    none = np.zeros(len(rows), np.int64)
    return Events(none, times_us[rows], none, columns)


def distribute(retained: KeptEvents, events: Events, parts: Sequence[list[GroupPart]]) -> None:
    """Divide the events among the instances, and add the run of each one to its packet."""
    bounds = (np.arange(len(parts) + 1) * events.rows // len(parts)).tolist()
    for mine, first, end in zip(parts, bounds, bounds[1:], strict=False):
        if first < end:
            mine.append(GroupPart(retained.id, [], 1, events.between(first, end)))


def kept_from(retained: KeptEvents, mark: Watermark) -> int | None:
    """The time before which events need not be kept; None: all events are kept."""
    return None if mark.max_time_us is None else mark.max_time_us - retained.kept_us


def fold_retained(
    task: FoldTask, instance: int, parts: Mapping[str, Sequence[GroupPart]],
    marks: Mapping[str, tuple[Watermark, Watermark]], files: Files, delta: DeltaWriter, fan_in: int,
) -> None:  # fmt: skip
    """Store new events, and merge sections.

    Raises:
        CorruptError: a section cannot be read.
    """
    for retained in task.plan.retained:
        found = [_batch(part.body) for part in parts.get(retained.id, ()) if isinstance(part.body, Events)]
        if found:
            _write(retained, found, 0, (), delta)
        horizon = kept_from(retained, marks.get(retained.stream, (Watermark(), Watermark()))[1])
        _merge(retained, task.of(instance, retained).events, horizon, files, delta, fan_in)


def _batch(events: Events) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(events.times_us), *events.columns.values()], [TIME, *events.columns])


def _write(
    retained: KeptEvents, batches: Sequence[pa.RecordBatch], level: int, supersedes: tuple[str, ...], delta: DeltaWriter
) -> None:
    times = np.concatenate([np.asarray(batch.column(TIME)) for batch in batches])
    names = [name.removeprefix("c:") for name in batches[0].schema.names if name.startswith("c:")]
    info: dict[str, int | str | list[int]] = {
        "first": int(times.min()) if len(times) else 0,
        "last": int(times.max()) + 1 if len(times) else 0,
        "level": level,
        "columns": msgspec.json.encode(names).decode(),
    }
    delta.add("events", retained.id, rows_stream(batches), len(times), info, supersedes)


def _merge(
    retained: KeptEvents, places: Sequence[SectionPlace], horizon: int | None, files: Files, delta: DeltaWriter,
    fan_in: int,
) -> None:  # fmt: skip
    """Merge sections with the same columns by level."""
    live = [section for section in places if horizon is None or section.last_us is None or section.last_us > horizon]
    for columns in dict.fromkeys(section.columns for section in live):
        alike = [section for section in live if section.columns == columns]
        due = Levels(alike, fan_in, MOST_ROWS).due(fan_in)
        if due is None:
            continue
        chosen = due.sections_in(alike)
        table = pa.Table.from_batches([batch for section in chosen for batch in read_events(files, section)])
        if horizon is not None:
            table = table.filter(pa.array(np.asarray(table.column(TIME)) >= horizon))
        whole = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        _write(retained, whole, due.level, tuple(section.id for section in chosen), delta)


def read_events(files: Files, section: SectionPlace) -> Iterator[pa.RecordBatch]:
    """The batches of a section.

    Raises:
        CorruptError: the section cannot be read.
    """
    read = files.read_inline if section.inline else files.read
    try:
        with pa.ipc.open_stream(read(section.file, section.offset, section.size), options=IPC_READ) as stream:
            yield from stream
    except pa.ArrowInvalid as error:
        raise CorruptError(f"Retained events in {section.file} do not read: {error}.", "Restore the folder.") from error


def retained_sections(manifest: Manifest, retained: KeptEvents) -> list[LiveSection]:
    """The live sections, of all instances, with the retained events of a stream."""
    return [one for one in manifest.sections.values() if one.kind == "events" and one.group == retained.id]


def columns_in(section: LiveSection) -> tuple[str, ...]:
    """The columns of the stream that a section contains."""
    return msgspec.json.decode(str(section.info["columns"]), type=tuple[str, ...])
