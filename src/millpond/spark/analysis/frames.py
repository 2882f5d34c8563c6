"""Reads an analysed `Window` node: aggregates OVER frames around each event of a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from millpond.errors import UnsupportedQuery
from millpond.model.aggregates import NTH, Aggregate, Running
from millpond.model.calendars.months import Months
from millpond.model.expressions import Column, Expression, Literal, call, literal
from millpond.model.types import EVENT_TIME_TYPES
from millpond.model.windows import Counted, Range
from millpond.spark.analysis.grouping.calendar_keys import zone_name
from millpond.spark.analysis.steps.step_boundaries import unit_of_time
from millpond.spark.analysis.windows import MAX_EVENTS, check_length
from millpond.spark.catalyst.data_types import counts_months
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    id_of,
    items,
    kind_of,
    text_of,
    type_of,
)

_ROWS = "Write ROWS BETWEEN 9 PRECEDING AND CURRENT ROW."
_LAG = f"Let lag(x, n) and lead(x, n) have n from 0 to {MAX_EVENTS - 1:,}."
_BOUND = "Bound the frame: ROWS BETWEEN 9 PRECEDING AND CURRENT ROW. Sums, counts, least and largest numbers need none."
_CURE = "Write RANGE BETWEEN INTERVAL 10 MINUTES PRECEDING AND CURRENT ROW."

_NEIGHBOURS = ("Lag", "Lead")
"""Spark's functions of one other event."""

_RUNNING = ("UnboundedPreceding", "CurrentRow")
"""The bounds of the frame of a running total."""


class FrameCall(NamedTuple):
    """A function over a frame: the id of its result, Spark's expression of it, and the bounds of the frame.

    `preceding` is in microseconds, or for a frame of rows the number of events before the event itself. `following`:
    the number of events after it. Either may be negative. `running`: the frame begins with the first event of the key,
    and ends with the event (`rows`) or the last one of equal time (`peers`). `months`: the length of a frame of months;
    `preceding` is then the longest that it can be.
    """

    identity: int
    function: JavaObject
    preceding: int
    following: int = 0
    running: Running | None = None
    months: Months | None = None


class Frames(NamedTuple):
    """PARTITION BY, the column of ORDER BY, and the calls of a `Window` node.

    `of_rows`: the frames are numbers of events, not lengths of time. `by_row`: some call is `lag` or `lead`, or has a
    frame of events that begins with the first event of the key, or does not end with the event of the row. `unit_us`:
    ORDER BY counts the time in whole units, as unix_timestamp(ts) does.
    """

    keys: list[JavaObject]
    time: JavaObject
    calls: list[FrameCall]
    of_rows: bool
    by_row: bool
    unit_us: int = 1

    @property
    def window(self) -> Range | Counted:
        """The window of a query with these frames: the widest one."""
        if not self.of_rows:
            return Range(self._widest) if self.unit_us == 1 else Range(self._widest, self.unit_us)
        following = max(call.following for call in self.calls)
        return Counted(self._widest + 1 + max(following, 0), 1, following=following if following > 0 else UNSET)

    @property
    def _widest(self) -> int:
        return max(0, *(call.preceding for call in self.calls)) + (0 if self.of_rows else self.unit_us - 1)

    def value(
        self, made: FrameCall, aggregate: Callable[[JavaObject], Aggregate],
        meaning: Callable[[JavaObject], Expression], aggregates: list[Aggregate],
    ) -> Expression:  # fmt: skip
        """The value of a call over `aggregates`, to which its own are added.

        `lag(x, n)` is the first value of n + 1 events, if the frame has them; `lead(x, n)` is the value of one event.
        `row_number()` is the number of events up to and including the event.
        """
        if kind_of(made.function) == "RowNumber":
            count = self._over(Aggregate("count", None, None, "bigint"), made, aggregates)
            return call("cast", (count,), "int")
        if kind_of(made.function) == "NthValue":
            value = meaning(made.function.input())
            nulls = call("isnotnull", (value,), "boolean") if made.function.ignoreNulls() else None
            nth = (literal(int(str(made.function.offset())), "int"),)
            return self._over(Aggregate(NTH, value, nulls, value.type, parameters=nth), made, aggregates)
        if kind_of(made.function) not in _NEIGHBOURS:
            found = aggregate(made.function)
            if made.running and found.logged:
                raise UnsupportedQuery(
                    f"`{text_of(made.function)}` is over all earlier events of a key, which would be stored "
                    "indefinitely.",
                    _BOUND,
                )
            return self._over(found, made, aggregates)
        value, default = meaning(made.function.input()), constant_default(made.function, meaning)
        first = self._over(Aggregate("first", value, None, value.type), made, aggregates)
        count = self._over(Aggregate("count", None, None, "bigint"), made, aggregates)
        size = literal(made.preceding + made.following + 1, "bigint")
        return call("case", (call("eq", (count, size), "boolean"), first, default), value.type)

    def _over(self, aggregate: Aggregate, made: FrameCall, aggregates: list[Aggregate]) -> Column:
        """An aggregate with its own frame, if that differs from the widest."""
        if made.running:
            aggregate = msgspec.structs.replace(aggregate, running=made.running)
        elif made.months:
            aggregate = msgspec.structs.replace(aggregate, preceding_months=made.months)
        elif made.preceding < self._widest or made.following:
            own = "preceding_rows" if self.of_rows else "preceding_us"
            aggregate = msgspec.structs.replace(aggregate, **{own: made.preceding})
        if made.following:
            aggregate = msgspec.structs.replace(aggregate, following_rows=made.following)
        if aggregate not in aggregates:
            aggregates.append(aggregate)
        return Column(f"agg:{aggregates.index(aggregate)}", aggregate.type)


def constant_default(function: JavaObject, meaning: Callable[[JavaObject], Expression]) -> Literal:
    """What a `Lag` or `Lead` returns where there is no such event.

    Raises:
        UnsupportedQuery: it is no constant.
    """
    kind = type_of(function.input())
    default = literal(None, kind) if type_of(function.default()) == "void" else meaning(function.default())
    if not isinstance(default, Literal) or default.type != kind:
        raise UnsupportedQuery(
            f"The default of `{text_of(function)}` is not a constant of the type {kind}.",
            "Write one, or leave it out and write coalesce(lag(x) OVER (…), y) around it.",
        )
    return default


def _check_nulls(function: JavaObject) -> None:
    """Refuses IGNORE NULLS, because any number of events may lie between two events with a value.

    Raises:
        UnsupportedQuery: the function has it.
    """
    if function.ignoreNulls():
        raise UnsupportedQuery(
            f"`{text_of(function)}` ignores NULLs, which is not supported over events.",
            "Leave IGNORE NULLS out, or leave the events with NULL out by WHERE.",
        )


def frames_of(catalyst: Catalyst, node: JavaObject, defined: Callable[[JavaObject], JavaObject]) -> Frames:
    """Read a `Window` node; `defined` returns the expression behind a column.

    Raises:
        UnsupportedQuery: this version does not support its order, a frame or a function.
    """
    order = items(node.orderSpec())
    aliases = items(node.windowExpressions())
    by_row = any(_is_by_row(alias.child()) for alias in aliases)
    found = _time_and_unit(order[0].child(), defined) if len(order) == 1 else None
    if found is None or kind_of(order[0].direction()) != "Ascending":
        shown = ", ".join(text_of(defined(one.child())) for one in order)
        raise UnsupportedQuery(
            f"OVER (… ORDER BY {shown or 'nothing'}) is not supported.",
            "Order by the event time alone, upwards: by ts, or by unix_timestamp(ts) with frames of seconds.",
        )
    time, unit_us = found
    keys = items(node.partitionSpec())
    for key in keys:
        if kind_of(key) != "AttributeReference":
            raise UnsupportedQuery(f"PARTITION BY `{text_of(key)}` is a constant.", "Leave it out.")
    of_rows = {counts_rows(alias.child()) for alias in aliases}
    if len(of_rows) > 1:
        raise UnsupportedQuery("The query has frames of rows and frames of time.", "Make them two queries.")
    calls = [_call(catalyst, alias, unit_us) for alias in aliases]
    if unit_us > 1 and any(call.running == "peers" for call in calls):
        raise UnsupportedQuery(
            f"Totals of all events up to each {text_of(defined(order[0].child()))} are not supported.",
            f"Order by {text_of(time)}, or write ROWS UNBOUNDED PRECEDING.",
        )
    return Frames(keys, time, calls, True in of_rows, by_row, unit_us)


def _time_and_unit(order: JavaObject, defined: Callable[[JavaObject], JavaObject]) -> tuple[JavaObject, int] | None:
    """The event time by which rows are ordered, and the unit in which it is counted, in microseconds."""
    if type_of(order) in EVENT_TIME_TYPES:
        return order, 1
    node = defined(order)
    unit_us = unit_of_time(node)
    time = children(node)[0] if unit_us else node
    while kind_of(time) == "Cast" and type_of(children(time)[0]) == "timestamp":
        time = children(time)[0]
    return (time, unit_us) if unit_us and kind_of(time) == "AttributeReference" else None


def _bounds(over: JavaObject) -> tuple[str, str]:
    frame = over.windowSpec().frameSpecification()
    return kind_of(frame.lower()), kind_of(frame.upper())


def counts_rows(over: JavaObject) -> bool:
    """Whether the frame of a function is a number of events, or all events before, and not a length of time."""
    of_rows = kind_of(over.windowSpec().frameSpecification().frameType()) == "RowFrame"
    return of_rows or _bounds(over) == _RUNNING


def _is_by_row(over: JavaObject) -> bool:
    """Whether a function has a frame of rows that is another one than that of some rows before the event and itself."""
    lower, upper = _bounds(over)
    neighbour = kind_of(over.windowFunction()) in _NEIGHBOURS
    return counts_rows(over) and (neighbour or lower == "UnboundedPreceding" or upper != "CurrentRow")


def whole(catalyst: Catalyst, number: JavaObject) -> int:
    """The value of a constant whole number."""
    return int(str(catalyst.constant(number)))


def _call(catalyst: Catalyst, alias: JavaObject, unit_us: int) -> FrameCall:
    over = alias.child()
    frame = over.windowSpec().frameSpecification()
    function, kind = over.windowFunction(), kind_of(over.windowFunction())
    if kind in _NEIGHBOURS:
        _check_nulls(function)
        back = whole(catalyst, function.inputOffset()) if kind == "Lag" else -whole(catalyst, function.offset())
        if abs(back) >= MAX_EVENTS:
            raise UnsupportedQuery(f"`{text_of(function)}` is of an event too far away.", _LAG)
        return FrameCall(id_of(alias), function, back, max(-back, 0))
    if kind == "RowNumber":
        return FrameCall(id_of(alias), function, 0, running="rows")
    if kind not in ("AggregateExpression", "NthValue"):
        raise UnsupportedQuery(
            f"`{text_of(function)}` OVER is not supported.",
            "Use an aggregate function, row_number, lag, lead or nth_value.",
        )
    if _bounds(over) == _RUNNING:
        if kind == "NthValue":
            raise UnsupportedQuery(
                f"`{text_of(function)}` is of all earlier events of a key, which would be stored indefinitely.", _BOUND
            )
        of_rows = kind_of(frame.frameType()) == "RowFrame"
        return FrameCall(id_of(alias), function, 0, running="rows" if of_rows else "peers")
    if counts_rows(over):
        preceding, following = -_rows(catalyst, frame, frame.lower()), _rows(catalyst, frame, frame.upper())
        return FrameCall(id_of(alias), function, preceding, following)
    length = _preceding(catalyst, frame, unit_us)
    if isinstance(length, Months):
        return FrameCall(id_of(alias), function, length.longest_us, months=length)
    return FrameCall(id_of(alias), function, length)


def _rows(catalyst: Catalyst, frame: JavaObject, bound: JavaObject) -> int:
    """The number of events between an event and a bound of its frame; below 0 before the event."""
    if kind_of(frame.upper()) == "UnboundedFollowing":
        raise UnsupportedQuery(f"The frame {_shown(frame)} never ends: it contains all later events.", _ROWS)
    if kind_of(bound) == "UnboundedPreceding":
        raise UnsupportedQuery(
            f"The frame {_shown(frame)} contains all earlier events of a key, but does not end with its event.", _ROWS
        )
    rows = 0 if kind_of(bound) == "CurrentRow" else int(catalyst.constant(bound) or 0)
    if abs(rows) >= MAX_EVENTS:
        raise UnsupportedQuery(f"The frame {_shown(frame)} has more than {MAX_EVENTS:,} rows.", _ROWS)
    return rows


def _preceding(catalyst: Catalyst, frame: JavaObject, unit_us: int) -> int | Months:
    """How far a frame of time reaches back, in microseconds or months; numbers are of units of the order."""
    if kind_of(frame.upper()) != "CurrentRow":
        raise UnsupportedQuery(f"The frame {_shown(frame)} does not end with its event.", _CURE)
    lower = frame.lower()
    if kind_of(lower) == "CurrentRow":
        return 0
    kind = type_of(lower)
    if kind == "interval":
        months, days, offset = catalyst.fixed_interval(lower)
        if months or days:
            raise UnsupportedQuery(f"The frame {_shown(frame)} depends on the calendar.", "Count hours or minutes.")
    else:
        offset = int(catalyst.constant(lower) or 0) * (1 if kind.startswith("interval") else unit_us)
    if offset > 0:
        raise UnsupportedQuery(f"The frame {_shown(frame)} begins after its event.", _CURE)
    if counts_months(kind):
        zone = catalyst.module("util.DateTimeUtils").getZoneId(catalyst.spark.conf.get("spark.sql.session.timeZone"))
        length = Months(-offset, zone_name(zone))
        check_length(length.longest_us)
        return length
    check_length(-offset)
    return -offset


def _shown(frame: JavaObject) -> str:
    return f"`{frame.sql()}`"
