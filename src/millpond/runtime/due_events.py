"""When the next row of a query is due whose windows are runs of events: read from the live event log."""

from __future__ import annotations

from collections.abc import Sequence

from millpond.plan.build import presence_filter
from millpond.plan.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log import GroupLog
from millpond.runtime.generations import read_section
from millpond.runtime.holistic import passing
from millpond.runtime.ranges import first_answered
from millpond.runtime.tasks import GroupState
from millpond.state.delta import Files

_LAST = (1 << 63) - 1


def next_event(
    group: GroupPlan, plan: QueryPlan, mark_us: int | None, states: Sequence[GroupState], files: Files
) -> int | None:
    """The time of the earliest event that is waiting for its row, in µs; None: there is none.

    Raises:
        CorruptError: a section does not read.
    """
    found = []
    for state in states:
        log = _log(group, state, files)
        events = passing(log.between(first_answered(plan, mark_us), _LAST, plan.delay), presence_filter(plan.query))
        if events.rows:
            found.append(int(events.times_us.min()))
    return min(found, default=None)


def _log(group: GroupPlan, state: GroupState, files: Files) -> GroupLog:
    assert group.events is not None
    return GroupLog(files, group, group.events, state, [read_section(files, place) for place in state.keys])
