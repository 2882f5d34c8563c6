"""Steps: inner queries of one text that keeps state several times, such as an aggregation of an aggregation.

The text is one query for its user. Its last step is the registered query; each earlier step is an *inner query*, which
is stored in the stream of its rows (`Stream.inner`, or `Stream.united` for the branches of a UNION ALL). So an inner
query exists as long as some query reads its rows, directly or through other inner queries. Its name is a digest of what
it computes, so equal steps of different queries are one inner query.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from millpond.model.join import Join
from millpond.model.selection import INNER, AnyQuery, Selection
from millpond.model.stream import Stream


def step_name(query: AnyQuery, event_time: str) -> str:
    """The name of an inner query; `event_time`: the column that its reader uses, as a stream has one event time."""
    return _digest(_plain(query), event_time)


def united_names(queries: Sequence[AnyQuery], event_time: str) -> tuple[str, list[str]]:
    """The name of the stream of a UNION ALL, and the name of each of its branches, which may be equal queries."""
    name = _digest(*map(_plain, queries), event_time)
    return name, [_digest(name, number) for number in range(len(queries))]


def _plain(query: AnyQuery) -> AnyQuery:
    return msgspec.structs.replace(query, name="", text="")


def _digest(*parts: object) -> str:
    digest = hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()
    return f"{INNER}{digest[:16]}"


def inner_of(query: AnyQuery, streams: Mapping[str, Stream]) -> tuple[AnyQuery, ...]:
    """The inner queries of one query, lowest first."""
    found: dict[str, AnyQuery] = {}
    for name in query.streams:
        for step in streams[name].steps if name in streams else ():
            found |= {one.name: one for one in (*inner_of(step, streams), step)}
    return tuple(found.values())


def with_inner(queries: Iterable[AnyQuery], streams: Mapping[str, Stream]) -> tuple[AnyQuery, ...]:
    """The queries with their inner queries; each query once, after its own inner queries."""
    found: dict[str, AnyQuery] = {}
    for query in queries:
        found |= {one.name: one for one in (*inner_of(query, streams), query)}
    return tuple(found.values())


def streams_of(query: AnyQuery, streams: Mapping[str, Stream]) -> tuple[str, ...]:
    """The streams that a query and its inner queries read, lowest first."""
    return tuple(dict.fromkeys(name for one in with_inner([query], streams) for name in one.streams))


def inputs_of(query: AnyQuery, streams: Mapping[str, Stream]) -> tuple[str, ...]:
    """The streams that a query reads as its user sees it: without the rows of its inner queries."""
    return tuple(name for name in streams_of(query, streams) if name not in streams or not streams[name].steps)


def ttl_us_of(query: AnyQuery, streams: Mapping[str, Stream]) -> int | None:
    """The `state.ttl` of a query, which one of its steps uses; None: it has none."""
    given = (one.ttl_us for one in with_inner([query], streams) if not isinstance(one, Selection))
    return next((ttl for ttl in given if isinstance(ttl, int)), None)


def late_by_of_steps(query: AnyQuery, streams: Mapping[str, Stream]) -> str | None:
    """The rule by which events of the inner queries of a query are late; None: none of them has such a rule."""
    given = (one.late_by for one in inner_of(query, streams) if not isinstance(one, Selection))
    return next((rule for rule in given if isinstance(rule, str)), None)


def over(query: AnyQuery, names: Mapping[str, str]) -> AnyQuery:
    """The query with other names of its streams; streams that `names` lacks keep theirs."""
    if isinstance(query, Join):
        left, right = (
            msgspec.structs.replace(side, stream=names.get(side.stream, side.stream)) for side in query.sides.values()
        )
        return msgspec.structs.replace(query, left=left, right=right)
    return msgspec.structs.replace(query, stream=names.get(query.stream, query.stream))


def times_in(query: AnyQuery, stream: str) -> tuple[str, ...]:
    """The event-time columns that a query uses of a stream."""
    if isinstance(query, Join):
        times = (side.event_time for side in query.sides.values() if side.stream == stream)
        return tuple(dict.fromkeys(times))
    if isinstance(query, Selection):
        return () if query.timing is None or query.stream != stream else (query.timing[0],)
    return (query.event_time,) if query.event_time and query.stream == stream else ()
