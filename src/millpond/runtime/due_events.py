"""Finds when the next row is due of a query over runs of events (`OVER`, count windows), from the live event log."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millpond.model.windows import Counted
from millpond.plan.build import presence_filter
from millpond.plan.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log.event_aggregates import passing
from millpond.runtime.event_log.event_log import GroupLog
from millpond.runtime.keys.key_compaction import Attached, read_section
from millpond.runtime.rows.count_windows import passed_now
from millpond.runtime.rows.time_frames import first_answered
from millpond.runtime.task.task_values import GroupState, Watermark
from millpond.state.files import Files

_LAST = (1 << 63) - 1


def next_frame(
    group: GroupPlan, plan: QueryPlan, mark: Watermark, states: Sequence[GroupState], files: Files
) -> tuple[int, int, int] | None:
    """Start and end of the window of the earliest row that waits, and its event's time, µs; None: there is none.

    Raises:
        CorruptError: a section does not read.
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
