"""Rows of joins as events of other queries: which columns give the event time, and how far it has advanced.

W is the lesser of the watermarks of a join's two sides. Future rows have a final time above W (see
`plan.groups.joins`). For bounds [lower, upper] of right − left this says of a pair (l, r), for which max(l, r) > W:

- if l is the later, l > W; else r > W, and l >= r − upper > W − upper. So l > W − max(upper, 0).
- likewise r > W − max(−lower, 0).

A left event without a partner is final at l + max(upper, 0), a right one at r + max(−lower, 0): the same bounds. A
row of a window belongs to the first window that ends after W or to a later one, and its events are at or after the
window's start.
"""

from __future__ import annotations

from typing import NamedTuple

from millpond.model.expressions import Call, Column, Expression
from millpond.model.join import LEFT, RIGHT, Join
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.plan.groups.joins import alone_after_us

WINDOW_OF = "window"
"""The operator that builds a window from its start and end; used only in outputs of joins."""


class TimeMeaning(NamedTuple):
    """The meaning of a time column: `after_us` microseconds after the event time of any of `sides`.

    Without sides, it is `after_us` microseconds after the start of the row's window.
    """

    sides: tuple[str, ...]
    after_us: int = 0


def made_window(start: Expression, end: Expression) -> Call:
    """A window with these bounds; NULL where the bounds are NULL."""
    return Call(WINDOW_OF, (start, end), WINDOW)


def join_times(join: Join) -> dict[str, TimeMeaning]:
    """The columns of the rows that can be an event time, each with its meaning."""
    found: dict[str, TimeMeaning | None] = {}
    for item in join.output:
        if item.expression.type != WINDOW:
            found[item.name] = _meaning_of(join, item.expression)
            continue
        start, end = _bounds(join, item.expression)
        found |= {f"{item.name}.start": start, f"{item.name}.end": end}
        found[f"{item.name}.time"] = None if end is None else end._replace(after_us=end.after_us - 1)
    return {name: meaning for name, meaning in found.items() if meaning is not None}


def _bounds(join: Join, window: Expression) -> tuple[TimeMeaning | None, TimeMeaning | None]:
    """The start and end of a window column: one that an output builds, or the window of the join itself."""
    if isinstance(window, Call):
        start, end = window.args
        return _meaning_of(join, start), _meaning_of(join, end)
    assert isinstance(join.when, Sliding)
    return TimeMeaning(()), TimeMeaning((), join.when.size_us)


def _meaning_of(join: Join, one: Expression) -> TimeMeaning | None:
    """The meaning of an expression over the rows as an event time; None if it has none."""
    if isinstance(one, Call) and one.op == "coalesce":
        parts = [_meaning_of(join, arg) for arg in one.args]
        known = [part for part in parts if part is not None and part.sides]
        if len(known) < len(parts) or len({part.after_us for part in known}) > 1:
            return None
        return TimeMeaning(tuple(dict.fromkeys(side for part in known for side in part.sides)), known[0].after_us)
    if not isinstance(one, Column):
        return None
    side, _, what = one.name.partition(":")
    if what in ("window.start", "window.end"):
        assert isinstance(join.when, Sliding)
        return TimeMeaning((), join.when.size_us if what == "window.end" else 0)
    value = join.sides[side].values[int(what)] if what.isdecimal() else None
    if not isinstance(value, Column):
        return None
    time = join.sides[side].event_time
    after = 0 if value.name == time else _after_us(value.name, time)
    return None if after is None else TimeMeaning((side,), after)


def _after_us(column: str, time: str) -> int | None:
    """How many microseconds one bound of a window is after another of the same window; None if not known here."""
    (window, _, bound), (other, _, of) = column.rpartition("."), time.rpartition(".")
    return {("end", "time"): 1, ("time", "end"): -1}.get((bound, of)) if window and window == other else None


def join_reached_us(join: Join, meaning: TimeMeaning, mark_us: int) -> int:
    """The time that a column exceeds in all future rows, when the lesser watermark of the join is `mark_us`."""
    if isinstance(join.when, Sliding):
        return join.when.first_open(mark_us) + meaning.after_us - 1
    return mark_us - max(alone_after_us(join, side) for side in meaning.sides) + meaning.after_us


def join_first_us(join: Join, meaning: TimeMeaning, since_us: int) -> int:
    """The time such that rows at or after it, by the column, need no event before `since_us`."""
    if isinstance(join.when, Sliding):  # an event may belong to a window that began up to a window size earlier
        return since_us + meaning.after_us + (join.when.size_us if meaning.sides else 0)
    others = [RIGHT if side == LEFT else LEFT for side in meaning.sides]
    return since_us + max(alone_after_us(join, side) for side in others) + meaning.after_us
