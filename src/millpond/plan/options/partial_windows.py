"""Incomplete windows: rows of windows that began before a query was added, emitted on request and marked `_complete`.

The query itself emits complete windows, so its column is TRUE. Windows that are open when it is added, and that no
retained data completes, are computed by an early version in a group of its own: from events since the change and from
replayed ones.
"""

from __future__ import annotations

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Call, Column, Expression, literal
from millpond.model.query import Named, Query, named_once
from millpond.model.selection import AnyQuery
from millpond.model.windows import RUNNING, Sliding

COMPLETE = "_complete"

_TRUE = Named(COMPLETE, literal(True, "boolean"))


def with_complete(query: AnyQuery) -> Query:
    """The query with the column `_complete`, which shows whether a row is complete.

    Raises:
        UnsupportedQuery: the windows have no fixed size, or rows may change, or the query leaves out repeated events.
        QueryTypeError: the query already has a column of this name.
    """
    fits = isinstance(query, Query) and isinstance(query.window, Sliding) and query.window != RUNNING
    if not isinstance(query, Query) or not fits or query.changing or query.deduplicated is not None:
        raise UnsupportedQuery(
            f"Rows of {query.name} cannot be told before they are complete.",
            "Use a tumbling or sliding window whose rows leave once, or leave this out.",
        )
    return msgspec.structs.replace(query, output=named_once((*query.output, _TRUE)))


def tells_complete(query: AnyQuery) -> bool:
    """Whether the rows of a query have the column `_complete`."""
    return _TRUE in query.output


def early_version(query: Query, whole_us: int | None) -> Query:
    """The early version of a query: it emits earlier windows; those that start at or after `whole_us` are complete."""
    told: Expression = literal(False, "boolean")
    if whole_us is not None:
        told = Call("ge", (Column("window.start", "timestamp"), literal(whole_us, "timestamp")), "boolean")
    output = tuple(Named(COMPLETE, told) if item == _TRUE else item for item in query.output)
    return msgspec.structs.replace(query, output=output)
