"""Determines the columns that identify a row in a sink with one row per key."""

from __future__ import annotations

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Column
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.windows import RUNNING


def key_columns(query: AnyQuery) -> tuple[str, ...]:
    """The output columns that identify a row: its window, then its key; none for rows of single events.

    Raises:
        UnsupportedQuery: the query does not output all of these columns.
    """
    if not isinstance(query, Query) or query.of_event:
        return ()
    shown = {item.expression.name: item.name for item in query.output if isinstance(item.expression, Column)}
    windows = [shown[name] for name in ("window", "window.start", "window.end") if name in shown]
    keys = [shown.get(f"key:{place}") for place in range(len(query.keys))]
    windowless = not windows and query.window != RUNNING
    if windowless or None in keys:
        lacking = "its window" if windowless else "all its key columns"
        raise UnsupportedQuery(
            f"Nothing tells rows of {query.name} apart: it does not put out {lacking}.", "Add them to its SELECT."
        )
    return (*windows, *(key for key in keys if key is not None))
