"""Finds which columns of a stream a query reads."""

from __future__ import annotations

from millpond.model.expressions import columns_of
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection, expressions_of
from millpond.model.stream import Stream


def columns_read(query: AnyQuery, stream: Stream) -> set[str]:
    """The columns that the query reads of a stream, without those for late rows; none if it does not read it."""
    if stream.name not in query.streams:
        return set()
    if isinstance(query, Join):
        sides = [side for side in query.sides.values() if side.stream == stream.name]
        return {side.event_time for side in sides}.union(
            *(columns_of(part) for side in sides for part in side.expressions)
        )
    names = set[str]().union(*map(columns_of, expressions_of(query)))
    if isinstance(query, Query):
        names |= {query.event_time} - {""}
    if isinstance(query, Selection) and query.timing is not None:
        names.add(query.timing[0])
    return names
