"""Computes how far back state is needed: the times before which no open window of a group needs anything."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.model.windows import Counted, Distinct, Pattern, Processed, Range, Session
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log.event_aggregates import needs_events
from millpond.runtime.task.task_values import SectionPlace, Watermark


def needed_from(queries: Iterable[QueryPlan], mark: Watermark) -> int | None:
    """The time before which no open window of `queries` needs slices (that end by then); None: all are needed.

    The result is None for sessions, which later events may extend (the fold decides which atoms are needed), and for
    windows that count events.
    """
    times = []
    for plan in queries:
        at = mark.at(plan.query.late_after_us)
        window = plan.query.window
        if at is None or isinstance(window, Session | Counted):
            return None
        if isinstance(window, Distinct):
            if window.lasts_us is None:
                return None
            times.append(at + 1 - window.lasts_us)
            continue
        if isinstance(window, Pattern):
            times.append(at + 1 - window.reaches_us)  # matches that begin later are not decided
            continue
        if isinstance(window, Processed):
            if window.lasts_us is None:
                return None
            times.append(at + 2 - window.lasts_us)  # the next event is later than the watermark
            continue
        if isinstance(window, Range):
            times.append(at + 1 - window.preceding_us)  # the next event that has no row yet
            continue
        times.append(window.first_open(at))
    return min(times, default=None)


def slices_needed_from(group: GroupPlan, mark: Watermark) -> int | None:
    """Like `needed_from`, for the cells of a group, which its stream may retain longer."""
    return retained_from(group, group.queries if group.kind == "pattern" else group.celled, mark)


def retained_from(group: GroupPlan, queries: Iterable[QueryPlan], mark: Watermark) -> int | None:
    """The time before which slices of a group are neither needed by open windows of `queries` nor retained."""
    needed, kept_us = needed_from(queries, mark), group.retention.slices_us
    if needed is None or not kept_us:
        return needed
    return None if mark.max_time_us is None else min(needed, mark.max_time_us - kept_us)


def kept_from(plan: QueryPlan, needed_us: int | None) -> int:
    """The earliest time of state that a query needs: `needed_us` (None: all), but not before its first window."""
    return plan.from_us if needed_us is None else max(plan.from_us, needed_us)


def ends_by(place: SectionPlace, horizon: int) -> bool:
    """Whether nothing in a segment ends after `horizon`."""
    return not place.rows or (place.last_us is not None and place.last_us <= horizon)


def events_needed_from(group: GroupPlan, mark: Watermark) -> int | None:
    """Like `needed_from`, for the event log of a group; with deduplication, as long as later ones may repeat them."""
    found = group.deduplicated
    if found is not None:
        at = mark.at(group.delays_us[0])
        return None if at is None else at - found.within_us
    return needed_from([plan for plan in group.queries if needs_events(plan)], mark)
