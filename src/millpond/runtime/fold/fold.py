"""Fold: turns the packets of one instance into its delta: new segments, rows of closed windows and a receipt.

A fold keeps nothing in the process. It maps state from committed sections. If a fold runs again, on any host and with
packets in any order, it gives the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from socket import gethostname
from typing import TypeAlias

import msgspec
import pyarrow as pa

from millpond.clock import cpu_us, lap_us
from millpond.faults import reached
from millpond.log.records import Receipt
from millpond.model.selection import foreign_above
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.fold.kinds import state_kind
from millpond.runtime.fold.state import FoldContext, State
from millpond.runtime.gather.dead_letters import dead_letters
from millpond.runtime.gather.late_packets import late_rows
from millpond.runtime.gather.lateness import marks_of
from millpond.runtime.gather.owner_lookups import rows_of_packets
from millpond.runtime.gather.retained_events import fold_retained
from millpond.runtime.joins.fold_joins import fold_joins, request_values
from millpond.runtime.migration.move_state import logs_rebuilt
from millpond.runtime.packets.event_counts import bounded
from millpond.runtime.packets.unpack import PacketContents, combine_packets
from millpond.runtime.rows.foreign_values import Requests, foreign_values
from millpond.runtime.rows.row_writer import RowWriter
from millpond.runtime.task.task_values import FoldTask, TimeLine, Watermark
from millpond.spans import Spans
from millpond.state.layout.delta import DeltaWriter
from millpond.state.ports.files import Files

Marks: TypeAlias = Mapping[str, tuple[Watermark, Watermark]]
"""The watermark of each stream before and after the epoch."""

FAN_IN = 8
"""The number of sections of one level that are merged into one of the next; see `task.levels`."""


def fold(
    task: FoldTask, instance: int, packets: Sequence[pa.Buffer], attempt: str, files: Files
) -> tuple[Receipt, bytes]:
    """Folds the packets of an instance; returns its receipt, and its delta if that is small enough for the record.

    Raises:
        CorruptError: a packet or a section cannot be read.
        FilesLostError: a store that carries files has lost some of them.
    """
    reached("fold.start")
    began, began_cpu, spans = lap_us(), cpu_us(), Spans(f"fold {instance}")
    with spans.during("unpack"):
        contents = combine_packets(packets)
        context, marks = _begin(task, instance, contents, files)
    counters, delta, writer = context.counters, context.delta, context.writer
    counters.pond.bytes_moved = sum(packet.size for packet in packets)
    with spans.during("fold"):
        for group in task.plan.groups:
            group_began = lap_us()
            before, after = _marks_of(task, group, marks)
            state = _closed_state(context, group, contents, before, after)
            state.emit()
            state.merge(after)
            counters.of(group.id).group_us += lap_us() - group_began
        if task.plan.joins.plans:
            task = logs_rebuilt(task, instance, files, delta)
            fold_joins(task, instance, contents.parts, marks, files, delta, writer, FAN_IN)
        fold_retained(task, instance, contents.parts, marks, files, delta, FAN_IN)
        for stream, batches in contents.late.items():
            floor = task.lines.get(stream, TimeLine()).mark.floor_us
            writer.write(late_rows(task.late.get(stream, ()), batches, floor, task.number))
        for stream, batches in contents.selected.items():
            writer.write(rows_of_packets(task, stream, batches, counters, contents.fates))
        writer.finish()
        for stream, batches in contents.dead.items():
            writer.write(dead_letters(stream, batches, task.number))
    counters.pond.fold_us = lap_us() - began
    counters.pond.cpu_us += cpu_us() - began_cpu
    reached("fold.before_delta")
    with spans.during("write delta"):
        receipt, body = delta.finish(files, task.number, instance, attempt, counters.to_receipt(contents.newest))
    reached("fold.after_delta")
    with spans.during("sweep files"):
        files.sweep(task.number, task.files)
    reached("fold.return")
    timeline = (*contents.spans, *spans.take())
    return msgspec.structs.replace(
        receipt, fates=bounded(contents.fates), reasons=writer.reasons, spans=timeline, host=gethostname()
    ), body


def requested(task: FoldTask, instance: int, packets: Sequence[pa.Buffer], files: Files) -> Requests:
    """The inputs of expressions that only Spark evaluates, for the results that a fold of these packets will have.

    Only groups and joins with such expressions are folded, and nothing is written.

    Raises:
        CorruptError, FilesLostError: as `fold`.
    """
    contents, requests = combine_packets(packets), Requests()
    context, marks = _begin(task, instance, contents, files)
    with foreign_values(requests):
        for group in task.plan.groups:
            if any(foreign_above(plan.query) for plan in group.queries):
                _closed_state(context, group, contents, *_marks_of(task, group, marks))
        if any(foreign_above(plan.join) for plan in task.plan.joins.plans):
            task = logs_rebuilt(task, instance, files, context.delta)
            request_values(task, instance, contents.parts, marks, files, context.writer)
    return requests


def _begin(task: FoldTask, instance: int, contents: PacketContents, files: Files) -> tuple[FoldContext, Marks]:
    """What the fold of each group needs, with an empty delta, and the watermarks."""
    files.fetch(task.files(instance))
    delta = DeltaWriter()
    context = FoldContext(
        task=task, instance=instance, files=files, delta=delta, counters=contents.counters,
        writer=RowWriter(task, delta, contents.counters), fan_in=FAN_IN,
    )  # fmt: skip
    return context, marks_of(task.lines, contents.newest, task.drain_floor_us)


def _marks_of(task: FoldTask, group: GroupPlan, marks: Marks) -> tuple[Watermark, Watermark]:
    """The watermarks of a group before and after; a group that is backfilled has none before."""
    before, after = marks.get(group.stream, (Watermark(), Watermark()))
    return (Watermark() if group.id in task.backfilled else before), after


def _closed_state(
    context: FoldContext, group: GroupPlan, contents: PacketContents, before: Watermark, after: Watermark
) -> State:
    """The state of a group with the new packets in it, after its due windows were closed."""
    kind = state_kind(group)
    state = kind(context, group, kind.migrate(context, group))
    state.ingest(contents.parts.get(group.id, []), before, after)
    state.close(before, after)
    return state
