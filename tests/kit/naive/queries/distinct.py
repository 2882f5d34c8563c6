"""The naive twin of queries with one row for each distinct key: remembers keys in a dictionary, event by event."""

from __future__ import annotations

from collections.abc import Sequence

from kit.naive.expressions import Row, Value, evaluate, order
from kit.naive.queries import windows
from kit.naive.queries.windows import Batch
from millpond.model.query import Query
from millpond.model.windows import Distinct

Candidates = list[Row]
"""The events of which any one may be the first of its key: those of equal time, if the source has no order."""


def firsts(query: Query, epochs: Sequence[Batch]) -> list[list[Candidates]]:
    """For each epoch, the candidates of each key that has a row in it."""
    assert isinstance(query.window, Distinct)
    timed, lasts_us = bool(query.event_time), query.window.lasts_us
    marks: Sequence[int | None] = windows.watermarks(query, epochs) if timed else [None] * (len(epochs) + 1)
    until: dict[tuple[Value, ...], int | None] = {}
    found = []
    for batch, mark in zip(epochs, marks, strict=False):
        until = {key: end for key, end in until.items() if end is None or mark is None or end > mark}
        new: dict[tuple[Value, ...], Candidates] = {}
        for row in batch:
            time = row[query.event_time] if timed else 0
            if time is None or (mark is not None and time <= mark):
                continue
            if query.where is not None and evaluate(query.where, row) is not True:
                continue
            values = (evaluate(key, row) for key in query.keys)
            key = tuple(None if value is None else order(value) for value in values)
            if key not in until:
                new.setdefault(key, []).append(row)
        chosen = [_first(rows, timed, query.event_time) for rows in new.values()]
        for key, rows in zip(new, chosen, strict=True):
            until[key] = None if lasts_us is None else rows[0][query.event_time] + lasts_us
        found.append(chosen)
    return found


def first_rows(query: Query, epochs: Sequence[Batch]) -> list[list[Row]]:
    """For each epoch, the rows of a query that has only the first rows of its stream."""
    assert isinstance(query.window, Distinct) and isinstance(query.window.rows, int)
    left, found = query.window.rows, list[list[Row]]()
    for batch in epochs:
        taken = [row for row in batch if query.where is None or evaluate(query.where, row) is True]
        taken.sort(key=lambda row: _place(query, row))
        found.append(taken[:left])
        left -= len(found[-1])
    return found


def _place(query: Query, row: Row) -> tuple[Value, ...]:
    """By what the rows of an epoch are ordered: as in the source, else by their values."""
    if "o" in row:
        return str(row["p"]), row["o"]
    values = (evaluate(value, row) for value in query.of_event)
    return tuple((value is not None, 0 if value is None else order(value)) for value in values)


def _first(rows: Candidates, timed: bool, event_time: str) -> Candidates:
    if "o" in rows[0]:
        return [min(rows, key=lambda row: (str(row["p"]), row["o"]))]
    if not timed:
        return rows
    first = min(row[event_time] for row in rows)
    return [row for row in rows if row[event_time] == first]
