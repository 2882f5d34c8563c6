"""Copies the steps of a text: the early version of a query that is added with a backfill reads copies of its steps.

A copy computes the same as the original, but begins with the events that are read again. The original begins later, so
that it can share its state with other queries. Each addition makes copies of its own names, because rows under a name
that a dropped query has used would be late for it: the log keeps the event time that a stream has reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.query import Query
from millpond.model.stream import Stream
from millpond.plan.upstream.rows_as_stream import inner_stream
from millpond.plan.upstream.steps import over, step_name


class StepCopies(NamedTuple):
    """A query over copies of its steps; `lowest` reads the source, and `streams` are the rows of all copies.

    Without inner queries the query itself is the lowest.
    """

    query: Query
    lowest: Query
    streams: tuple[Stream, ...] = ()


def copied_steps(query: Query, version: str, streams: Mapping[str, Stream], n: int) -> StepCopies:
    """The version named `version` of a query that record `n` adds, over copies of its steps.

    Raises:
        UnsupportedQuery: a step has several inputs, or is no aggregation.
    """
    named = msgspec.structs.replace(query, name=version)
    steps = streams[query.stream].steps if query.stream in streams else ()
    if not steps:
        return StepCopies(named, named)
    if len(steps) > 1 or not isinstance(steps[0], Query):
        what = "is a UNION ALL" if len(steps) > 1 else "joins streams, or has no aggregates"
        raise UnsupportedQuery(
            f"A step {what}, so it cannot be computed from events that are read again.",
            "Leave the backfill out, or begin a new pond, which reads from the beginning.",
        )
    copy_name = step_name(msgspec.structs.replace(steps[0], stream=f"{version} {n}"), query.event_time)
    below = copied_steps(steps[0], copy_name, streams, n)
    rows = inner_stream(below.query)
    made = over(named, {query.stream: rows.name})
    assert isinstance(made, Query)
    return StepCopies(made, below.lowest, (*below.streams, rows))
