"""Builds the plan of a set of queries; the result does not depend on the order of the queries.

The needs of each query are derived once and cached, and a group whose queries did not change is reused. So adding a
query costs only the groups that it changes (`docs/design/changes.md`). Caches never change a result, because all
inputs are frozen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.change_history import ChangeEffects
from millpond.model.expressions import (
    Call,
    Column,
    Expression,
    Foreign,
    Literal,
    call,
    columns_of,
    conjunction,
    foreigns_in,
    may_raise,
)
from millpond.model.join import Join, Side
from millpond.model.patterns.variables import split
from millpond.model.query import Query, has_no_start
from millpond.model.selection import AnyQuery, Selection, expressions_of
from millpond.model.windows import (
    RUNNING,
    Counted,
    Distinct,
    Framed,
    Pattern,
    Processed,
    Range,
    Session,
    Sliced,
    Sliding,
    Window,
)
from millpond.plan.groups.deduplication import deduplication_log
from millpond.plan.groups.event_log import LogPlan, log_plan, logged_rows, stored_values
from millpond.plan.groups.joins import identity_of, plan_joins
from millpond.plan.groups.measures import measures_of
from millpond.plan.groups.plan import GroupPlan, Measure, Plan, QueryPlan, fingerprint
from millpond.plan.groups.ranked_rows import counted_rows
from millpond.plan.groups.tallies import Tally, keeps_tallies, tallies_of
from millpond.plan.groups.top_rows import limited_rank


def build_plan(
    queries: Iterable[AnyQuery], since_us: Mapping[str, int] | None = None, changes: ChangeEffects | None = None
) -> Plan:
    """The shared plan of `queries`; equal measures, filters and edges of different queries exist once.

    `since_us`: the earliest window start of each query that was added after the first events. `changes`: the lasting
    effects of earlier changes.

    Raises:
        QueryTypeError: two queries have the same name.
        UnsupportedQuery: two queries use different event-time columns of one stream.
    """
    ordered = tuple(sorted(queries, key=lambda query: query.name))
    names = [query.name for query in ordered]
    if len({*names}) < len(names):
        twice = min(name for name, often in Counter(names).items() if often > 1)
        raise QueryTypeError(f"The query name {twice!r} is used twice.", "Give each query its own name.")
    since, changes = since_us or {}, changes or ChangeEffects()
    spans = tuple(
        _Span(
            since.get(name), changes.until_us.get(name), name in changes.apart, name in changes.recalled,
            changes.replaced.get(name, name) in changes.versions,
        )
        for name in names
    )
    plan = _planned(ordered, spans, tuple(sorted(changes.times.items())), changes.signed)
    shadows = tuple(pair for pair in sorted(changes.shadows.items()) if {*pair} <= {*names})
    return msgspec.structs.replace(plan, beside=shadows) if shadows else plan


class _Span(NamedTuple):
    """The effects of changes on one query: the windows that it answers, whether it has a group of its own, whether it
    started from retained events, and whether it was altered.
    """

    since_us: int | None
    until_us: int | None
    own_group: bool
    recalled: bool
    altered: bool


@lru_cache(8)
def _planned(
    ordered: tuple[AnyQuery, ...], spans: tuple[_Span, ...], times: tuple[tuple[str, str], ...], signed: tuple[str, ...]
) -> Plan:  # fmt: skip
    """The plan of these queries and spans; cached, as the plans before and after a change are needed repeatedly."""
    selections = tuple(query for query in ordered if isinstance(query, Selection))
    joins = [query for query in ordered if isinstance(query, Join)]
    branches = {one.stream: one.timing[0] for one in selections if one.timing is not None}
    times = tuple(sorted((branches | dict(times)).items()))
    check_event_times((*(query for query in ordered if isinstance(query, Query)), *joins), dict(times))
    groups: dict[tuple[object, ...], tuple[list[Query], list[_Span]]] = {}
    for query, span in zip(ordered, spans, strict=True):
        if not isinstance(query, Query):
            continue
        identity = _needs_of(query).identity
        if query.window == RUNNING:  # running totals of earlier queries may lack its measures
            identity = (*identity, "running", span.since_us)
        if isinstance(query.window, Distinct | Processed) and span.since_us is not None:  # it has not seen earlier keys
            identity = (*identity, "since", span.since_us, query.name)
        if span.own_group:
            identity = (*identity, "signed")
        if span.recalled:  # it starts from retained events, so no other query shares its state
            identity = (*identity, "recalled", query.name)
        members, member_spans = groups.setdefault(identity, ([], []))
        members.append(query)
        member_spans.append(span)
    group_plans = [
        _group(_named(identity), tuple(members), tuple(member_spans), signed)
        for identity, (members, member_spans) in groups.items()
    ]
    sides = (identity_of(join, side) for join in joins for side in join.sides)
    begun = {query.name: span.since_us for query, span in zip(ordered, spans, strict=True) if span.since_us is not None}
    joined = plan_joins(joins, begun, {identity: fingerprint(identity) for identity in sides})
    return Plan(
        tuple(group_plans), selections or msgspec.UNSET, joined if joins else msgspec.UNSET, times or msgspec.UNSET
    )  # fmt: skip


class _QueryNeeds(NamedTuple):
    """What one query needs from its group, independent of the other queries in the group."""

    identity: tuple[object, ...]
    presence: Measure
    measures: tuple[tuple[Measure, ...], ...]


_QUERIES_KNOWN = 1 << 14
"""The number of queries whose needs are cached."""


@lru_cache(_QUERIES_KNOWN)
def _needs_of(query: Query) -> _QueryNeeds:
    presence = presence_filter(query)
    measures = (
        () if reads_events(query, aggregate) else measures_of(aggregate, presence) for aggregate in query.aggregates
    )
    return _QueryNeeds(_identity(query), Measure("count", None, presence), tuple(measures))


@lru_cache(_QUERIES_KNOWN)
def _named(identity: tuple[object, ...]) -> str:
    return fingerprint(identity)


def _identity(query: Query) -> tuple[object, ...]:
    """The properties that all queries of one group share; sessions add the row filter, as it shapes the windows."""
    common: tuple[object, ...] = (query.stream, query.event_time, query.keys)
    if query.grouping_sets:
        common = (*common, query.grouping_sets)
    if query.deduplicated is not None:  # repeats are decided once per group, so the delay must be equal
        return (*common, query.deduplicated, query.delay_us)
    if isinstance(query.window, Counted):  # its events and keys are kept regardless of age
        return (*common, "counted")
    if isinstance(query.window, Pattern):  # it keeps the end of the last match of each key
        return (*common, "patterns")
    if isinstance(query.window, Distinct):  # which event is the first depends on all of these
        one = not query.window.keeps and counted_rows(query.window) is None
        event = () if one else query.of_event  # they decide between ties
        limits = (limited_rank(query),) if len(query.aggregates) > 1 else ()
        return (*common, query.window, presence_filter(query), query.delay_us, *event, *query.aggregates, *limits)
    if isinstance(query.window, Processed):  # the state depends on all of these
        return (*common, query.window, presence_filter(query), query.delay_us, *query.aggregates, query.functions)
    if query.late_by_window and isinstance(query.window, Sliced):  # the window decides which events are late
        return (*common, "late by", query.window)
    if not isinstance(query.window, Session):
        return common
    own_end = () if query.window.own_end is None else (query.window.own_end,)
    return (*common, "sessions", presence_filter(query), *own_end)


def _order(window: Window) -> tuple[int, ...]:
    if isinstance(window, Session):
        return (window.gap_us,)
    if isinstance(window, Range):
        return (1, window.preceding_us, window.unit)  # sorted after windows that cut slices
    if isinstance(window, Counted):
        return window.size, window.every, window.following or 0
    if isinstance(window, Distinct | Processed):
        return () if window.lasts_us is None else (window.lasts_us,)
    if isinstance(window, Pattern):
        return window.within_us, int(fingerprint(window), 16)
    if not isinstance(window, Sliding):
        return 0, window.longest_us, int(fingerprint(window), 16)
    return 0, window.size_us, window.slide_us, window.offset_us


def check_event_times(queries: Iterable[AnyQuery], watched: Mapping[str, str]) -> None:
    """Checks that all queries of a stream use one event-time column, as a stream has one watermark.

    `watched`: the event-time column of each stream whose times are observed for another reason.

    Raises:
        UnsupportedQuery: two queries use different columns.
    """
    columns = dict(watched)
    uses = ((query, side) for query in queries for side in _timed(query))
    for query, side in uses:
        first = columns.setdefault(side.stream, side.event_time)
        if first != side.event_time:
            raise UnsupportedQuery(
                f"{query.name} uses {side.event_time} as the event time of {side.stream}, other queries use {first}.",
                "Use one event-time column, or declare the stream (or the query whose rows it is) a second time under "
                "another name.",
            )


def _timed(query: AnyQuery) -> Iterable[Query | Side]:
    if isinstance(query, Join):
        return query.sides.values()
    return () if isinstance(query, Selection) or not query.event_time else (query,)


_groups: WeakValueDictionary[tuple[object, ...], GroupPlan] = WeakValueDictionary()
"""Groups of plans in use, by their inputs; a change takes unaffected groups from here."""


def _group(identity: str, queries: tuple[Query, ...], spans: tuple[_Span, ...], signed: tuple[str, ...]) -> GroupPlan:
    """The group of `queries`, which have the same stream, event time and keys."""
    split = identity in signed or spans[0].own_group
    known = _groups.get((identity, queries, spans, split))
    if known is None:
        known = _groups[identity, queries, spans, split] = _new_group(identity, queries, spans, split)
    return known


def _new_group(identity: str, queries: Sequence[Query], spans: Sequence[_Span], split: bool) -> GroupPlan:
    delays = sorted({query.late_after_us for query in queries})
    windows = sorted({query.window for query in queries}, key=_order)
    measures: dict[Measure, int] = {}

    def position(measure: Measure) -> int:
        return measures.setdefault(measure, len(measures))

    plans = []
    for query, span in zip(queries, spans, strict=True):
        needs = _needs_of(query)
        plans.append(
            QueryPlan(
                query,
                position(needs.presence),
                tuple(tuple(map(position, some)) for some in needs.measures),
                delays.index(query.late_after_us),
                msgspec.UNSET if has_no_start(query.window) or span.since_us is None else span.since_us,
                msgspec.UNSET if span.until_us is None else span.until_us,
                outputs_vary=span.altered or msgspec.UNSET,
            )
        )
    return GroupPlan(
        identity,
        queries[0].stream,
        queries[0].event_time,
        queries[0].keys,
        tuple(delays),
        tuple(windows),
        tuple(measures),
        tuple(plans),
        _log_of(queries, tuple(measures)) or msgspec.UNSET,
        queries[0].deduplicate,
        tallies_needed(queries) or msgspec.UNSET,
        True if split else msgspec.UNSET,
        sets=queries[0].sets,
    )


def _log_of(queries: Sequence[Query], measures: Sequence[Measure]) -> LogPlan | None:
    """The event log of a group: the values that queries read from events or, with deduplication, all values of its
    measures until repeats are known.
    """
    deduplicated = queries[0].deduplicated
    if deduplicated is not None:
        return deduplication_log(deduplicated, measures)
    return log_plan(one for query in queries for one in logged_of(query))


def tallies_needed(queries: Iterable[Query]) -> tuple[Tally, ...]:
    """The tallies that the queries of one group need."""
    return tallies_of((query, presence_filter(query)) for query in queries)


def reads_events(query: Query, aggregate: Aggregate) -> bool:
    """Whether an aggregate is answered from events or tallies, because it or its window has no cells."""
    return aggregate.logged or isinstance(query.window, Framed)


@lru_cache(_QUERIES_KNOWN)
def logged_of(query: Query) -> tuple[tuple[tuple[Expression, ...], Expression | None], ...]:
    """The values that are answered from events, each list with its row filter."""
    found = _logged_of(query)
    return tuple((tuple(one for value in values for one in stored_values(value)), rows) for values, rows in found)


def _logged_of(query: Query) -> Iterator[tuple[tuple[Expression, ...], Expression | None]]:
    presence = presence_filter(query)
    if isinstance(query.window, Framed) and not isinstance(query.window, Processed):
        yield query.of_event, presence
    if isinstance(query.window, Counted):  # they order events of equal time
        arguments = (one for aggregate in query.aggregates for one in aggregate.arguments)
        yield tuple(one for one in arguments if not isinstance(one, Literal)), presence
    if isinstance(query.window, Pattern):
        yield query.window.values, presence
        yield from (((), condition) for condition in query.window.conditions)
    for aggregate in map(of_event_alone, query.aggregates):
        if aggregate.logged:
            if not keeps_tallies(query):
                yield aggregate.arguments, logged_rows(aggregate, presence)
        elif reads_events(query, aggregate):
            yield from ((one.values, one.filter) for one in measures_of(aggregate, presence))


@lru_cache(_QUERIES_KNOWN)
def presence_filter(query: Query) -> Expression | None:
    """The rows that take part in a query: WHERE is TRUE and no expression of the query raises an error.

    A row that raises becomes a dead letter of the query and counts in none of its aggregates.
    """
    parts: list[Expression] = [] if query.where is None else [query.where]
    parts += [_ran(one) for one in (*query.keys, *query.of_event) if may_raise(one)]
    if isinstance(query.window, Pattern):
        parts += [_ran(one) for one in query.window.expressions if may_raise(one)]
    for aggregate in map(of_event_alone, query.aggregates):
        parts += [_ran(part) for part in _evaluated(aggregate) if may_raise(part)]
    return conjunction(parts)


def of_event_alone(aggregate: Aggregate) -> Aggregate:
    """The aggregate without the condition that an event was matched as a variable of a pattern."""
    names, rest = split(aggregate.filter)
    return msgspec.structs.replace(aggregate, filter=rest) if names else aggregate


def _evaluated(aggregate: Aggregate) -> list[Expression]:
    """The expressions that an aggregate evaluates per row: its filter, and its arguments where the filter is TRUE."""
    if aggregate.filter is None:
        return list(aggregate.arguments)
    if aggregate.argument is None:
        return [aggregate.filter]
    return [call("case", (aggregate.filter, argument), argument.type) for argument in aggregate.arguments]


def _ran(expression: Expression) -> Call:
    return call("ran", (expression,), "boolean")


def needed_columns(plan: Plan, stream: str) -> tuple[str, ...]:
    """The sorted names of the columns of `stream` that its queries read, including projected columns."""
    needed: set[str] = set()
    for expression in _expressions(plan, stream):
        needed |= columns_of(expression)
    return tuple(sorted(needed))


def needed_foreign(plan: Plan, stream: str) -> tuple[Foreign, ...]:
    """The expressions over `stream` that only Spark can evaluate, ordered by key."""
    found: dict[str, Foreign] = {}
    for expression in _expressions(plan, stream):
        for node in foreigns_in(expression):
            found[node.key] = node
    return tuple(found[key] for key in sorted(found))


def _expressions(plan: Plan, stream: str) -> Iterable[Expression]:
    if stream in plan.watched:
        yield Column(plan.watched[stream], "timestamp")
    kept = plan.retained_of(stream)
    yield from () if kept is None else kept.columns
    for group in plan.groups:
        if group.stream != stream:
            continue
        if group.event_time:
            yield Column(group.event_time, "timestamp")
        yield from group.keys
        for measure in group.measures:
            yield from measure.values
            if measure.filter is not None:
                yield measure.filter
        if group.events is not None:
            yield from (*group.events.values, *group.events.filters)
        for tally in group.tallies:
            yield from (tally.value, *tally.filters)
    for selection in plan.selections_of(stream):
        yield from expressions_of(selection)
    for log in plan.joins.logs_of(stream):
        yield from (Column(log.event_time, "timestamp"), *log.kept.values, *log.kept.filters)
