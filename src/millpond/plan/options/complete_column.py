"""The column `_complete`, for queries that may emit incomplete windows.

The query itself emits only complete windows: TRUE. Its *early version*, in a separate group, emits the windows that
began before the query was added: FALSE, or TRUE from the first window start whose events were all replayed.
"""

from __future__ import annotations

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Call, Column, Expression, literal
from millpond.model.query import Named, Query, named_once
from millpond.model.selection import AnyQuery
from millpond.model.windows import RUNNING, Sliced

COMPLETE = "_complete"

_TRUE = Named(COMPLETE, literal(True, "boolean"))


def with_complete(query: AnyQuery) -> Query:
    """The query with the column `_complete`, which shows whether a row is complete.

    Raises:
        UnsupportedQuery: the windows have no fixed size, or rows may change, or the query leaves out repeated events.
        QueryTypeError: the query already has a column of this name.
    """
    fits = isinstance(query, Query) and isinstance(query.window, Sliced) and query.window != RUNNING
    if not isinstance(query, Query) or not fits or query.changing or query.deduplicated is not None:
        raise UnsupportedQuery(
            f"Rows of {query.name} cannot be emitted before they are complete.",
            "Use a tumbling or sliding window whose rows are emitted once, or leave this out.",
        )
    return msgspec.structs.replace(query, output=named_once((*query.output, _TRUE)))


def has_complete_column(query: AnyQuery) -> bool:
    """Whether the rows of a query have the column `_complete`."""
    return _TRUE in query.output


def early_version(query: Query, complete_from_us: int | None) -> Query:
    """The early version of a query: it emits the windows before the query's first one.

    `_complete` is TRUE for windows that start at or after `complete_from_us`, FALSE for earlier ones (None: for all).
    """
    is_complete: Expression = literal(False, "boolean")
    if complete_from_us is not None:
        start, from_us = Column("window.start", "timestamp"), literal(complete_from_us, "timestamp")
        is_complete = Call("ge", (start, from_us), "boolean")
    output = tuple(Named(COMPLETE, is_complete) if item == _TRUE else item for item in query.output)
    return msgspec.structs.replace(query, output=output)
