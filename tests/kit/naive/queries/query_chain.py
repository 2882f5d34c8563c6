"""The naive twin of queries over queries: the rows of one loop in an epoch are events of another in the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from kit.naive.queries.windows import Batch, Result, Row, answer_by_epoch, watermarks
from millpond.model.expressions import Column, Literal
from millpond.model.query import Query
from millpond.model.selection import Selection
from millpond.model.types import WINDOW
from millpond.model.windows import Counted, Range, Session
from millpond.plan.upstream.rows_as_stream import bounds_of


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


def union_by_epoch(
    branches: Sequence[Query | Selection], reader: Query, epochs: Sequence[Batch], *, drained: bool = False
) -> list[list[Result]]:
    """The rows in each epoch of a query over the rows of all `branches`, whose watermark is the least of theirs.

    A stateless branch emits its events as they come. `drained`: two more epochs follow, one per level.
    """
    rows: list[Batch] = [[] for _ in range(len(epochs) + drained)]
    marks: list[list[int | None]] = []
    for branch in branches:
        if isinstance(branch, Query):
            answered = [as_events(branch, rows) for rows in answer_by_epoch(branch, epochs, drained=drained)]
            reached = [None if mark is None else mark_of_rows(branch, "t", mark) for mark in watermarks(branch, epochs)]
        else:
            assert branch.timing is not None
            answered = [[_emitted(branch, event) for event in epoch] for epoch in epochs]
            reached = watermarks(replace(reader, event_time=branch.timing[0], delay_us=branch.timing[1]), epochs)
        rows = [[*before, *found] for before, found in zip(rows, [*answered, []], strict=False)]
        marks.append(reached)
    least = [None if None in of else min(of) for of in zip(*marks, strict=True)]
    read = [None, *(None if mark is None else mark - reader.delay_us for mark in least)]
    if drained:
        *out, last, rest = answer_by_epoch(reader, [[], *rows], drained=True, marks=[*read, None])
        return [*out, last + rest]
    return answer_by_epoch(reader, [[], *rows[:-1]], marks=read[:-1])


def _emitted(branch: Selection, event: Row) -> Result:
    """The row of an event; the outputs of such a branch are columns or constants."""
    row: Result = {}
    for item in branch.output:
        assert isinstance(item.expression, Column | Literal)
        row[item.name] = event[item.expression.name] if isinstance(item.expression, Column) else item.expression.value
    return row


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
    elif isinstance(upstream.window, Range | Counted):  # rows up to the mark were emitted
        start, end = mark + 1, mark + 2
    else:
        start, end = min(upstream.window.assign(mark), key=lambda bounds: bounds.end_us)
    least = {"start": start, "end": end, "time": end - 1}[bounds_of(upstream)[event_time]]
    return least - 1
