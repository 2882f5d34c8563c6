"""Finds from which event time on a group has stored everything that a new query needs.

Every event that is at or after the time from which a query is in force, and is not late for it, has contributed to
all measures of that query. So the windows of a new query are complete from the latest of the following times on. Each
of them is the earliest that any query in force provides:

  measures     a query with at least the same delay has had the measure since then, so no event is missing from it
  delay        a query has had this delay since then, so lateness classes show which events are late for it
  edges        slices have been cut at the starts and at the ends of its windows since then, as far back as a query
               that cuts there needs it (`runtime.fold.coalesce_slices`); edges at a stream's grain always exist
  retention    slices, and events if the query needs them, are kept since then by a query or by the stream's retention

The retention of a stream is declared once with the stream, so it holds since the stream's first event. A query for
which slices do not suffice may begin with the retained events of its stream: see `recalled_from`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.log.manifest import Manifest
from millpond.model.calendars.grids import EdgeGrid, Regular
from millpond.model.expressions import Expression, parameters_of
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, expressions_of
from millpond.model.stream import Stream
from millpond.model.windows import RUNNING, Sliced
from millpond.plan.groups.build import build_plan, logged_of, needed_columns, needed_foreign, tallies_needed
from millpond.plan.groups.edges import phases
from millpond.plan.groups.plan import GroupPlan, Measure, Plan, QueryPlan, measures_read
from millpond.plan.options.complete_column import has_complete_column
from millpond.plan.upstream.step_copies import copied_steps
from millpond.plan.upstream.steps import inner_of
from millpond.runtime.epoch import watermarks
from millpond.runtime.event_log.event_aggregates import needs_events
from millpond.runtime.event_log.retention import kept_from, needed_from, retained_from
from millpond.runtime.event_log.tallies import needs_tallies
from millpond.runtime.gather.retained_events import columns_in, retained_sections
from millpond.runtime.task.task_values import Watermark


def covered_from(plan: Plan, query: Query, mark: Watermark) -> int | None:
    """The event time from which on every window of `query` would be complete; None: something it needs is not kept.

    Supports only queries with windows of slices and without updating results. For queries with percentiles by bins it
    always returns None.
    """
    sliced = isinstance(query.window, Sliced) and query.window != RUNNING
    if not sliced or query.changing or query.deduplicated is not None:
        return None
    alone = build_plan([query]).groups[0]
    group = next((group for group in plan.groups if group.id == alone.id), None)
    if group is None or any(tally.bits for tally in alone.tallies):
        return None
    if not {*alone.measures} <= {*group.measures}:
        return None
    found = [_retained(group, group.celled, mark), *_known(group, query, alone.measures, mark)]
    for needs in (needs_events, needs_tallies):
        if not any(map(needs, alone.queries)):
            continue
        needing = [one for one in group.queries if needs(one)]
        found.append(min((kept_from(one, needed_from([one], mark)) for one in needing), default=None))
    return None if None in found else max(time for time in found if time is not None)


def _retained(group: GroupPlan, plans: Sequence[QueryPlan], mark: Watermark) -> int | None:
    """The event time since which all slices, with the edges of these queries between them, are kept: because one of
    the queries needs them, or because the stream retains them.
    """
    return min((kept_from(plan, retained_from(group, [plan], mark)) for plan in plans), default=None)


def _known(group: GroupPlan, query: Query, measures: Collection[Measure], mark: Watermark) -> Iterator[int | None]:
    """For each thing that `query` needs: since when some query in force has it. Edges at the grain always exist."""
    patient = [plan for plan in group.queries if plan.query.late_after_us >= query.late_after_us]
    delays = [plan.from_us for plan in patient if plan.query.late_after_us == query.late_after_us]
    yield min(delays, default=None)
    has: dict[object, int] = {}
    celled = {plan.query.name for plan in group.celled}
    wanted = {place: measure for place, measure in enumerate(group.measures) if measure in measures}
    for plan in patient:
        counted = (wanted[i] for i in measures_read([plan]) if i in wanted) if plan.query.name in celled else ()
        for one in (*counted, *logged_of(plan.query), *_tallied(plan.query)):
            has[one] = min(plan.from_us, has.get(one, plan.from_us))
    for one in (*measures, *logged_of(query), *_tallied(query)):
        yield has.get(one)
    assert isinstance(query.window, Sliced)
    grain = group.retention.grain_us
    for grid in phases([query.window]):
        if not grain or not Regular(0, grain).contains(grid):
            yield _retained(group, [plan for plan in group.celled if _cuts(plan, grid)], mark)


def _tallied(query: Query) -> Iterator[tuple[str, tuple[Expression, ...], Expression]]:
    """The values that tallies count for a query, with each filter."""
    for tally in tallies_needed([query]):
        yield from (("tally", tally.values, condition) for condition in tally.filters)


def _cuts(plan: QueryPlan, grid: EdgeGrid) -> bool:
    """Whether windows of a query in force begin or end at all times of a grid."""
    window = plan.query.window
    return isinstance(window, Sliced) and any(edges.contains(grid) for edges in window.edges)


def recalled_from(plan: Plan, query: Query, manifest: Manifest) -> int | None:
    """The event time from which on every event that `query` may take is retained, with all columns that it needs.
    None: no event is retained, or the query cannot be computed from retained events. It can be computed if its windows
    have a fixed size and its results are final. It cannot if a filter uses a parameter, whose value may have been
    different then, or if it needs foreign expressions, whose values are not retained.
    """
    retained, newest = plan.retained_of(query.stream), mark_of(query, manifest).max_time_us
    if retained is None or newest is None or not _made_later(query):
        return None
    alone = build_plan([query])
    if retained.event_time != query.event_time or needed_foreign(alone, query.stream):
        return None
    needed = {*needed_columns(alone, query.stream)}
    if not needed <= {column.name for column in retained.columns}:
        return None
    lacking = (one for one in retained_sections(manifest, retained) if not needed <= {*columns_in(one)})
    return max([newest - retained.kept_us, *(last for one in lacking if isinstance(last := one.info["last"], int))])


def _made_later(query: AnyQuery) -> bool:
    """Whether windows that began before the query was added can be computed from earlier events, and identified."""
    if not isinstance(query, Query) or not isinstance(query.window, Sliced) or query.window == RUNNING:
        return False
    judged = any(parameters_of(part) for part in expressions_of(query))
    return not judged and not query.changing and query.deduplicated is None


def check_backfilled(query: AnyQuery) -> None:
    """Refuse a query that cannot be computed from events that are read again.

    Raises:
        UnsupportedQuery: its windows have no fixed size, it has updating results or leaves out repeated events, or it
            uses parameters, whose values may have been different then.
    """
    if not _made_later(query):
        raise UnsupportedQuery(
            f"{query.name} cannot be backfilled: this needs a tumbling or sliding window whose rows are emitted once, "
            "and no parameter in WHERE and arguments.",
            "Leave the backfill out, or begin a new pond, which reads from the beginning.",
        )


def check_backfilled_steps(query: Query, streams: Iterable[Stream], *, complete: bool) -> None:
    """Refuse a backfill of inner queries that cannot be computed from events that are read again.

    `complete`: all events are read again.

    Raises:
        UnsupportedQuery: there are such, or the text has inner queries and not all events are read again.
    """
    by_name = {stream.name: stream for stream in streams}
    steps = inner_of(query, by_name)
    copied_steps(query, query.name, by_name, 0)
    for step in steps:
        check_backfilled(msgspec.structs.replace(step, name=query.name))
    if steps and not complete:
        raise UnsupportedQuery(
            f"{query.name} keeps state in several steps, so a backfill cannot begin at a time.",
            "Backfill all: backfill=True, or --backfill all.",
        )


def recall_for(plan: Plan, query: Query, since_us: int, manifest: Manifest) -> int | None:
    """The event time from which on a recall of retained events adds windows; None: it would add none.

    Such windows are complete only with the retained events; or they are incomplete even so, but the query emits
    incomplete windows (see `incomplete_for`). `since_us`: the time from which on windows are complete without a
    recall.
    """
    recall = recalled_from(plan, query, manifest)
    if recall is None or recall >= since_us:
        return None
    if incomplete_for(query, since_us, manifest) is not None:
        return recall
    open_us = open_from(query, manifest)
    first = recall if open_us is None else max(recall, open_us)
    assert isinstance(query.window, Sliced)
    return recall if query.window.next_start(first) < since_us else None


def incomplete_for(query: Query, whole_us: int, manifest: Manifest) -> int | None:
    """The start of the first incomplete window that is emitted, because the query marks its rows as complete or not.

    None: the query does not emit incomplete windows, or all open windows are complete. Windows that start at
    `whole_us` or later are complete.
    """
    open_us = open_from(query, manifest) if has_complete_column(query) else None
    return None if open_us is None or open_us >= whole_us else open_us


def open_from(query: Query, manifest: Manifest) -> int | None:
    """The start of the earliest open window of a query with windows of fixed size; None: all windows are open."""
    return needed_from(build_plan([query]).groups[0].queries, mark_of(query, manifest))


def mark_of(query: Query, manifest: Manifest) -> Watermark:
    """The event time of the stream of a query."""
    return watermarks(manifest).get(query.stream, Watermark())
