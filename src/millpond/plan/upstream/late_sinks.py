"""Decides which queries write late events to a late sink, with which columns.

Refuses late sinks that cannot be written. A text of several steps writes the events that are late for its only step
over events; the rows that later steps read are never late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Expression, columns_of, foreigns_in
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, is_inner
from millpond.model.stream import Stream
from millpond.model.types import is_known
from millpond.model.windows import Sliced
from millpond.plan.groups.plan import Plan
from millpond.plan.upstream.steps import with_inner

LATE_WATERMARK = "_watermark"
"""Column with the watermark of the query, its delay already subtracted; an event at or before this time is late."""

LATE_EPOCH = "_epoch"
"""Column with the number of the record that wrote the row."""


class LateSink(msgspec.Struct, frozen=True):
    """A query with a late sink: it writes the events of `group` that meet `where` and are late for the query.

    These are the events whose lateness class is above `delay_index`, the position of `delay_us` among the delays of the
    group. `late_by`: as in the group.
    """

    query: str
    group: str
    delay_index: int
    delay_us: int
    where: Expression | None
    columns: tuple[str, ...]
    late_by: Sliced | None = None


def late_sinks(plan: Plan, streams: Sequence[Stream]) -> dict[str, tuple[LateSink, ...]]:
    """The queries with a late sink, by stream; streams without such queries are left out."""
    by_name = {stream.name: stream for stream in streams}
    planned = {one.query.name: (group, one) for group in plan.groups for one in group.queries}
    found: dict[str, list[LateSink]] = {}
    for name, (_, query) in planned.items():
        step = _step_over_events(query.query, by_name) if query.query.late_sink is not None else None
        if isinstance(step, Query) and step.name in planned:
            group, judged = planned[step.name]
            columns = late_columns(step, by_name[step.stream])
            sink = LateSink(name, group.id, judged.delay, step.late_after_us, step.where, columns, group.late_by)
            found.setdefault(step.stream, []).append(sink)
    return {stream: tuple(sinks) for stream, sinks in found.items()}


def late_columns_read(queries: Iterable[AnyQuery], streams: Mapping[str, Stream]) -> dict[str, set[str]]:
    """The columns of each stream that late sinks write."""
    found: dict[str, set[str]] = {}
    for query in queries:
        step = _step_over_events(query, streams) if isinstance(query, Query) and query.late_sink is not None else None
        if isinstance(step, Query):
            found.setdefault(step.stream, set()).update(late_columns(step, streams[step.stream]))
    return found


def _step_over_events(query: AnyQuery, streams: Mapping[str, Stream]) -> AnyQuery | None:
    """The only step of a query that reads other rows than those of inner queries; None: there are several."""
    found = [one for one in with_inner([query], streams) if not all(map(is_inner, one.streams))]
    return found[0] if len(found) == 1 else None


def late_columns(query: Query, stream: Stream) -> tuple[str, ...]:
    """The columns of the stream that the query reads, event time first, then source partition and offset if any."""
    parts: list[Expression | None] = [*query.keys, *query.of_event, query.where]
    for aggregate in query.aggregates:
        parts += [*aggregate.arguments, aggregate.filter]
    parts += () if query.deduplicated is None else query.deduplicated.columns
    read: set[str] = set()
    for part in parts:
        if part is not None:
            foreign = foreigns_in(part)
            # a foreign expression is written as the columns that Spark computed it from
            read |= columns_of(part) - {node.name for node in foreign}
            read.update(name for node in foreign for name in node.columns)
    first = [query.event_time] if query.event_time else []
    if stream.order is not None:
        first += stream.order.columns
    return tuple(dict.fromkeys([*first, *(field.name for field in stream.columns if field.name in read)]))


def check_late(query: Query, streams: Mapping[str, Stream]) -> None:
    """Refuses a late sink whose rows could not be written.

    Raises:
        UnsupportedQuery: a column's type is not supported in rows, a name is reserved, the sink is `noop`, or it is not
            one step with windows that reads the events.
    """
    sink = query.late_sink
    if sink is None:
        return
    if sink.goes_nowhere:
        raise UnsupportedQuery(f"The late rows of {query.name} would go nowhere.", "Name a sink, or leave it out.")
    step = _step_over_events(query, streams)
    if not isinstance(step, Query):
        raise UnsupportedQuery(
            f"{query.name} reads events in a join, a UNION ALL or several aggregations, so its late events differ in "
            "columns and delays.",
            "Leave out 'late', or make the lower aggregation a query of its own with it, and read its rows: FROM "
            "STREAM lower.",
        )
    stream = streams[step.stream]
    types = {field.name: field.type for field in stream.columns}
    for name in late_columns(step, stream):
        if name in (LATE_WATERMARK, LATE_EPOCH):
            raise UnsupportedQuery(f"Late rows already have a column {name}.", f"Rename that of {stream.name}.")
        if not is_known(types[name]):
            raise UnsupportedQuery(
                f"The late rows of {query.name} would hold the column {name} of type {types[name]}.",
                "Leave out the late sink, or the column.",
            )
