"""Queries in, plan out: the only way to make a plan. Pure and deterministic, whatever the order of queries."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import UNSET

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.aggregates import DISTINCT, PAIRED, Aggregate
from millpond.model.expressions import Call, Column, Expression, Foreign, Literal, call, columns_of, may_raise
from millpond.model.query import Query
from millpond.plan.plan import GroupPlan, Measure, Plan, QueryPlan, fingerprint

NEEDS = {
    "count": ("count",),
    "sum": ("sum", "count"),
    "avg": ("sum", "count"),
    "min": ("min", "count"),
    "max": ("max", "count"),
    "var_samp": ("sum", "squares", "count"),
    "var_pop": ("sum", "squares", "count"),
    "stddev_samp": ("sum", "squares", "count"),
    "stddev_pop": ("sum", "squares", "count"),
    "regr_sxx": ("sum", "squares", "count"),
    "skewness": ("sum", "squares", "power3", "count"),
    "kurtosis": ("sum", "squares", "power3", "power4", "count"),
    "covar_pop": ("sum", "other sum", "products", "count"),
    "covar_samp": ("sum", "other sum", "products", "count"),
    "regr_sxy": ("sum", "other sum", "products", "count"),
    "regr_slope": ("sum", "other sum", "other squares", "products", "count"),
    "regr_intercept": ("sum", "other sum", "other squares", "products", "count"),
    "corr": ("sum", "squares", "other sum", "other squares", "products", "count"),
    DISTINCT: ("registers",),
    "regr_r2": ("sum", "squares", "other sum", "other squares", "products", "count"),
}
"""Aggregate function -> kinds of its measures; the last one counts the values that took part, if that matters. `other`
is what is made of the second argument.
"""


def build_plan(queries: Iterable[Query]) -> Plan:
    """The shared plan of `queries`; equal measures, filters and edges of different queries exist once.

    Raises:
        QueryTypeError: two queries have the same name.
        UnsupportedQuery: two queries tell the time of one stream by different columns.
    """
    ordered = sorted(queries, key=lambda query: query.name)
    names = [query.name for query in ordered]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise QueryTypeError(f"The query name {min(twice)!r} is used twice.", "Give each query its own name.")
    _check_event_times(ordered)
    groups: dict[tuple[str, str, tuple[Expression, ...]], list[Query]] = {}
    for query in ordered:
        groups.setdefault((query.stream, query.event_time, query.keys), []).append(query)
    return Plan(tuple(_group(*identity, members) for identity, members in groups.items()))


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


def _group(stream: str, event_time: str, keys: tuple[Expression, ...], queries: list[Query]) -> GroupPlan:
    delays = sorted({query.delay_us for query in queries})
    windows = sorted({query.window for query in queries}, key=lambda w: (w.size_us, w.slide_us, w.offset_us))
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
                    tuple(position(measure) for measure in measures_of(aggregate, presence))
                    for aggregate in query.aggregates
                ),
                delays.index(query.delay_us),
            )
        )
    return GroupPlan(
        fingerprint((stream, event_time, keys)),
        stream,
        event_time,
        keys,
        tuple(delays),
        tuple(windows),
        tuple(measures),
        tuple(plans),
    )


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


def measures_of(aggregate: Aggregate, presence: Expression | None) -> tuple[Measure, ...]:
    """The measures an aggregate is made of, over the rows of `presence`."""
    parts = [part for part in (presence, aggregate.filter) if part is not None]
    value, other = aggregate.argument, aggregate.other
    both: tuple[Expression, ...] = () if value is None else (value,)
    if aggregate.function in PAIRED:  # in one order, so that corr(x, y) and covar_pop(y, x) share
        both = call("multiply", aggregate.arguments, "double").args
    rows = conjunction([*parts, *(call("isnotnull", (one,), "boolean") for one in both)])
    counted = Measure("count", None, rows)
    if value is None:
        return (counted,)
    made = []
    for kind in NEEDS[aggregate.function]:
        name = kind.removeprefix("other ")
        if kind == "count":
            made.append(counted)
        elif kind == "registers":
            assert isinstance(other, Literal)
            made.append(Measure(f"{kind}{precision_of(other)}", call("xxhash64", both, "bigint"), rows))
        elif kind == "products":
            made.append(Measure(kind, both[0], rows, both[0].type, both[1]))
        else:
            one = value if kind == name or other is UNSET else other
            made.append(Measure(name, one, rows, one.type))
    return tuple(made)


def precision_of(error: Literal) -> int:
    """The least p for which 2**p registers have a standard error of at most `error`; Spark's formula, and its double.

    >>> precision_of(Literal((0.05).hex(), "double"))
    9
    """
    assert isinstance(error.value, float)
    return math.ceil(2.0 * math.log(1.106 / error.value) / math.log(2.0))


def conjunction(parts: list[Expression]) -> Expression | None:
    """All of `parts`, each once, in order; None for none."""
    flat: dict[Expression, None] = {}
    for part in parts:
        inner = part.args if isinstance(part, Call) and part.op == "and" else (part,)
        flat.update(dict.fromkeys(inner))
    distinct = tuple(flat)
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    return call("and", distinct, "boolean")


def needed_columns(plan: Plan, stream: str) -> tuple[str, ...]:
    """Names of the columns of `stream` that its queries read, projected ones included, sorted."""
    needed: set[str] = set()
    for expression, event_time in _expressions(plan, stream):
        needed.add(event_time)
        needed |= columns_of(expression)
    return tuple(sorted(needed))


def needed_foreign(plan: Plan, stream: str) -> tuple[Foreign, ...]:
    """The expressions of `stream` that only Spark evaluates, by key."""
    found: dict[str, Foreign] = {}
    for expression, _ in _expressions(plan, stream):
        for node in _foreign(expression):
            found[node.key] = node
    return tuple(found[key] for key in sorted(found))


def _foreign(expression: Expression) -> Iterable[Foreign]:
    if isinstance(expression, Foreign):
        yield expression
    elif isinstance(expression, Call):
        for arg in expression.args:
            yield from _foreign(arg)


def _expressions(plan: Plan, stream: str) -> Iterable[tuple[Expression, str]]:
    for group in plan.groups:
        if group.stream != stream:
            continue
        yield Column(group.event_time, "timestamp"), group.event_time
        for key in group.keys:
            yield key, group.event_time
        for measure in group.measures:
            for part in measure.values:
                yield part, group.event_time
            if measure.filter is not None:
                yield measure.filter, group.event_time
