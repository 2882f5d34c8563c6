"""Parameters that the rows of a query set: which rows and column, and how values are derived from them.

A value is a function of one record: of the rows that an epoch emits for the newest window among them. It is in force
from the next epoch on, until rows of a later epoch replace it. An epoch that emits no row of the query changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from millpond.model.change_history import Feeding
from millpond.model.expressions import Literal, is_list, listed
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.types import element_of, is_float, is_integer
from millpond.plan.upstream.rows_as_stream import bounds_of

Share: TypeAlias = tuple[int, list[str] | None]
"""What one instance reports: the time of its newest window, and the constants in its rows as texts (None: too many)."""


class Feed(msgspec.Struct, frozen=True):
    """A parameter of type `kind` that takes its values from `column` of a query's rows since record `n`.

    `time` is the column that identifies the window of a row.
    """

    name: str
    query: str
    column: str
    time: str
    kind: str
    n: int


def feeds_of(
    feeds: Mapping[str, Feeding], parameters: Mapping[str, Literal], queries: Iterable[AnyQuery]
) -> tuple[Feed, ...]:
    """The feeds in force, sorted by parameter."""
    by_name = {query.name: query for query in queries}
    result = []
    for name, feeding in sorted(feeds.items()):
        query = by_name.get(feeding.query)
        time = newest_by(query) if isinstance(query, Query) else None
        if time is not None:
            result.append(Feed(name, feeding.query, feeding.column, time, parameters[name].type, feeding.n))
    return tuple(result)


def newest_by(query: Query) -> str | None:
    """The column of a query's rows that shows which window is the newest; None if no column does."""
    return min(bounds_of(query), default=None)


def fed_type(parameter: Literal) -> str:
    """The type of a parameter; for a list, the type of its members."""
    return element_of(parameter.type) if is_list(parameter.type) else parameter.type


def member_type(kind: str) -> str | None:
    """The type of the parameters that a column of type `kind` can feed; None if it can feed none."""
    if is_integer(kind):
        return "bigint"
    return "double" if is_float(kind) else "string" if kind == "string" else None


def merged(one: Share | None, other: Share) -> Share:
    """Merges two shares: the share of the newer window, or both together if they are of the same window."""
    if one is None or other[0] > one[0]:
        return other
    if one[0] > other[0]:
        return one
    return (one[0], None if one[1] is None or other[1] is None else [*one[1], *other[1]])


def value_of(feed: Feed, share: Share) -> Literal | None:
    """The value that the rows give the parameter; None if they contain only NULLs, or too many values."""
    if share[1] is None:
        return None
    if is_list(feed.kind):
        return listed([Literal(text, element_of(feed.kind)) for text in share[1]], element_of(feed.kind))
    members = [Literal(text, feed.kind) for text in share[1]]
    return max(members, key=lambda one: one.value, default=None)  # type: ignore[arg-type, return-value]
