"""Reads an analysed `Window` node: aggregates OVER time frames before each event of a key."""

from __future__ import annotations

from typing import NamedTuple

from millpond.errors import UnsupportedQuery
from millpond.spark.analysis.windows import check_length
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, id_of, items, kind_of, text_of, type_of

_COUNTED = "Of the last events of a key, group by count_window(ts, size, step)."
_CURE = "Write RANGE BETWEEN INTERVAL 10 MINUTES PRECEDING AND CURRENT ROW."


class Call(NamedTuple):
    """An aggregate over a frame: the id of its result, Spark's `AggregateExpression`, and the frame's length in µs."""

    identity: int
    aggregate: JavaObject
    preceding_us: int


class Frames(NamedTuple):
    """PARTITION BY, the column of ORDER BY, and the calls."""

    keys: list[JavaObject]
    time: JavaObject
    calls: list[Call]


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
    return Frames(keys, order[0].child(), [_call(catalyst, alias) for alias in items(node.windowExpressions())])


def _call(catalyst: Catalyst, alias: JavaObject) -> Call:
    over = alias.child()
    function = over.windowFunction()
    if kind_of(function) != "AggregateExpression":
        raise UnsupportedQuery(f"`{text_of(function)}` OVER is not answered.", "Use an aggregate function.")
    return Call(id_of(alias), function, _preceding_us(catalyst, over.windowSpec().frameSpecification()))


def _preceding_us(catalyst: Catalyst, frame: JavaObject) -> int:
    """How far a frame reaches back, in microseconds."""
    if kind_of(frame.frameType()) != "RangeFrame":
        raise UnsupportedQuery(f"The frame {_shown(frame)} counts rows, whose order Spark leaves open.", _COUNTED)
    if kind_of(frame.upper()) != "CurrentRow":
        raise UnsupportedQuery(f"The frame {_shown(frame)} does not end with its event.", _CURE)
    lower = frame.lower()
    if kind_of(lower) == "CurrentRow":
        return 0
    if kind_of(lower) == "UnboundedPreceding":
        raise UnsupportedQuery(
            f"The frame {_shown(frame)} is unbounded: every event would be stored indefinitely.", f"Bound it. {_CURE}"
        )
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
