"""Plans deduplication: which queries can drop repeated events, and what their group stores for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.expressions import Column, columns_of, foreigns_in
from millpond.model.join import Join
from millpond.model.query import Deduplication, Query
from millpond.model.stream import Stream
from millpond.model.types import is_known
from millpond.model.windows import Framed, Session
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.plan import Measure

WHOLE = "*"
"""Stands for every column of the stream except source partition and offset."""


def deduplicated(query: Query | Join, stream: Stream, names: Sequence[str], within_us: int) -> Query:
    """The query over its stream without repeated events.

    Events are routed by key, so equal events must have equal keys: `names` must determine the key.

    Raises:
        QueryTypeError: a column does not exist, or the query has no event time.
        UnsupportedQuery: the columns do not determine the key, or this kind of query cannot be
            deduplicated.
    """
    if isinstance(query, Join):
        raise UnsupportedQuery(
            f"{query.name} is a join, and leaves repeated events out, which is not supported.",
            "Join all events, and leave repeated rows out in a query without a join.",
        )
    if within_us < 0:
        raise QueryTypeError(f"{query.name} compares events within {within_us} µs.", "Use a positive time.")
    types = {field.name.lower(): field for field in stream.columns}
    names = compared(stream, names, types)
    for name in names:
        if not is_known(types[name.lower()].type):
            what = f"DISTINCT and dropDuplicates cannot compare {name}, an {types[name.lower()].type}."
            raise UnsupportedQuery(what, "Name other columns.")
    fields = [types[name.lower()] for name in names]
    _check(query, [field.name for field in fields])
    columns = tuple(Column(field.name, field.type) for field in fields)
    return msgspec.structs.replace(query, deduplicate=Deduplication(columns, within_us))


def compared(stream: Stream, names: Sequence[str], known: Collection[str]) -> Sequence[str]:
    """The names of the columns that are compared: `names`, where `WHOLE` alone means all but the order of the stream.

    `known` are all names that may be given, in lower case.

    Raises:
        QueryTypeError: a column does not exist.
    """
    if list(names) == [WHOLE]:
        order = () if stream.order is None else stream.order.columns
        names = [field.name for field in stream.columns if field.name not in order]
    for name in names:
        if name.lower() not in known:
            raise QueryTypeError(f"{stream.name} has no column {name} to compare.", f"It has {', '.join(known)}.")
    return names


def _check(query: Query, names: Sequence[str]) -> None:
    read: dict[str, None] = {}
    for key in query.keys:
        foreign = foreigns_in(key)
        read.update(dict.fromkeys(sorted(columns_of(key) - {node.name for node in foreign})))
        read.update(dict.fromkeys(name for node in foreign for name in node.columns))
    missing = [name for name in read if name not in names]
    if missing:
        raise UnsupportedQuery(
            f"Events of {query.name} equal in {', '.join(names)} may differ in {missing[0]}, which its key reads.",
            f"Compare {missing[0]} too: 'deduplicate' = '{', '.join([*names, *missing])}'.",
        )
    what = "has session windows" if isinstance(query.window, Session) else ""
    if isinstance(query.window, Framed):
        what = "has windows that are runs of events"
    if any(aggregate.logged for aggregate in query.aggregates):
        what = "has an aggregate that needs single events"
    if what:
        raise UnsupportedQuery(
            f"{query.name} leaves repeated events out, and {what}, which is not supported.", "Leave one out."
        )


def deduplication_log(found: Deduplication, kept: Sequence[Measure]) -> LogPlan:
    """The event log of a group with deduplication: all values of its measures, until repeats are known."""
    values = dict.fromkeys(value for measure in kept for value in measure.values)
    filters = dict.fromkeys(measure.filter for measure in kept if measure.filter is not None)
    return LogPlan(tuple(dict.fromkeys([*values, *found.columns])), tuple(filters), True)
