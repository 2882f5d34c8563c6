"""Reads an analysed `Window` node: aggregates OVER frames before each event of a key."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.windows import Counted, Range
from millpond.spark.analysis.windows import MAX_EVENTS, check_length
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, id_of, items, kind_of, text_of, type_of

_ROWS = "Write ROWS BETWEEN 9 PRECEDING AND CURRENT ROW."
_CURE = "Write RANGE BETWEEN INTERVAL 10 MINUTES PRECEDING AND CURRENT ROW."


class Call(NamedTuple):
    """An aggregate over a frame: the id of its result, Spark's `AggregateExpression`, and the frame's length.

    The length is in microseconds, or for a frame of rows the number of events before the event itself.
    """

    identity: int
    aggregate: JavaObject
    preceding: int


class Frames(NamedTuple):
    """PARTITION BY, the column of ORDER BY, the calls, and whether their frames are numbers of rows."""

    keys: list[JavaObject]
    time: JavaObject
    calls: list[Call]
    of_rows: bool

    @property
    def window(self) -> Range | Counted:
        """The window of a query with these frames: the widest one."""
        widest = max(call.preceding for call in self.calls)
        return Counted(widest + 1, 1) if self.of_rows else Range(widest)

    def over(self, aggregate: Aggregate, call: Call) -> Aggregate:
        """An aggregate with its own frame, if that is shorter than the widest."""
        if call.preceding == max(call.preceding for call in self.calls):
            return aggregate
        own = "preceding_rows" if self.of_rows else "preceding_us"
        return msgspec.structs.replace(aggregate, **{own: call.preceding})


def frames_of(catalyst: Catalyst, node: JavaObject) -> Frames:
    """Read a `Window` node.

    Raises:
        UnsupportedQuery: this version does not support its order, a frame or a function.
    """
    below = node.child()
    while kind_of(below) == "Project":
        below = below.child()
    if kind_of(below) == "Window":
        raise UnsupportedQuery(
            "The query has two different PARTITION BY … ORDER BY.", "Make them two queries, or make them one."
        )
    order = items(node.orderSpec())
    if len(order) != 1 or kind_of(order[0].direction()) != "Ascending" or type_of(order[0].child()) != "timestamp":
        raise UnsupportedQuery(
            f"OVER (… ORDER BY {', '.join(text_of(one) for one in order) or 'nothing'}) is not answered.",
            "Order by the event time alone, a timestamp, upwards.",
        )
    keys = items(node.partitionSpec())
    for key in keys:
        if kind_of(key) != "AttributeReference":
            raise UnsupportedQuery(f"PARTITION BY `{text_of(key)}` is a constant.", "Leave it out.")
    aliases = items(node.windowExpressions())
    of_rows = {_counts_rows(alias.child()) for alias in aliases}
    if len(of_rows) > 1:
        raise UnsupportedQuery("The query has frames of rows and frames of time.", "Make them two queries.")
    return Frames(keys, order[0].child(), [_call(catalyst, alias) for alias in aliases], True in of_rows)


def _counts_rows(over: JavaObject) -> bool:
    return kind_of(over.windowSpec().frameSpecification().frameType()) == "RowFrame"


def _call(catalyst: Catalyst, alias: JavaObject) -> Call:
    over = alias.child()
    frame = over.windowSpec().frameSpecification()
    function = over.windowFunction()
    if kind_of(function) != "AggregateExpression":
        raise UnsupportedQuery(f"`{text_of(function)}` OVER is not answered.", "Use an aggregate function.")
    return Call(id_of(alias), function, _preceding(catalyst, frame, of_rows=_counts_rows(over)))


def _preceding(catalyst: Catalyst, frame: JavaObject, *, of_rows: bool) -> int:
    """How far a frame reaches back, in microseconds or rows."""
    if kind_of(frame.upper()) != "CurrentRow":
        raise UnsupportedQuery(f"The frame {_shown(frame)} does not end with its event.", _CURE)
    lower = frame.lower()
    if kind_of(lower) == "CurrentRow":
        return 0
    if kind_of(lower) == "UnboundedPreceding":
        raise UnsupportedQuery(
            f"The frame {_shown(frame)} is unbounded: every event would be stored indefinitely.", f"Bound it. {_CURE}"
        )
    if of_rows:
        rows = -int(catalyst.constant(lower) or 0)
        if not 0 <= rows < MAX_EVENTS:
            raise UnsupportedQuery(f"The frame {_shown(frame)} has no row, or more than {MAX_EVENTS:,}.", _ROWS)
        return rows
    kind = type_of(lower)
    if not kind.startswith("interval") or "year" in kind or "month" in kind.replace("minute", ""):
        raise UnsupportedQuery(f"The frame {_shown(frame)} is no length of time.", _CURE)
    if kind == "interval":
        months, days, micros = catalyst.fixed_interval(lower)
        offset = days * 86_400_000_000 + micros
        if months or days:
            raise UnsupportedQuery(f"The frame {_shown(frame)} depends on the calendar.", "Count hours or minutes.")
    else:
        offset = int(catalyst.constant(lower) or 0)
    if offset > 0:
        raise UnsupportedQuery(f"The frame {_shown(frame)} begins after its event.", _CURE)
    check_length(-offset)
    return -offset


def _shown(frame: JavaObject) -> str:
    return f"`{frame.sql()}`"
