"""Fold: turns the packets of one instance into its delta: new segments, rows of closed windows and a receipt.

A fold keeps nothing in the process. It maps state from committed sections. If a fold runs again, on any host and with
packets in any order, it gives the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa

from millpond.clock import lap_us
from millpond.faults import reached
from millpond.log.records import Receipt
from millpond.plan.groups.plan import GroupKind, GroupPlan
from millpond.runtime.fold.count_state import CountState
from millpond.runtime.fold.session_state import SessionState
from millpond.runtime.fold.state import FoldContext, State
from millpond.runtime.fold.time_state import TimeState
from millpond.runtime.gather.dead_letters import write_dead_letters
from millpond.runtime.gather.late_rows import write_late_rows
from millpond.runtime.gather.lateness import marks_of
from millpond.runtime.gather.retained_events import fold_retained
from millpond.runtime.gather.selected_rows import write_selected_rows
from millpond.runtime.gather.shadow_diff import Differing
from millpond.runtime.joins.fold_joins import fold_joins
from millpond.runtime.moves.move_state import moved_in
from millpond.runtime.packets.event_counts import bounded
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.packets.unpack import arrived
from millpond.runtime.task.task_values import GROUP_US, WHOLE_POND, FoldTask, TimeLine, Watermark
from millpond.state.layout.delta import DeltaWriter
from millpond.state.ports.files import Files

FAN_IN = 8
"""The number of segments of one level that are merged into one of the next: each cell is rewritten O(log n) times."""

STATES: Mapping[GroupKind, type[State]] = {"time": TimeState, "session": SessionState, "count": CountState}
"""The state of each kind of group."""


def fold(
    task: FoldTask, instance: int, packets: Sequence[pa.Buffer], attempt: str, files: Files
) -> tuple[Receipt, bytes]:
    """Folds the packets of an instance; returns its receipt, and its delta if that is small enough for the record.

    Raises:
        CorruptError: a packet or a section cannot be read.
        FilesLostError: a store that carries files has lost some of them.
    """
    reached("fold.start")
    began = lap_us()
    came = arrived(packets)
    counts = came.counts | {f"bytes_moved:{WHOLE_POND}": sum(packet.size for packet in packets)}
    reasons, delta, differing = dict[str, str](), DeltaWriter(), Differing(task.plan, task.quarantined)
    files.fetch(task.files(instance))
    task = moved_in(task, instance, files, delta, FAN_IN)
    marks = marks_of(task.lines, came.newest, task.drain_floor_us)
    context = FoldContext(
        task=task, instance=instance, files=files, delta=delta, counts=counts, reasons=reasons, differing=differing,
        fan_in=FAN_IN,
    )  # fmt: skip
    for group in task.plan.groups:
        group_began = lap_us()
        before, after = marks.get(group.stream, (Watermark(), Watermark()))
        before = Watermark() if group.id in task.backfilled else before
        _fold_group(context, group, came.parts.get(group.id, []), before, after)
        counts[f"{GROUP_US}:{group.id}"] = counts.get(f"{GROUP_US}:{group.id}", 0) + lap_us() - group_began
    if task.plan.joins.plans:
        fold_joins(task, instance, came.parts, marks, files, delta, counts, reasons, FAN_IN)
    fold_retained(task, instance, came.parts, marks, files, delta, FAN_IN)
    for stream, found_late in came.late.items():
        floor = task.lines.get(stream, TimeLine()).mark.floor_us
        write_late_rows(task.late.get(stream, ()), found_late, floor, task.number, delta, counts)
    for stream, found_selected in came.selected.items():
        write_selected_rows(task.plan.selections_of(stream), found_selected, delta, differing)
    differing.write(delta)
    for stream, found_dead in came.dead.items():
        write_dead_letters(stream, found_dead, task.number, delta, counts)
    counts[f"fold_us:{WHOLE_POND}"] = lap_us() - began
    reached("fold.before_delta")
    receipt, body = delta.finish(files, task.number, instance, attempt, counts)
    reached("fold.after_delta")
    files.sweep(task.number, task.files)
    reached("fold.return")
    return msgspec.structs.replace(receipt, fates=bounded(came.fates), reasons=reasons), body


def _fold_group(
    context: FoldContext, group: GroupPlan, parts: Sequence[GroupPart], before: Watermark, after: Watermark
) -> None:
    """Fold the new packets of one group into its state."""
    state = STATES[group.kind](context, group)
    state.ingest(parts, before, after)
    state.close(before, after)
    state.emit()
    state.merge(after)
