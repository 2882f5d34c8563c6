"""The columns that late rows of a query are written with, and which queries want them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Expression, Foreign, columns_of, walk
from millpond.model.query import Query
from millpond.model.stream import Stream
from millpond.model.types import is_known
from millpond.plan.groups.plan import Plan

LATE_WATERMARK = "_watermark"
"""Column: the event was late because its time is at or below this."""

LATE_EPOCH = "_epoch"
"""Column: the record that wrote the row."""


class LateAsk(msgspec.Struct, frozen=True):
    """A query that wants its late events: those of `group` whose class is above `delay`, and for which `where` is TRUE.

    `delay` is the position of `delay_us` among the delays of the group.
    """

    query: str
    group: str
    delay: int
    delay_us: int
    where: Expression | None
    columns: tuple[str, ...]


def late_asks(plan: Plan, streams: Sequence[Stream]) -> dict[str, tuple[LateAsk, ...]]:
    """Stream -> the queries over it that want their late events; streams without one are left out."""
    by_name = {stream.name: stream for stream in streams}
    found: dict[str, list[LateAsk]] = {}
    for group in plan.groups:
        for query in group.queries:
            asked = query.query
            if asked.late_sink is not None:
                columns = late_columns(asked, by_name[group.stream])
                ask = LateAsk(asked.name, group.id, query.delay, asked.late_after_us, asked.where, columns)
                found.setdefault(group.stream, []).append(ask)
    return {stream: tuple(asks) for stream, asks in found.items()}


def late_columns(query: Query, stream: Stream) -> tuple[str, ...]:
    """The columns of the stream that the query reads, event time first, then source partition and offset if any."""
    parts: list[Expression | None] = [*query.keys, *query.of_event, query.where]
    for aggregate in query.aggregates:
        parts += [*aggregate.arguments, aggregate.filter]
    parts += () if query.deduplicated is None else query.deduplicated.columns
    read: set[str] = set()
    for part in parts:
        if part is not None:
            foreign = [node for node in walk(part) if isinstance(node, Foreign)]
            # what Spark computed is written as what it was computed from
            read |= columns_of(part) - {node.name for node in foreign}
            read.update(name for node in foreign for name in node.columns)
    first = [query.event_time]
    if stream.order is not None:
        first += stream.order.columns
    return tuple(dict.fromkeys([*first, *(field.name for field in stream.columns if field.name in read)]))


def check_late(query: Query, stream: Stream) -> None:
    """Refuse late events that could not be written.

    Raises:
        UnsupportedQuery: a column's type has no place in a row, a name is taken, or the sink keeps nothing.
    """
    sink = query.late_sink
    if sink is None:
        return
    if sink.format == "noop":
        raise UnsupportedQuery(f"The late rows of {query.name} would go nowhere.", "Name a sink, or leave it out.")
    types = {field.name: field.type for field in stream.columns}
    for name in late_columns(query, stream):
        if name in (LATE_WATERMARK, LATE_EPOCH):
            raise UnsupportedQuery(f"Late rows have a column {name} of their own.", f"Rename that of {stream.name}.")
        if not is_known(types[name]):
            raise UnsupportedQuery(
                f"The late rows of {query.name} would hold the column {name} of type {types[name]}.",
                "Leave out the late sink, or the column.",
            )
