"""Finds when the next window or session of a query closes, for groups of cells and of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from millpond.arrays import Ints, Mask
from millpond.log.manifest import Manifest
from millpond.model.windows import Counted, Framed, Session, Sliding
from millpond.plan.groups.build import presence_filter
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.epoch import watermarks
from millpond.runtime.event_log.event_aggregates import passing
from millpond.runtime.event_log.event_log import GroupLog
from millpond.runtime.keys.key_compaction import Attached, read_cells, read_section
from millpond.runtime.rows.count_windows import passed_now
from millpond.runtime.rows.time_frames import first_answered
from millpond.runtime.rows.window_updates import counted_in
from millpond.runtime.task.state_locations import group_state
from millpond.runtime.task.task_values import GroupState, Watermark
from millpond.runtime.windows.sessions import open_ones, sessions_of
from millpond.state.layout.cells import Cells, piece_of
from millpond.state.layout.event_log import decode_events
from millpond.state.layout.session_fragments import merge_atoms
from millpond.state.ports.files import Files

_LAST = (1 << 63) - 1


def next_frame(
    group: GroupPlan, plan: QueryPlan, mark: Watermark, states: Sequence[GroupState], files: Files
) -> tuple[int, int, int] | None:
    """Start and end of the earliest pending row's window, and the time of its event, in µs; None: there is no such row.

    Raises:
        CorruptError: a section is not readable.
    """
    found = []
    for state in states:
        log, window = _log(group, state, files), plan.query.window
        if isinstance(window, Counted):
            found += _first_counted(log, group, plan, mark, state, files)
            continue
        since = first_answered(plan, mark.at(plan.query.delay_us))
        events = passing(log.between(since, _LAST, plan.delay), presence_filter(plan.query))
        if events.rows:
            time = int(events.times_us.min())
            found.append((*window.assign(time)[0], time))
    return min(found, default=None, key=lambda row: row[2])


def _first_counted(
    log: GroupLog, group: GroupPlan, plan: QueryPlan, mark: Watermark, state: GroupState, files: Files
) -> list[tuple[int, int, int]]:
    keys = [read_section(files, place) for place in state.keys]
    counts = Attached(files, state, state.segments, keys, group.delays_us)
    size = sum(place.rows for place in state.keys)
    passed = passed_now(log, plan, counts, size, mark, Watermark(floor_us=_LAST))
    due = None if passed is None else passed.due(plan)
    if due is None or not len(due.at):
        return []
    first = int(np.argmin(due.ends_us))
    start, end = int(due.starts_us[first]), int(due.ends_us[first])
    return [(start, end, end)]


def _log(group: GroupPlan, state: GroupState, files: Files) -> GroupLog:
    assert group.events is not None
    return GroupLog(files, group, group.events, state, [read_section(files, place) for place in state.keys])


class Due(NamedTuple):
    """An open window [start, end) with an event of the query; its rows are emitted when event time reaches `needs_us`.

    A session is emitted then only if no further event extends it.
    """

    start_us: int
    end_us: int
    needs_us: int


def next_due(group: GroupPlan, plan: QueryPlan, manifest: Manifest, files: Files, instances: int) -> Due | None:
    """The earliest open window of a query that contains one of its events, or None.

    Reads the slices of the group's live segments, and of each only the cells up to the first with an event of the
    query.

    Raises:
        CorruptError: a section is not readable.
    """
    whole = watermarks(manifest).get(group.stream, Watermark())
    mark = whole.at(plan.query.delay_us)
    window = plan.query.window
    states = [group_state(manifest, instance, group) for instance in range(instances)]
    if isinstance(window, Framed):
        found = next_frame(group, plan, whole, states, files)
        return None if found is None else Due(found[0], found[1], found[2] + plan.query.delay_us)
    if isinstance(window, Session):
        return _next_session(group, plan, window, mark, states, files)
    if plan.since_us is not msgspec.UNSET:
        first = plan.from_us + window.size_us - 1
        mark = first if mark is None else max(mark, first)
    ends = []
    for state in states:
        for place in state.segments:
            cells = read_cells(files, place, group.delays_us)
            end = _first_end(group, plan, window, cells, mark)
            if end is not None:
                ends.append(end)
        if group.deduplicated is not None:
            ends += _waiting_ends(window, state, files, mark)
    if not ends:
        return None
    return Due(min(ends) - window.size_us, min(ends), min(ends) + plan.query.delay_us)


def _waiting_ends(window: Sliding, state: GroupState, files: Files, mark_us: int | None) -> list[int]:
    """For each section, the earliest end of an open window with an event that may still be a repeated one."""
    found = []
    for place in state.events:
        times = decode_events(read_section(files, place)).times_us
        waiting = times if mark_us is None else times[times > mark_us]
        if len(waiting):
            ends, holds = open_ends(window, waiting, waiting + 1, mark_us)
            found += [int(ends[holds].min())] if holds.any() else []
    return found


def _next_session(
    group: GroupPlan, plan: QueryPlan, window: Session, mark_us: int | None, states: Sequence[GroupState], files: Files
) -> Due | None:
    found = []
    for state in states:
        keys = [read_section(files, place) for place in state.keys[:1]]
        parts = Attached(files, state, state.segments, keys, group.delays_us)
        atoms = merge_atoms([piece_of(cells) for cells in parts], group.gaps_us[0]).cells
        sessions = sessions_of(atoms, window.gap_us, plan.delay)
        still = sessions.take(open_ones(sessions, mark_us))
        if len(still.slots):
            first = int(np.argmin(still.ends_us))
            found.append((int(still.ends_us[first]), int(still.starts_us[first])))
    return Due(min(found)[1], min(found)[0], min(found)[0] + plan.query.delay_us) if found else None


def _first_end(
    group: GroupPlan, plan: QueryPlan, window: Sliding, cells: Cells, mark_us: int | None
) -> int | None:
    """The earliest end of an open window that contains a cell with events of the query."""
    slices = cells.slices
    counted, passing = counted_in(group.measures[plan.presence], cells)
    if counted is None:
        return None
    ends, holds = open_ends(window, slices.start_us, slices.end_us, mark_us)
    wanted = np.flatnonzero(holds & passing & (slices.late_class <= plan.delay))
    for i in wanted[np.argsort(ends[wanted], kind="stable")].tolist():
        if bool((counted[cells.offsets[i] : cells.offsets[i + 1]] > 0).any()):
            return int(ends[i])
    return None


def open_ends(window: Sliding, starts_us: Ints, ends_us: Ints, mark_us: int | None) -> tuple[Ints, Mask]:
    """For each slice, the end of the first window that contains it and ends after the mark, and whether there is one.

    >>> open_ends(Sliding(20, 10), np.array([0, 10]), np.array([10, 20]), 20)[0].tolist()
    [30, 30]
    """
    step, phase = window.slide_us, (window.offset_us + window.size_us) % window.slide_us
    first = -((phase - ends_us) // step) * step + phase
    if mark_us is not None:
        first = np.maximum(first, (mark_us - phase) // step * step + phase + step)
    return first, first <= starts_us + window.size_us
