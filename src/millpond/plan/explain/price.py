"""Computes the price of a query before it is added: what it adds to the plan, and what it shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import msgspec

from millpond.model.expressions import Expression, render
from millpond.model.join import Join
from millpond.model.query import Query, length_us
from millpond.model.selection import AnyQuery, Selection
from millpond.model.windows import RUNNING, Framed
from millpond.plan.explain.amounts import duration
from millpond.plan.explain.event_log_text import kept_text
from millpond.plan.explain.join_text import price_of_join
from millpond.plan.explain.plan_text import edges_per_hour, measure_text, price_of_selection, rate_text
from millpond.plan.explain.words import grouping_text, predicate_text
from millpond.plan.groups.build import build_plan, needed_columns, tallies_needed
from millpond.plan.groups.plan import GroupPlan, Measure, Plan
from millpond.plan.groups.tallies import keeps_tallies

_HOUR_US = 3_600_000_000


class QueryPrice(NamedTuple):
    """What a query adds to a plan: `before` is its group without the query (None: a new group), `group` with it.

    `shared` are the measures that other queries need too, each with the names of these queries. `kept_us` is how long
    cells are needed: for the longest window with its delay.
    """

    query: Query
    before: GroupPlan | None
    group: GroupPlan
    columns: tuple[str, ...]
    shared_columns: tuple[str, ...]
    measures: tuple[Measure, ...]
    shared: tuple[tuple[Measure, tuple[str, ...]], ...]
    filters: tuple[Expression, ...]
    shared_filters: tuple[Expression, ...]

    @property
    def edges(self) -> tuple[Fraction, Fraction]:
        """Upper bounds of the edges per hour of event time, without and with the query."""
        before = Fraction(0) if self.before is None else edges_per_hour(self.before.cuts)[0]
        return before, edges_per_hour(self.group.cuts)[0]

    @property
    def kept_us(self) -> tuple[int, int]:
        """How long the group keeps cells without and with the query, in µs of event time."""
        return 0 if self.before is None else kept_us(self.before), kept_us(self.group)

    @property
    def most_cells(self) -> int:
        """The maximum number of cells per key in the group with the query: one for each slice that is kept."""
        return -(-self.edges[1] * self.kept_us[1] // _HOUR_US) + 1


def kept_us(group: GroupPlan) -> int:
    """How long cells of a group are kept, in µs of event time; for atoms, after the last event of their session."""
    needed = max((length_us(plan.query.window) + plan.query.late_after_us for plan in group.celled), default=0)
    return max(needed, group.retention.slices_us)


def price(plan: Plan, query: Query) -> QueryPrice:
    """The price of adding `query` to `plan`.

    Raises:
        QueryTypeError, UnsupportedQuery: the query cannot be added; see `build_plan`.
    """
    group, query_plan = build_plan([*plan.all_queries, query]).of_query(query.name)
    before = next((found for found in plan.groups if found.id == group.id), None)
    if before is not None:
        group = msgspec.structs.replace(group, retain=before.retain)
    readers_of = {measure: _readers(before, measure) for measure in (before.measures if before is not None else ())}
    places = dict.fromkeys((query_plan.presence, *(i for p in query_plan.measures for i in p)))
    measures = [group.measures[place] for place in places]
    if isinstance(query.window, Framed):  # it has no measures by slice, but its filter is evaluated
        measures = []
    columns = needed_columns(build_plan([query]), query.stream)
    read = needed_columns(plan, query.stream)
    conditions = [group.measures[query_plan.presence].filter, *(measure.filter for measure in measures)]
    filters = tuple(dict.fromkeys(condition for condition in conditions if condition is not None))
    evaluated = {measure.filter for measure in readers_of}
    return QueryPrice(
        query,
        before,
        group,
        tuple(name for name in columns if name not in read),
        tuple(name for name in columns if name in read),
        tuple(measure for measure in measures if measure not in readers_of),
        tuple((measure, readers_of[measure]) for measure in measures if measure in readers_of),
        tuple(filter_ for filter_ in filters if filter_ not in evaluated),
        tuple(filter_ for filter_ in filters if filter_ in evaluated),
    )


def _readers(group: GroupPlan | None, measure: Measure) -> tuple[str, ...]:
    if group is None:
        return ()
    place = group.measures.index(measure)
    return tuple(
        plan.query.name for plan in group.queries if place in {plan.presence, *(i for p in plan.measures for i in p)}
    )


def price_of_query(plan: Plan, query: AnyQuery, state: Callable[[QueryPrice], Sequence[str]]) -> str:
    """What one more query of any kind would add to a plan, as text; `state`: lines about the size of its state.

    Raises:
        QueryTypeError: its name is already in use.
    """
    if isinstance(query, Selection):
        return price_of_selection(plan, query)
    if isinstance(query, Join):
        return price_of_join(plan, query)
    found = price(plan, query)
    return price_text(found, state(found))


def price_text(price: QueryPrice, state: Sequence[str]) -> str:
    """The price as text; `state` are lines about the size of the state in bytes."""
    of_state = [f"  {'' if i else 'state':<9} {line}" for i, line in enumerate(state)]
    return "\n".join([*_lines(price), *of_state]) + "\n"


def _lines(price: QueryPrice) -> Iterator[str]:
    query, group = price.query, price.group
    yield f"one more query: {query.name}"
    if price.before is None:
        yield f"  group     a group of its own: {group.stream} {grouping_text(group)}"
    else:
        names = ", ".join(plan.query.name for plan in price.before.queries)
        yield f"  group     shares {group.id}, {group.stream} {grouping_text(group)}, with {names}"
    yield f"  columns   {_more(price.columns)}; {_shared(price.shared_columns)}"
    yield f"  filters   {_more([predicate_text(one) for one in price.filters])}; {_shared(price.shared_filters)}"
    yield f"  measures  {len(price.measures) or 'none'} more; {len(price.shared) or 'none'} shared"
    for measure in price.measures:
        yield f"    + {measure_text(measure)}"
    for measure, names_of in price.shared:
        yield f"    = {measure_text(measure)}  with {', '.join(names_of)}"
    yield from _events(price)
    before, after = price.edges
    rate = _change(rate_text(before), rate_text(after), price.before)
    yield f"  edges     {rate} per hour: the number of slices per key with events"
    times_kept = [duration(us) for us in price.kept_us]
    reason = ": its longest window, with its delay and as long as it is corrected"
    if not any(plan.query.corrected_for_us for plan in group.queries):
        reason = ": its longest window and delay"
    if 0 < group.retention.slices_us == kept_us(group):
        reason = ": what the stream retains"
    if group.gaps_us:
        reason = f" after the last event of a session{reason.replace('window', 'gap')}"
    if isinstance(query.window, Framed):
        plans = [plan for plan in group.queries if plan.query == query]
        yield f"  kept      {kept_text(plans)}"
        return
    lasting = f"{_change(times_kept[0], times_kept[1], price.before)} of event time{reason}"
    if query.window == RUNNING:
        logged = any(aggregate.logged for aggregate in query.aggregates) and not keeps_tallies(query)
        lasting = f"one cell for each key ever seen{', and every event that it takes' if logged else ''}"
    yield f"  kept      {lasting}"
    late_after = query.late_after_us
    if price.before is not None and late_after not in price.before.delays_us:
        yield f"  delay     one more, {duration(late_after)}: events late for only some delays have their own slices"
    if query.deduplicated is not None:
        within = duration(query.deduplicated.within_us)
        yield f"  repeated  events wait for the watermark, and are kept for {within} more"
    if query.changing:
        how = "changes" if query.updating else "corrects"
        yield f"  rows      are emitted in each epoch that {how} them; the windows of its keys are read again"


def _events(price: QueryPrice) -> Iterator[str]:
    """Lines about the event log or tallies that the query needs; none if measures are enough."""
    logged = (aggregate for aggregate in price.query.aggregates if aggregate.logged)
    values = dict.fromkeys(one for aggregate in logged for one in aggregate.arguments)
    if keeps_tallies(price.query):
        known = [] if price.before is None else [tally.values for tally in price.before.tallies]
        needed = [tally.values for tally in tallies_needed([price.query])]
        more = [", ".join(map(render, values)) for values in needed if values not in known]
        yield f"  tallies   {_more(more)} counted by value; {_shared([one for one in needed if one in known])}"
        return
    log = None if price.before is None else price.before.events
    stored = () if log is None else log.values
    if values:
        more = [render(value) for value in values if value not in stored]
        yield f"  events    {_more(more)} stored individually; {_shared([one for one in values if one in stored])}"


def _more(names: Sequence[str]) -> str:
    return f"{len(names)} more: {', '.join(names)}" if names else "none more"


def _shared(shared: Sequence[object]) -> str:
    return f"{len(shared) or 'none'} shared"


def _change(before: str, after: str, group: GroupPlan | None) -> str:
    return after if group is None else f"{before}, as before" if before == after else f"{before} → {after}"
