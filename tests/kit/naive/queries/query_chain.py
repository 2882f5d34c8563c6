"""The naive twin of queries over queries: the rows of one loop in an epoch are events of another in the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kit.naive.queries.windows import Batch, Result, answer_by_epoch, watermarks
from millpond.model.query import Query
from millpond.model.types import WINDOW
from millpond.model.windows import Session
from millpond.plan.chains.upstream import bounds_of


def chain_by_epoch(
    queries: Sequence[Query], epochs: Sequence[Batch], *, drained: bool = False
) -> list[list[list[Result]]]:  # fmt: skip
    """The rows of each query in each epoch; every query but the first reads the rows of the previous one.

    `drained`: one more epoch per query follows; each closes the windows of one more query.
    """
    first, *others = queries
    answered = [answer_by_epoch(first, epochs, drained=drained)]
    marks = watermarks(first, epochs)
    for upstream, query in zip(queries, others, strict=False):
        # one epoch later, with the watermark that the upstream had reached
        marks = [None, *(_mark(upstream, query, mark) for mark in marks)]
        events: list[Batch] = [[], *(as_events(upstream, rows) for rows in answered[-1])]
        if drained:
            # the last events belong to windows that a drain closed: their epoch closes all windows
            *rows, last, rest = answer_by_epoch(query, events, drained=True, marks=[*marks, None])
            answered.append([*rows, last + rest])
        else:
            marks = marks[:-1]
            answered.append(answer_by_epoch(query, events[:-1], marks=marks))
    return answered


def as_events(upstream: Query, rows: Sequence[Result]) -> list[Result]:
    """Rows with each window as two columns."""
    windows = [item.name for item in upstream.output if item.expression.type == WINDOW]
    flat = []
    for row in rows:
        plain = dict(row)
        for name in windows:
            bounds = row[name]
            assert isinstance(bounds, Mapping)
            plain |= {f"{name}.{part}": value for part, value in bounds.items()}
            plain[f"{name}.time"] = bounds["end"] - 1
        flat.append(plain)
    return flat


def _mark(upstream: Query, query: Query, mark: int | None) -> int | None:
    """The watermark of a query: the smallest possible time of a row of an open window, minus the query's delay."""
    return None if mark is None else mark_of_rows(upstream, query.event_time, mark) - query.delay_us


def mark_of_rows(upstream: Query, event_time: str, mark: int) -> int:
    """One microsecond before the smallest possible time of a row of an open window."""
    if isinstance(upstream.window, Session):
        start, end = mark, mark + 1
    else:
        start, end = min(upstream.window.assign(mark), key=lambda bounds: bounds.end_us)
    least = {"start": start, "end": end, "time": end - 1}[bounds_of(upstream)[event_time]]
    return least - 1
