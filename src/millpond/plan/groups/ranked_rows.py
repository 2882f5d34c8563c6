"""Which of a key's events have rows, which ranks these rows show, and whether a row replaces an earlier one."""

from __future__ import annotations

import msgspec

from millpond.model.expressions import Column, walk
from millpond.model.query import Query
from millpond.model.windows import Distinct, Window


def counted_rows(window: Window) -> int | None:
    """Of how many of its first events a key has rows, if they are counted; None: of one, or of chosen events."""
    if not isinstance(window, Distinct) or window.keeps or isinstance(window.rows, msgspec.UnsetType):
        return None
    return window.rows


def shown_ranks(query: Query) -> list[int]:
    """Which of its ranks the rows of a query show, by position."""
    parts = {node for item in query.output for node in walk(item.expression)}
    return [i for i, rank in enumerate(query.aggregates) if Column(f"agg:{i}", rank.type) in parts]


def numbered_rows(query: Query) -> tuple[str, int] | None:
    """The output column with the number of a row among the rows of its key, and the position of this rank; None: rows
    do not show it.
    """
    for i, rank in enumerate(query.aggregates):
        names = [item.name for item in query.output if item.expression == Column(f"agg:{i}", rank.type)]
        if names and rank.function == "row_number":
            return names[0], i
    return None


def keys_shown(query: Query) -> tuple[str | None, ...]:
    """For each key of a query whose rows show one event, the output column with the key; None: it is not shown."""
    shown = {item.expression.name: item.name for item in query.output if isinstance(item.expression, Column)}
    values = {value: shown.get(f"event:{place}") for place, value in enumerate(query.of_event)}
    return tuple(values.get(key) for key in query.keys)


def replaces_rows(query: Query) -> bool:
    """Whether rows show their key and their number, so that a row replaces an earlier one with the same of both."""
    return numbered_rows(query) is not None and None not in keys_shown(query)
