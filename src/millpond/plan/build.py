"""Queries in, plan out: the only way to make a plan. Pure and deterministic, whatever the order of queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Call, Column, Expression, Foreign, call, columns_of, conjunction, may_raise
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection, expressions_of
from millpond.model.windows import Session, Window
from millpond.plan.deduplication import deduplication_log
from millpond.plan.event_log import log_plan, logged_rows
from millpond.plan.measures import measures_of
from millpond.plan.plan import GroupPlan, Measure, Plan, QueryPlan, fingerprint


def build_plan(queries: Iterable[AnyQuery], since_us: Mapping[str, int] | None = None) -> Plan:
    """The shared plan of `queries`; equal measures, filters and edges of different queries exist once.

    `since_us`: for queries added when there were events already, the earliest start of their windows.

    Raises:
        QueryTypeError: two queries have the same name.
        UnsupportedQuery: two queries tell the time of one stream by different columns.
    """
    ordered = sorted(queries, key=lambda query: query.name)
    names = [query.name for query in ordered]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise QueryTypeError(f"The query name {min(twice)!r} is used twice.", "Give each query its own name.")
    windowed = [query for query in ordered if isinstance(query, Query)]
    selections = tuple(query for query in ordered if isinstance(query, Selection))
    _check_event_times(windowed)
    groups: dict[tuple[object, ...], list[Query]] = {}
    for query in windowed:
        groups.setdefault(_identity(query), []).append(query)
    made = (_group(fingerprint(identity), members, since_us or {}) for identity, members in groups.items())
    return Plan(tuple(made), selections or msgspec.UNSET)


def _identity(query: Query) -> tuple[object, ...]:
    """What queries of one group have alike; of sessions also the events, for these make the windows."""
    alike = (query.stream, query.event_time, query.keys)
    if query.deduplicated is not None:  # with one delay it is known for all at once which events repeat
        return (*alike, query.deduplicated, query.delay_us)
    if not isinstance(query.window, Session):
        return alike
    own = () if query.window.own_end is None else (query.window.own_end,)
    return (*alike, "sessions", presence_filter(query), *own)


def _order(window: Window) -> tuple[int, ...]:
    if isinstance(window, Session):
        return (window.gap_us,)
    return window.size_us, window.slide_us, window.offset_us


def _check_event_times(queries: list[Query]) -> None:
    """A stream has one watermark, so all its queries must tell time by the same column."""
    columns: dict[str, Query] = {}
    for query in queries:
        first = columns.setdefault(query.stream, query)
        if first.event_time != query.event_time:
            raise UnsupportedQuery(
                f"{query.name} tells the time of {query.stream} by {query.event_time}, not {first.event_time}.",
                "Use one event-time column, or declare the stream a second time under another name.",
            )


def _group(identity: str, queries: list[Query], since_us: Mapping[str, int]) -> GroupPlan:
    """`queries` agree in stream, event time and keys."""
    found = queries[0].deduplicated
    delays = sorted({query.late_after_us for query in queries})
    windows = sorted({query.window for query in queries}, key=_order)
    measures: dict[Measure, int] = {}

    def position(measure: Measure) -> int:
        return measures.setdefault(measure, len(measures))

    plans = []
    for query in queries:
        presence = presence_filter(query)
        plans.append(
            QueryPlan(
                query,
                position(Measure("count", None, presence)),
                tuple(
                    () if aggregate.logged else tuple(position(one) for one in measures_of(aggregate, presence))
                    for aggregate in query.aggregates
                ),
                delays.index(query.late_after_us),
                since_us.get(query.name, msgspec.UNSET),
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
        (log_plan(_logged(queries)) if found is None else deduplication_log(found, tuple(measures))) or msgspec.UNSET,
        found or msgspec.UNSET,
    )


def _logged(queries: Sequence[Query]) -> Iterator[tuple[Aggregate, Expression | None]]:
    """The aggregates that are answered from events, each with the filter of its rows."""
    for query in queries:
        presence = presence_filter(query)
        for aggregate in query.aggregates:
            if aggregate.logged:
                yield aggregate, logged_rows(aggregate, presence)


def presence_filter(query: Query) -> Expression | None:
    """Rows that take part in a query: WHERE is TRUE and nothing the query evaluates for them raises.

    A raising row is the query's dead letter as a whole, never half counted.
    """
    parts: list[Expression] = [] if query.where is None else [query.where]
    parts += [_ran(key) for key in query.keys if may_raise(key)]
    for aggregate in query.aggregates:
        parts += [_ran(part) for part in _evaluated(aggregate) if may_raise(part)]
    return conjunction(parts)


def _evaluated(aggregate: Aggregate) -> list[Expression]:
    """What an aggregate evaluates per row: its filter, and its arguments where the filter holds."""
    if aggregate.filter is None:
        return list(aggregate.arguments)
    if aggregate.argument is None:
        return [aggregate.filter]
    return [call("case", (aggregate.filter, argument), argument.type) for argument in aggregate.arguments]


def _ran(expression: Expression) -> Call:
    return call("ran", (expression,), "boolean")


def needed_columns(plan: Plan, stream: str) -> tuple[str, ...]:
    """Names of the columns of `stream` that its queries read, projected ones included, sorted."""
    needed: set[str] = set()
    for expression in _expressions(plan, stream):
        needed |= columns_of(expression)
    return tuple(sorted(needed))


def needed_foreign(plan: Plan, stream: str) -> tuple[Foreign, ...]:
    """The expressions of `stream` that only Spark evaluates, by key."""
    found: dict[str, Foreign] = {}
    for expression in _expressions(plan, stream):
        for node in _foreign(expression):
            found[node.key] = node
    return tuple(found[key] for key in sorted(found))


def _foreign(expression: Expression) -> Iterable[Foreign]:
    if isinstance(expression, Foreign):
        yield expression
    elif isinstance(expression, Call):
        for arg in expression.args:
            yield from _foreign(arg)


def _expressions(plan: Plan, stream: str) -> Iterable[Expression]:
    for group in plan.groups:
        if group.stream != stream:
            continue
        yield Column(group.event_time, "timestamp")
        yield from group.keys
        for measure in group.measures:
            yield from measure.values
            if measure.filter is not None:
                yield measure.filter
        if group.events is not None:
            yield from (*group.events.values, *group.events.filters)
    for selection in plan.selections_of(stream):
        yield from expressions_of(selection)
