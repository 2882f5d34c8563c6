"""The naive twin of queries and joins over queries and joins: computes each with its own loops, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from kit.naive.queries import join as naive_join
from kit.naive.queries.query_chain import mark_of_rows
from kit.naive.queries.windows import Result, answer_by_epoch
from millpond.model.join import LEFT, Join, Within
from millpond.model.query import Query
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.plan.upstream.upstream_joins import TimeMeaning, join_times

Queries = Sequence[Query | Join]
Epochs = Sequence[naive_join.Batch]


def rows_by_epoch(queries: Queries, epochs: Epochs) -> dict[str, list[list[Result]]]:
    """The rows of each query in each epoch; the rows of a query are events of others one epoch later.

    `queries`: each one follows the queries whose rows it reads.
    """
    answers: dict[str, list[list[Result]]] = {}
    bases: dict[tuple[str, str], list[int | None]] = {}
    by_name = {query.name: query for query in queries}

    def events(stream: str) -> list[list[Result]]:
        if stream not in by_name:
            return [[dict(row) for row in batch.get(stream, ())] for batch in epochs]
        return [[], *(_events(by_name[stream], rows) for rows in answers[stream][:-1])]

    def reached(stream: str, time: str) -> list[int | None]:
        """The watermark without a delay, before the first epoch and after each."""
        if (stream, time) not in bases:
            if stream in by_name:
                of = by_name[stream]
                bases[stream, time] = [None, *(_behind(of, time, mark) for mark in marks(of)[:-1])]
            else:
                newest = (max((row[time] for row in rows if row[time] is not None), default=None)
                          for rows in events(stream))  # fmt: skip
                bases[stream, time] = list(accumulate([None, *newest], _later))
        return bases[stream, time]

    def marks(query: Query | Join) -> list[int | None]:
        if isinstance(query, Query):
            return [None if base is None else base - query.delay_us for base in reached(query.stream, query.event_time)]
        sides = [[None if base is None else base - side.delay_us for base in reached(side.stream, side.event_time)]
                 for side in query.sides.values()]  # fmt: skip
        return [None if None in pair else min(mark for mark in pair if mark is not None)
                for pair in zip(*sides, strict=True)]  # fmt: skip

    for query in queries:
        if isinstance(query, Query):
            answers[query.name] = answer_by_epoch(query, events(query.stream), marks=marks(query))
            continue
        batches = [dict(zip(query.streams, some, strict=True))
                   for some in zip(*(events(stream) for stream in query.streams), strict=True)]  # fmt: skip
        emitted: list[Result] = []
        answers[query.name] = []
        for i, mark in enumerate(marks(query)[1:], 1):
            taken = naive_join.judged(query, batches[:i], by_name.keys()).taken
            final = [] if mark is None else naive_join.rows(query, taken, mark)
            answers[query.name].append(_new(final, emitted))
            emitted = final
    return answers


def rows_in_the_end(queries: Queries, epochs: Epochs) -> dict[str, list[Result]]:
    """All rows of each query when everything is closed, level by level."""
    answers: dict[str, list[Result]] = {}
    by_name = {query.name: query for query in queries}

    def events(stream: str) -> list[list[Result]]:
        if stream in by_name:
            return [_events(by_name[stream], answers[stream])]
        return [[dict(row) for row in batch.get(stream, ())] for batch in epochs]

    for query in queries:
        if isinstance(query, Query):
            found = answer_by_epoch(query, events(query.stream), drained=True)
            answers[query.name] = [row for rows in found for row in rows]
            continue
        sides = {stream: events(stream) for stream in query.streams}
        batches = [{stream: some[i] for stream, some in sides.items() if i < len(some)}
                   for i in range(max(map(len, sides.values())))]  # fmt: skip
        answers[query.name] = naive_join.rows(query, naive_join.judged(query, batches, by_name.keys()).taken)
    return answers


def _new(final: Sequence[Result], emitted: Sequence[Result]) -> list[Result]:
    """The rows that were not emitted before; emitted rows are never retracted."""
    before, new = list(emitted), []
    for row in final:
        if row in before:
            before.remove(row)
        else:
            new.append(row)
    assert not before
    return new


def _later(old: int | None, new: int | None) -> int | None:
    return max((time for time in (old, new) if time is not None), default=None)


def _events(upstream: Query | Join, rows: Sequence[Result]) -> list[Result]:
    """Rows with each window as two columns; the window may be missing."""
    windows = [item.name for item in upstream.output if item.expression.type == WINDOW]
    flat = []
    for row in rows:
        plain = dict(row)
        for name in windows:
            start, end = (None, None) if row[name] is None else (row[name]["start"], row[name]["end"])
            plain |= {f"{name}.start": start, f"{name}.end": end, f"{name}.time": None if end is None else end - 1}
        flat.append(plain)
    return flat


def _behind(upstream: Query | Join, time: str, mark: int | None) -> int | None:
    """One microsecond before the smallest possible time of a future row."""
    if mark is None:
        return None
    if isinstance(upstream, Query):
        return mark_of_rows(upstream, time, mark)
    meaning = join_times(upstream)[time]
    return min(_least(upstream, meaning, mark)) + meaning.after_us - 1


def _least(join: Join, meaning: TimeMeaning, mark: int) -> list[int]:
    """Times of the earliest possible rows that become final after a mark: the extreme cases."""
    if isinstance(join.when, Sliding):
        return [min(join.when.assign(mark), key=lambda window: window.end_us).start_us]
    assert isinstance(join.when, Within)
    times = []
    for apart in (join.when.lower_us, join.when.upper_us, min(max(0, join.when.lower_us), join.when.upper_us)):
        later = mark + 1  # the later event of the pair; the other one is on the left or on the right side
        left, right = (later - apart, later) if apart >= 0 else (later, later + apart)
        times += [left if side == LEFT else right for side in meaning.sides]
    return times
