"""Describes queries as sub-queries, the exchanges of rows between them, and the work that queries share.

A sub-query is a part of a query (not an SQL subquery): the work that one task does on a row without waiting for other
tasks. A new part begins where an operator keeps state or has several inputs. Between two parts, rows are exchanged:
point-to-point (to the one task that continues), round-robin (distributed regardless of content), by key (to the
instance that owns the key), by hash (distributed by their values) or by broadcast (to every instance).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from millpond.model.aggregates import ORDERED
from millpond.model.endpoints import REDIS
from millpond.model.expressions import Expression, render
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.stream import Stream
from millpond.model.windows import Counted, Distinct, Pattern, Processed
from millpond.plan.explain.amounts import count_of
from millpond.plan.explain.join_text import near_text
from millpond.plan.explain.words import grouping_text, keys_text
from millpond.plan.groups.joins import COLUMN, EVERY, ONE, ROW, JoinPlan, Joins, dealt
from millpond.plan.groups.plan import GroupPlan, Plan, QueryPlan
from millpond.plan.groups.ranked_rows import counted_rows
from millpond.plan.groups.stateless import moved_selections
from millpond.plan.options.keyed_lookups import is_by_owners, why_by_readers

Route: TypeAlias = Literal["point-to-point", "round-robin", "by key", "by hash", "broadcast"]

_JOINED = " LEFT JOIN "
_LOOKED_UP = re.compile(_JOINED + r"(?:hash|json) (.+?) \([0-9a-f]{16}\) BY ")
"""The key of a keyed table in the text of a derived stream."""

_NAMED = 4
"""The maximum number of queries that are named as sharing something; the others are counted."""


class Exchange(msgspec.Struct, frozen=True):
    """An exchange of rows: `place` is the stream, table or sub-query that they come from, or the sink that they go to.

    `diff`: the rows are compared with those of a shadow, and not written.
    """

    place: str
    route: Route
    how: str


class Shared(msgspec.Struct, frozen=True):
    """Work that a sub-query does once for itself and for other queries."""

    what: str
    queries: tuple[str, ...]


class SubQuery(msgspec.Struct, frozen=True):
    """A part of a query: `name` is the query's name with the number of the part, `operators` are in processing order.

    `output_exchange` is the exchange to the task that writes the rows; None: they are written where they are computed.
    """

    name: str
    operators: tuple[str, ...]
    inputs: tuple[Exchange, ...]
    shared: tuple[Shared, ...]
    output_exchange: Exchange | None = None


class _Reader(NamedTuple):
    """A query as a reader of a stream: its name and its first filter."""

    name: str
    where: Expression | None


def subqueries(plan: Plan, streams: Sequence[Stream]) -> dict[str, tuple[SubQuery, ...]]:
    """The sub-queries of each query, by the name of the query; `streams` are the streams that the plan reads."""
    by_name = {stream.name: stream for stream in streams}
    queries = {query.name: query for query in plan.all_queries}
    readers: dict[str, list[_Reader]] = {}
    for query in plan.all_queries:
        for part in query.sides.values() if isinstance(query, Join) else (query,):
            readers.setdefault(part.stream, []).append(_Reader(query.name, part.where))
    by_query: dict[str, tuple[SubQuery, ...]] = {}
    for group in plan.groups:
        positions = {member.query.name: _places(member) for member in group.queries}
        stream = by_name.get(group.stream, Stream(group.stream, ()))
        does = [f"map to keys and {'events' if group.events is not None else 'values'}"]
        if group.deduplicated is None and group.kind not in ("distinct", "processed"):
            does.append("split into atoms" if group.gaps_us else "add up by key and slice")
        for member in group.queries:
            # repeats are removed before WHERE is evaluated, and only on the instance that owns the key
            reader = member.query if group.deduplicated is None else _Reader(member.query.name, None)
            first = _first(f"{member.query.name}.1", reader, stream, queries, readers[group.stream], does)
            by_query[member.query.name] = first, _aggregate(member.query, group, positions)
    moved = {selection.name for selection in moved_selections(plan.selections, plan.compared_names)}
    for selection in plan.selections:
        stream = by_name.get(selection.stream, Stream(selection.stream, ()))
        does = [f"map {', '.join(item.name for item in selection.output)}"]
        first = _first(f"{selection.name}.1", selection, stream, queries, readers[selection.stream], does)
        how = "the rows of a source partition go to one instance, once for all queries that take them"
        route: Route = "round-robin"
        if is_by_owners(stream, plan.all_queries):
            how, route = "the events go to the instances that own their keys, once for all queries", "by key"
        if selection.name in moved:
            goes = "diff" if selection.sink.goes_nowhere else selection.sink.format
            first = msgspec.structs.replace(first, output_exchange=Exchange(goes, route, how))
        by_query[selection.name] = (first,)
    for joined in plan.joins.plans:
        join, parts = joined.join, []
        for number, side in enumerate(join.sides.values(), 1):
            stream = by_name.get(side.stream, Stream(side.stream, ()))
            does = ["map to keys and events"]
            mine = _Reader(join.name, side.where)
            parts.append(_first(f"{join.name}.{number}", mine, stream, queries, readers[side.stream], does))
        by_query[join.name] = *parts, _joined(joined, plan.joins)
    return {name: by_query[name] for name in sorted(by_query)}


def _first(
    part: str, query: _Reader | Query | Selection, stream: Stream, queries: Mapping[str, AnyQuery],
    readers: Sequence[_Reader], does: Sequence[str],
) -> SubQuery:  # fmt: skip
    """The sub-query that processes each event alone, in the task that reads it."""
    derived = stream.derived
    operators = [] if derived is None else [f"multi-input: {stream.name}"]
    operators += [] if query.where is None else [f"filter {render(query.where)}"]
    others = [other for other in readers if other.name != query.name]
    kept = "the derived stream" if derived else "the rows it reads" if stream.upstreams else "the read"
    alike = [one for one in others if query.where is not None and one.where == query.where]
    shared = [Shared(kept, _names(others)), Shared("the filter", _names(alike))]
    return SubQuery(part, (*operators, *does), tuple(_inputs(stream, queries)), _with_queries(shared))


_TO_JOIN: dict[str, tuple[Route, str]] = {
    "key": ("by key", "events; each goes to the instance that owns its key"),
    "": ("by key", "events; all go to one instance, as there is no key"),
    ROW: ("by hash", "events; each goes to the instances of one row of the grid"),
    COLUMN: ("by hash", "events; each goes to the instances of one column of the grid"),
    ONE: ("by hash", "events; each goes to one instance"),
    EVERY: ("broadcast", "events; each goes to every instance"),
}


def _joined(plan: JoinPlan, joins: Joins) -> SubQuery:
    """The sub-query of a join that stores both sides by key and emits pairs."""
    join = plan.join
    operators = [f"{join.kind} join {keys_text(join.left.keys)}, {near_text(join)}"]
    operators += [] if join.having is None else ["filter rows"]
    operators.append(f"map {', '.join(item.name for item in join.output)}")
    inputs = [
        Exchange(f"{join.name}.{number}", *_TO_JOIN[dealt(join, side) or ("key" if join.left.keys else "")])
        for number, side in enumerate(join.sides, 1)
    ]
    inputs.append(Exchange(f"{join.name}.1 and .2", "broadcast", "the newest event times"))
    logs = {side: joins.logs[at] for side, at in plan.logs.items()}
    others = {side: {one.name for one, _ in joins.users_of(log)} - {join.name} for side, log in logs.items()}
    shared = [Shared(f"the {side} events", tuple(sorted(names))) for side, names in others.items()]
    return SubQuery(f"{join.name}.3", tuple(operators), tuple(inputs), _with_queries(shared), _upserts(join))


def _inputs(stream: Stream, queries: Mapping[str, AnyQuery]) -> Iterator[Exchange]:
    for upstream in stream.upstreams:
        before = queries.get(upstream)
        part = 3 if isinstance(before, Join) else 1 if isinstance(before, Selection) else 2
        how = "a task for each instance that wrote rows, in the next epoch"
        yield Exchange(f"{upstream}.{part}", "point-to-point", how)
    if stream.upstreams:
        return
    for name in stream.derived.reads if stream.derived else (stream.name,):
        yield Exchange(name, "point-to-point", "a task for each source partition")
    joined = "" if stream.derived is None else stream.derived.text
    for key in _LOOKED_UP.findall(joined):
        why = why_by_readers(stream, queries.values())
        if why is None:
            yield Exchange(key, "by key", "looked up by the instance that owns the key, with one request per shard")
        else:
            how = f"looked up by the task that reads the events, with one request per batch and primary: {why}"
            yield Exchange(key, "point-to-point", how)
    if joined.count(_JOINED) > len(_LOOKED_UP.findall(joined)) and stream.order is not None:
        how = "completely, to each task, so that events keep their order"
        yield Exchange("tables it is joined with", "broadcast", how)


def _aggregate(query: Query, group: GroupPlan, places: Mapping[str, frozenset[int]]) -> SubQuery:
    """The sub-query that stores state by key and emits rows from it."""
    operators = [] if query.deduplicated is None else ["drop repeated events"]
    operators += [] if query.deduplicated is None or query.where is None else [f"filter {render(query.where)}"]
    verb = "rank" if any(one.function in ORDERED for one in query.aggregates) else "aggregate"
    if isinstance(query.window, Distinct):
        ranked = query.window.ranked
        verb = f"keep the {query.window.keeps or 'first'} event" if ranked is None else f"keep ranks up to {ranked}"
        counted = counted_rows(query.window)
        verb = verb if counted is None else f"keep the first {count_of(counted, 'event')}"
    verb = "keep the earliest event" if isinstance(query.window, Counted) and query.window.once else verb
    verb = "match the pattern" if isinstance(query.window, Pattern) else verb
    if isinstance(query.window, Processed):
        verb = f"process with {', '.join(function.label for function in query.user_functions.values())}"
    operators.append(f"{verb} {grouping_text(query)}")
    operators += [] if query.having is None else ["filter by HAVING"]
    operators.append(f"map {', '.join(item.name for item in query.output)}")
    first = f"{query.name}.1"
    form = "atoms" if group.gaps_us else "partial results or values, whichever are smaller"
    form = f"events, {form}" if group.events is not None else form
    form = f"counts of values, {form}" if group.tallies else form
    is_of_events = isinstance(query.window, Distinct | Processed)
    form = "events" if query.deduplicated is not None or is_of_events else form
    where = "one instance has the state" if not query.keys else "the instance that owns the key has its state"
    inputs = Exchange(first, "by key", f"{form}; {where}"), Exchange(first, "broadcast", "the newest event times")
    others = [name for name in places if name != query.name]
    kept = "the dictionary and the atoms" if group.gaps_us else "the dictionary and the slices"
    kept = "the keys and their first events" if isinstance(query.window, Distinct) else kept
    kept = "the dictionary and the events" if isinstance(query.window, Pattern) else kept
    kept = "the dictionary, the waiting events and the states" if isinstance(query.window, Processed) else kept
    shared = [Shared(kept, tuple(others))]
    mine = places[query.name]
    counts: dict[int, list[str]] = {}
    for name in others:
        counts.setdefault(len(mine & places[name]), []).append(name)
    for count in sorted(counts.keys() - {0}, reverse=True):
        shared.append(Shared(f"{count} of {count_of(len(mine), 'measure')}", tuple(counts[count])))
    return SubQuery(f"{query.name}.2", tuple(operators), inputs, _with_queries(shared), _upserts(query))


def _upserts(query: Query | Join) -> Exchange | None:
    """How rows get to those of other programs in Redis; None: the query has another sink."""
    if query.sink.format != REDIS:
        return None
    options = {name.lower(): value for name, value in query.sink.options}
    place = options.get("key", query.sink.format)
    if "address" in options:
        return Exchange(place, "point-to-point", "written by the driver")
    how = "with executors on several hosts, written by the instance that owns the hash slot of the row's key in Redis;"
    return Exchange(place, "by key", f"{how} else by the driver")


def _places(plan: QueryPlan) -> frozenset[int]:
    return frozenset({plan.presence, *(place for places in plan.measures for place in places)})


def _names(queries: Sequence[_Reader]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(query.name for query in queries))


def _with_queries(shared: Sequence[Shared]) -> tuple[Shared, ...]:
    return tuple(one for one in shared if one.queries)


def subquery_lines(plan: Plan, streams: Sequence[Stream]) -> Iterator[str]:
    """The lines about the sub-queries of all queries."""
    yield "sub-queries"
    for parts in subqueries(plan, streams).values():
        for part in parts:
            yield f"  {part.name}: {', then '.join(part.operators)}"
            for exchange in part.inputs:
                yield f"    from {exchange.place}, {exchange.route}: {exchange.how}"
            if part.output_exchange is not None:
                yield f"    to {part.output_exchange.place}, {part.output_exchange.route}: {part.output_exchange.how}"
            for one in part.shared:
                more = f" and {len(one.queries) - _NAMED} more" if len(one.queries) > _NAMED else ""
                yield f"    shares {one.what} with {', '.join(one.queries[:_NAMED])}{more}"
