"""What a group has kept that a new query can be answered from: from which event time on everything it needs is there.

A query that is in force since F has, for each event at F or later that is not late for it, a cell in whatever it asks.
So a new query is whole from the latest of these times on, each the earliest among the queries in force:

  measures     since when some query has each measure, with a delay as long: its events were taken
  delay        since when some query has this delay: lateness classes tell which events are late for it
  edges        since when time is cut at the starts, and at the ends, of its windows
  retention    how far back some query needs its slices, and its events if they are asked for
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millpond.model.query import Query
from millpond.model.windows import RUNNING, Sliding
from millpond.plan.build import build_plan, logged_of
from millpond.plan.plan import GroupPlan, Plan, QueryPlan, measures_read
from millpond.plan.tallies import keeps_tallies
from millpond.runtime.holistic import needs_events
from millpond.runtime.horizon import needed_from
from millpond.runtime.tasks import Watermark


def covered_from(plan: Plan, query: Query, mark: Watermark) -> int | None:
    """The event time from which on every window of `query` would be whole; None: something it needs is not kept.

    Only of windows that are cut into slices, whose rows leave once; percentiles by bins are not looked for.
    """
    sliced = isinstance(query.window, Sliding) and query.window != RUNNING
    if not sliced or query.changing or query.deduplicated is not None or keeps_tallies(query):
        return None
    alone = build_plan([query]).groups[0]
    group = next((group for group in plan.groups if group.id == alone.id), None)
    if group is None:
        return None
    found = [_retained(group.celled, mark), *_known(group, query, {measure.id for measure in alone.measures})]
    if any(map(needs_events, alone.queries)):
        found.append(_retained([one for one in group.queries if needs_events(one)], mark))
    return None if None in found else max(time for time in found if time is not None)


def _retained(plans: Iterable[QueryPlan], mark: Watermark) -> int | None:
    """From when on some of the queries needs all slices, so that none of them is gone."""
    times = []
    for plan in plans:
        needed = needed_from([plan], mark)
        times.append(plan.from_us if needed is None else max(plan.from_us, needed))
    return min(times, default=None)


def _known(group: GroupPlan, query: Query, measures: Iterable[str]) -> Iterator[int | None]:
    """For each thing that the query needs, since when some query in force has it."""
    patient = [plan for plan in group.queries if plan.query.late_after_us >= query.late_after_us]
    delays = [plan.from_us for plan in patient if plan.query.late_after_us == query.late_after_us]
    yield min(delays, default=None)
    has: dict[object, int] = {}
    for plan in patient:
        for one in (*(group.measures[i].id for i in measures_read([plan])), *logged_of(plan.query)):
            has[one] = min(plan.from_us, has.get(one, plan.from_us))
    for one in (*measures, *logged_of(query)):
        yield has.get(one)
    assert isinstance(query.window, Sliding)
    window = query.window
    for phase in {window.offset_us, (window.offset_us + window.size_us) % window.slide_us}:
        yield min((plan.from_us for plan in group.celled if _cuts(plan, phase, window.slide_us)), default=None)


def _cuts(plan: QueryPlan, phase_us: int, step_us: int) -> bool:
    """Whether windows of a query in force begin or end at all times that are `phase_us` modulo `step_us`."""
    window = plan.query.window
    if not isinstance(window, Sliding) or step_us % window.slide_us:
        return False
    edges = window.offset_us, window.offset_us + window.size_us
    return any(not (phase_us - edge) % window.slide_us for edge in edges)
