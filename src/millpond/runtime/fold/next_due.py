"""Finds the next window of a query to close, in stored state: for each kind of window, how to look for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from millpond.arrays import Ints, Mask
from millpond.model.windows import Session, Sliced
from millpond.plan.groups.build import presence_filter
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log.event_aggregates import passing
from millpond.runtime.fold.state_size import Stored
from millpond.runtime.keys.current_slots import read_cells, read_section
from millpond.runtime.rows.count_windows import newly_counted
from millpond.runtime.rows.time_frames import first_answered
from millpond.runtime.rows.window_updates import counted_in
from millpond.runtime.task.task_values import GroupState, Watermark
from millpond.runtime.windows.sessions import open_sessions, sessions_of
from millpond.state.layout.cells import Cells, piece_of
from millpond.state.layout.event_log import decode_events
from millpond.state.layout.session_atoms import merge_atoms
from millpond.state.ports.files import Files

_LAST = (1 << 63) - 1


class Due(NamedTuple):
    """An open window [start, end) with an event of the query; its rows are emitted when event time reaches `needs_us`.

    A session is emitted then only if no further event extends it.
    """

    start_us: int
    end_us: int
    needs_us: int


def next_frame(stored: Iterable[Stored], plan: QueryPlan) -> Due | None:
    """The frame of time of the earliest event without a row."""
    times_us = []
    for one in stored:
        since = first_answered(plan, one.mark.at(plan.query.delay_us))
        events = passing(one.log().events_by_slot(since, _LAST, plan.delay), presence_filter(plan.query))
        if events.rows:
            times_us.append(int(events.times_us.min()))
    if not times_us:
        return None
    start, end = plan.query.window.assign(min(times_us))[0]
    return Due(start, end, end - 1 + plan.query.delay_us)


def next_count(stored: Iterable[Stored], plan: QueryPlan) -> Due | None:
    """The count window that the earliest event completes."""
    completing = []
    for one in stored:
        key_count, later = one.state.key_count, Watermark(_LAST, one.mark.floor_us)
        passed = newly_counted(one.log(), plan, one.segments(), key_count, one.mark, later)
        due = None if passed is None else passed.due(plan)
        if due is not None and len(due.at):
            last = due.events.times_us[due.highs[-1] - 1] + plan.query.row_per_event
            first = int(np.argmin(last))
            completing.append((int(last[first]), int(due.starts_us[first])))
    return _first(completing, plan)


def next_session(stored: Iterable[Stored], plan: QueryPlan) -> Due | None:
    """The open session that ends first."""
    assert isinstance(plan.query.window, Session)
    found = []
    for one in stored:
        atoms = merge_atoms([piece_of(cells) for cells in one.segments()], one.group.gaps_us[0]).cells
        sessions = sessions_of(atoms, plan.query.window.gap_us, plan.delay)
        still = sessions.take(open_sessions(sessions, one.mark.at(plan.query.delay_us)))
        if len(still.slots):
            first = int(np.argmin(still.ends_us))
            found.append((int(still.ends_us[first]), int(still.starts_us[first])))
    return _first(found, plan)


def next_window(stored: Iterable[Stored], plan: QueryPlan) -> Due | None:
    """The window that ends first; of each slice, only the cells up to the first with an event of the query are read."""
    window, ends = plan.query.window, list[int]()
    assert isinstance(window, Sliced)
    for group, state, files, whole in stored:
        mark = whole.at(plan.query.delay_us)
        if plan.since_us is not msgspec.UNSET:
            first = window.first_end(window.next_start(plan.from_us)) - 1
            mark = first if mark is None else max(mark, first)
        for place in state.segments:
            end = _first_end(group, plan, window, read_cells(files, place, group.delays_us), mark)
            ends += [] if end is None else [end]
        if group.deduplicated is not None:
            ends += _waiting_ends(window, state, files, mark)
    return _first([(end, window.start_of(end)) for end in ends], plan)


def _first(found: Sequence[tuple[int, int]], plan: QueryPlan) -> Due | None:
    """The window that ends first, of windows given by their (end, start)."""
    if not found:
        return None
    end, start = min(found)
    return Due(start, end, end + plan.query.delay_us)


def _waiting_ends(window: Sliced, state: GroupState, files: Files, mark_us: int | None) -> list[int]:
    """For each section, the earliest end of an open window with an event that may still be a repeated one."""
    found = []
    for place in state.events:
        times = decode_events(read_section(files, place)).times_us
        waiting = times if mark_us is None else times[times > mark_us]
        if len(waiting):
            ends, holds = open_ends(window, waiting, waiting + 1, mark_us)
            found += [int(ends[holds].min())] if holds.any() else []
    return found


def _first_end(group: GroupPlan, plan: QueryPlan, window: Sliced, cells: Cells, mark_us: int | None) -> int | None:
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


def open_ends(window: Sliced, starts_us: Ints, ends_us: Ints, mark_us: int | None) -> tuple[Ints, Mask]:
    """For each slice, the end of the first window that contains it and ends after the mark, and whether there is one.

    >>> from millpond.model.windows import Sliding
    >>> open_ends(Sliding(20, 10), np.array([0, 10]), np.array([10, 20]), 20)[0].tolist()
    [30, 30]
    """
    first = window.ends.after(ends_us - 1)
    if mark_us is not None:
        first = np.maximum(first, window.next_end(mark_us))
    return first, first <= window.last_ends(starts_us)
