"""Replays retained or backfilled events to build the state of a query that was added later.

The query has a group of its own for this. The epoch after the change's record reads the events that were retained
before it and, like every epoch, its new events, so each event is processed exactly once. Replayed events affect nothing
else: no watermark advances, and an event is late for a delay exactly if it was late when it first arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from millpond.kernels.evaluate import Evaluator
from millpond.log.manifest import LiveSection, Manifest
from millpond.plan.groups.plan import GroupPlan, Plan
from millpond.runtime.gather.gather import CHUNK_ROWS
from millpond.runtime.gather.group_parts import group_parts
from millpond.runtime.gather.lateness import Judged, judged_times, late_classes
from millpond.runtime.gather.retained_events import BASE, column_name, read_events, retained_sections
from millpond.runtime.gather.stream_columns import StreamColumns
from millpond.runtime.inputs.backfill import columns_of_section
from millpond.runtime.inputs.upstream_rows import gather_chained
from millpond.runtime.packets.packet import GroupPart, Header, encode_packet
from millpond.runtime.task.column_layout import ReadColumn, StreamLayout
from millpond.runtime.task.counters import Counts
from millpond.runtime.task.state_locations import place_of
from millpond.runtime.task.task_values import GatherTask, RecalledEvents, SectionPlace
from millpond.state.layout.event_log import OFFSET, PARTITION, TIME
from millpond.state.ports.files import Files


def recalled_events(
    plan: Plan, recalled: Iterable[tuple[str, int, int]], manifest: Manifest
) -> tuple[RecalledEvents, ...]:
    """The stored events that the epoch after `manifest` replays.

    `recalled`: query versions, each with the number of its change's record and the time from which it needs events. A
    version with backfilled events replays these, others replay what their stream retains.
    """
    groups_from: dict[tuple[str, int], list[str]] = {}
    parts = []
    for name, n, since in recalled:
        if n > manifest.epoch_n:
            group, _ = plan.of_query(name)
            sections = _backfilled_sections(manifest, name)
            for section in sections:
                columns = columns_of_section(section.info["columns"])
                parts.append(RecalledEvents(group.stream, (group.id,), since, (place_of(section),), columns))
            if not sections:
                groups_from.setdefault((group.stream, since), []).append(group.id)
    for (stream, from_us), groups in sorted(groups_from.items()):
        retained = plan.retained_of(stream)
        if retained is None:
            continue
        by_writer: dict[int, list[SectionPlace]] = {}
        for section in retained_sections(manifest, retained):
            last = section.info["last"]
            if isinstance(last, int) and last > from_us:
                by_writer.setdefault(section.instance, []).append(place_of(section))
        names = tuple(sorted(groups))
        columns = tuple(ReadColumn(column.name, 0, column.type) for column in retained.columns)
        parts += [RecalledEvents(stream, names, from_us, tuple(by_writer[i]), columns) for i in sorted(by_writer)]
    return tuple(parts)


def _backfilled_sections(manifest: Manifest, version: str) -> list[LiveSection]:
    """The sections of backfilled events of a query version."""
    return [one for one in manifest.sections.values() if one.kind == "backfill" and one.group == version]


def backfilled_groups(
    plan: Plan, recalled: Iterable[tuple[str, int, int]], manifest: Manifest
) -> frozenset[str]:  # fmt: skip
    """The groups that the epoch after `manifest` starts from backfilled events."""
    names = (name for name, n, _ in recalled if n > manifest.epoch_n and _backfilled_sections(manifest, name))
    return frozenset(plan.of_query(name)[0].id for name in names)


def recalled_bytes(plan: Plan, recalled: Iterable[tuple[str, int, int]], manifest: Manifest) -> int:
    """Bytes of stored events that the epoch after `manifest` replays."""
    parts = recalled_events(plan, recalled, manifest)
    return sum(place.size for part in parts for place in part.places)


def stored_parts(task: GatherTask) -> int:
    """The number of gathers that read the pond's own files (upstream rows and replayed events) in this epoch."""
    return len(task.chained) + len(task.recalled)


def largest_share(task: GatherTask, tasks: int) -> int:
    """The most bytes of upstream rows that one of `tasks` tasks reads; see `gather_share`."""
    sizes = [sum(place.size for place in rows.places) for rows in task.chained]
    return max(sum(sizes[number::tasks]) for number in range(tasks))


def gather_share(task: GatherTask, number: int, tasks: int, files: Files) -> Iterator[tuple[int, bytes]]:
    """The packets of the upstream rows that task `number` of `tasks` reads beside its source partition.

    Raises:
        CorruptError: a section is not readable.
    """
    for part in range(number, len(task.chained), tasks):
        yield from gather_chained(task, part, files)


def gather_stored(task: GatherTask, part: int, files: Files) -> Iterator[tuple[int, bytes]]:
    """The packets of part `part` of the stored events, gathered like a source partition.

    Raises:
        CorruptError: a section is not readable.
    """
    if part < len(task.chained):
        return gather_chained(task, part, files)
    return _gather_recalled(task, part, task.recalled[part - len(task.chained)], files)


def _gather_recalled(
    task: GatherTask, part: int, recalled: RecalledEvents, files: Files
) -> Iterator[tuple[int, bytes]]:
    groups = [group for group in task.plan.groups if group.id in recalled.groups]
    files.fetch(place.file for place in recalled.places)
    for sequence, batch in enumerate(_chunks(recalled, files)):
        parts: list[list[GroupPart]] = [[] for _ in range(task.instances)]
        for group in groups:
            _add_group(task, recalled, group, batch, parts)
        counts = {group.queries[0].query.name: Counts(recalled=batch.num_rows) for group in groups}
        for instance in range(task.instances):
            reported = counts if instance == 0 else {}
            yield instance, encode_packet(Header(recalled.stream, part, sequence, {}, reported), parts[instance])


def _chunks(recalled: RecalledEvents, files: Files) -> Iterator[pa.RecordBatch]:
    """The events from `from_us` on, in chunks of bounded size; consecutive sections with equal columns share chunks."""
    buffered: list[pa.RecordBatch] = []
    for batch in (one for place in recalled.places for one in read_events(files, place)):
        events = batch.filter(pa.array(np.asarray(batch.column(TIME)) >= recalled.from_us))
        if buffered and (buffered[0].schema != events.schema or sum(map(len, buffered)) + len(events) > CHUNK_ROWS):
            yield from _joined(buffered)
            buffered = []
        buffered.append(events)
    yield from _joined(buffered)


def _joined(buffered: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if any(map(len, buffered)):
        yield from pa.Table.from_batches(buffered).combine_chunks().to_batches(CHUNK_ROWS)


def _add_group(
    task: GatherTask, recalled: RecalledEvents, group: GroupPlan, batch: pa.RecordBatch, parts: list[list[GroupPart]]
) -> None:
    positions = {name: place for place, name in enumerate(batch.schema.names)}
    columns = tuple(
        column._replace(position=positions[column_name(column.name)])
        for column in recalled.columns
        if column_name(column.name) in positions
    )
    evaluator = Evaluator(StreamColumns(StreamLayout(recalled.stream, columns), batch), batch.num_rows, task.parameters)
    times = np.asarray(batch.column(TIME))
    timed = np.ones(batch.num_rows, bool)
    judged = Judged(timed, np.asarray(batch.column(BASE)), {})
    late = late_classes(judged_times(times, group.late_by), judged, None, group.delays_us)
    order = (batch.column(PARTITION), np.asarray(batch.column(OFFSET))) if OFFSET in positions else (None, None)
    group_parts(task, group, evaluator, timed, times, late, order, parts, {})
