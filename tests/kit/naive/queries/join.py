"""The naive twin of joins: compares every event of one side with every event of the other, in two plain loops."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kit.naive.expressions import Raised, Row, Value, evaluate, order
from millpond.model.expressions import Call, Expression
from millpond.model.join import LEFT, RIGHT, Join, Side, Within
from millpond.model.windows import Interval, Sliding
from millpond.plan.upstream.upstream_joins import WINDOW_OF

Batch = Mapping[str, Sequence[Row]]
"""The events of one epoch, by stream."""

FATES = ("read", "applied", "late", "dead", "filtered")


class Event(NamedTuple):
    """An event that the join takes: its time, key and values."""

    time_us: int
    key: tuple[Value, ...]
    values: tuple[Value, ...]


class Judged(NamedTuple):
    """The events of each side that the join takes, and the fates of all events."""

    taken: dict[str, list[Event]]
    counts: dict[str, int]


def judged(
    join: Join, epochs: Sequence[Batch], never_late: Collection[str] = (), *, ordered: bool = False
) -> Judged:  # fmt: skip
    """The events that the join takes. Without an order, an event is late compared to previous epochs, and if `ordered`
    compared to all earlier events of its stream; events of the streams in `never_late` are not late.
    """
    taken: dict[str, list[Event]] = {LEFT: [], RIGHT: []}
    counts = dict.fromkeys(FATES, 0)
    for name, side in join.sides.items():
        other = join.sides[RIGHT if name == LEFT else LEFT]
        for i, batch in enumerate(epochs):
            newest, beside = _newest(side, epochs[:i]), _newest(other, epochs[:i])
            for row in batch.get(side.stream, ()):
                limit = None if newest is None or side.stream in never_late else newest - side.delay_us
                if limit is not None and join.late_by == "join":
                    limit = None if beside is None else min(limit, beside - other.delay_us)
                fate, event = _fate(side, row, limit)
                counts["read"] += 1
                counts[fate] += 1
                if event is not None:
                    taken[name].append(event)
                time = row[side.event_time]
                if ordered and time is not None:
                    newest = time if newest is None else max(newest, time)
    return Judged(taken, counts)


def _newest(side: Side, epochs: Sequence[Batch]) -> int | None:
    times = (row[side.event_time] for batch in epochs for row in batch.get(side.stream, ()))
    return max((time for time in times if time is not None), default=None)


def _fate(side: Side, row: Row, watermark_us: int | None) -> tuple[str, Event | None]:
    time = row[side.event_time]
    if time is None:
        return "dead", None
    if watermark_us is not None and time <= watermark_us:
        return "late", None
    try:
        if side.where is not None and evaluate(side.where, row) is not True:
            return "filtered", None
        key, values = (tuple(evaluate(one, row) for one in some) for some in (side.keys, side.values))
    except Raised:
        return "dead", None
    return "applied", Event(time, key, values)


def mark_us(join: Join, epochs: Sequence[Batch]) -> int | None:
    """The smaller of both sides' watermarks after some epochs."""
    marks: list[int] = []
    for side in join.sides.values():
        newest = _newest(side, epochs)
        if newest is None:
            return None
        marks.append(newest - side.delay_us)
    return min(marks)


def rows(join: Join, taken: Mapping[str, Sequence[Event]], until_us: float = math.inf) -> list[dict[str, Value]]:
    """The rows that are final when the smaller watermark is `until_us`; by default all rows.

    Raises:
        Raised: a condition or an output raises for a row.
    """
    final = [pair for pair in _pairs(join, taken) if _final_us(join, *pair) <= until_us]
    made = [_columns(join, left, right, window) for left, right, window in final]
    held = [row for row in made if join.having is None or evaluate(join.having, row) is True]
    return [{item.name: _shown(item.expression, row) for item in join.output} for row in held]


def _shown(expression: Expression, row: Row) -> Value:
    if not (isinstance(expression, Call) and expression.op == WINDOW_OF):
        return evaluate(expression, row)
    start, end = (evaluate(bound, row) for bound in expression.args)
    return None if start is None else {"start": start, "end": end}


def _final_us(join: Join, left: Event | None, right: Event | None, window: Interval | None) -> int:
    """The time from which a pair, or an event without a partner, is final."""
    if window is not None:
        return window.end_us
    assert isinstance(join.when, Within)
    if left is not None and right is not None:
        return max(left.time_us, right.time_us)
    if left is not None:  # the latest time of a possible partner, but not before the event itself
        return max(left.time_us, left.time_us + join.when.upper_us)
    assert right is not None
    return max(right.time_us, right.time_us - join.when.lower_us)


def _pairs(
    join: Join, taken: Mapping[str, Sequence[Event]]
) -> Iterator[tuple[Event | None, Event | None, Interval | None]]:  # fmt: skip
    """The pairs, then the events without a partner; of a semi join the left events with one."""
    met: dict[str, set[tuple[int, Interval | None]]] = {LEFT: set(), RIGHT: set()}
    for i, left in enumerate(taken[LEFT]):
        for j, right in enumerate(taken[RIGHT]):
            if not _same_key(left, right):
                continue
            for window in _together(join, left, right):
                row = _columns(join, left, right, window)
                if join.condition is None or evaluate(join.condition, row) is True:
                    met[LEFT].add((i, window))
                    met[RIGHT].add((j, window))
                    if join.kind not in ("semi", "anti"):
                        yield left, right, window
    for side in (LEFT, RIGHT):
        if join.preserves(side):
            for i, event in enumerate(taken[side]):
                for window in _windows(join, event):
                    if ((i, window) in met[side]) == (join.kind == "semi"):
                        yield (event, None, window) if side == LEFT else (None, event, window)


def _same_key(left: Event, right: Event) -> bool:
    pairs = zip(left.key, right.key, strict=True)
    return all(a is not None and b is not None and order(a) == order(b) for a, b in pairs)


def _windows(join: Join, event: Event) -> list[Interval | None]:
    return [*join.when.assign(event.time_us)] if isinstance(join.when, Sliding) else [None]


def _together(join: Join, left: Event, right: Event) -> list[Interval | None]:
    if isinstance(join.when, Sliding):
        return [window for window in _windows(join, left) if window in _windows(join, right)]
    return [None] if join.when.lower_us <= right.time_us - left.time_us <= join.when.upper_us else []


def _columns(join: Join, left: Event | None, right: Event | None, window: Interval | None) -> dict[str, Any]:
    row: dict[str, Any] = {"window": None if window is None else {"start": window.start_us, "end": window.end_us}}
    for side, event in ((LEFT, left), (RIGHT, right)):
        for i in range(len(join.sides[side].values)):
            row[f"{side}:{i}"] = None if event is None else event.values[i]
        there = None if event is None else window
        row[f"{side}:window"] = None if there is None else {"start": there.start_us, "end": there.end_us}
        row[f"{side}:window.start"] = None if there is None else there.start_us
        row[f"{side}:window.end"] = None if there is None else there.end_us
    return row
