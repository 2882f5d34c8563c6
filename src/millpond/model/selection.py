"""Selections, also called stateless queries: each event is processed alone, in the epoch that reads it."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import msgspec

from millpond.model.budget import Budget
from millpond.model.endpoints import Sink
from millpond.model.expressions import Expression, Foreign, foreigns_in
from millpond.model.join import Join
from millpond.model.patterns.variables import split
from millpond.model.query import Named, Query, query_html
from millpond.model.types import WINDOW
from millpond.model.windows import Pattern


class Selection(msgspec.Struct, frozen=True, cache_hash=True):
    """A query without a window: each event that WHERE takes is emitted as one row, in the epoch that reads it.

    `where` and `output` are over the stream's columns. The query has no key, so it is not served. No event is late for
    it. `event_time` and `delay_us` are set for a branch of a UNION ALL whose readers use the event time: they say when
    rows up to some time are complete.
    """

    name: str
    stream: str
    output: tuple[Named, ...]
    where: Expression | None = None
    sink: Sink = Sink()
    text: str = ""
    budget: Budget | msgspec.UnsetType = msgspec.UNSET
    zone: str | msgspec.UnsetType = msgspec.UNSET
    event_time: str | msgspec.UnsetType = msgspec.UNSET
    delay_us: int | msgspec.UnsetType = msgspec.UNSET

    def _repr_html_(self) -> str:
        """How a notebook shows the query."""
        return query_html(self.name, self.text)

    @property
    def timing(self) -> tuple[str, int] | None:
        """The event-time column and its delay; None if no reader of the rows uses the event time."""
        if isinstance(self.event_time, msgspec.UnsetType) or isinstance(self.delay_us, msgspec.UnsetType):
            return None
        return self.event_time, self.delay_us

    @property
    def streams(self) -> tuple[str, ...]:
        """The stream that the query reads, as a tuple of one name."""
        return (self.stream,)

    @property
    def serve(self) -> bool:
        """Whether the latest row per key is kept in the view: never."""
        return False

    @property
    def late_sink(self) -> Sink | None:
        """The late sink: there is none, because no event is late."""
        return None


AnyQuery: TypeAlias = Query | Selection | Join
"""A query of any kind."""

INNER = "inner@x"
"""Begins the name of each inner query; a query of a user has no `@` in its name."""


def is_inner(name: str) -> bool:
    """Whether a name is that of an inner query, which its user does not know."""
    return name.startswith(INNER)


def query_name(version: str) -> str:
    """The query to which the rows of a version belong; the rows of a shadow belong to the shadow itself.

    >>> query_name("spend@2"), query_name("spend"), query_name("spend@shadow")
    ('spend', 'spend', 'spend@shadow')
    """
    name, _, number = version.rpartition("@")
    return name if name and number.isdecimal() else version


def zone_of(query: AnyQuery) -> str | None:
    """The time zone of a query; None: that of the session."""
    return None if isinstance(query.zone, msgspec.UnsetType) else query.zone


@lru_cache(1 << 12)
def foreign_above(query: AnyQuery) -> tuple[Foreign, ...]:
    """The distinct expressions over results that only Spark evaluates, in a fixed order."""
    if isinstance(query, Selection):
        return ()
    parts = [item.expression for item in query.output] + ([] if query.having is None else [query.having])
    parts += [query.condition] if isinstance(query, Join) and query.condition is not None else []
    parts += [] if query.unnested is None else [query.unnested]
    return tuple(dict.fromkeys(node for part in parts for node in foreigns_in(part)))


def foreign_below(query: AnyQuery) -> tuple[Foreign, ...]:
    """The expressions over a stream's columns that only Spark evaluates."""
    return tuple(node for part in expressions_of(query) for node in foreigns_in(part))


def foreign_keys(query: AnyQuery) -> frozenset[str]:
    """The keys of all expressions of a query that only Spark evaluates."""
    return frozenset(node.key for node in (*foreign_below(query), *foreign_above(query)))


def input_type(query: Query | Join, name: str) -> str:
    """The type of an input of an expression over results, such as `key:0` or, of a join, `left:0` and `left:window`."""
    kind, _, number = name.partition(":")
    if isinstance(query, Join) and number.isdecimal():
        return query.sides[kind].values[int(number)].type
    if isinstance(query, Join):
        return WINDOW if number == "window" else "timestamp"
    if kind == "agg":
        return query.aggregates[int(number)].type
    if kind in ("key", "event"):
        return (query.keys if kind == "key" else query.of_event)[int(number)].type
    return WINDOW if name == "window" else "timestamp"


def expressions_of(any_query: AnyQuery) -> tuple[Expression, ...]:
    """Every expression over a stream's columns that the query evaluates."""
    if isinstance(any_query, Join):
        return (*any_query.left.expressions, *any_query.right.expressions)
    parts: list[Expression | None] = [any_query.where]
    if isinstance(any_query, Selection):
        parts += [item.expression for item in any_query.output]
    else:
        parts += [*any_query.keys, *any_query.of_event]
        for aggregate in any_query.aggregates:
            parts += [*aggregate.arguments, split(aggregate.filter)[1]]
        parts += any_query.window.expressions if isinstance(any_query.window, Pattern) else ()
        parts += () if any_query.deduplicated is None else any_query.deduplicated.columns
    return tuple(part for part in parts if part is not None)
