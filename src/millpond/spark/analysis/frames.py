"""Reads an analysed `Window` node: aggregates OVER frames before each event of a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, Literal, call, literal
from millpond.model.types import WINDOW
from millpond.model.windows import Counted, Range
from millpond.spark.analysis.windows import MAX_EVENTS, check_length
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, id_of, items, kind_of, text_of, type_of

_ROWS = "Write ROWS BETWEEN 9 PRECEDING AND CURRENT ROW."
_LAG = f"Of earlier events, lag(x, n) takes n from 0 to {MAX_EVENTS - 1:,}; later events are not known."
_CURE = "Write RANGE BETWEEN INTERVAL 10 MINUTES PRECEDING AND CURRENT ROW."


class Call(NamedTuple):
    """An aggregate over a frame: the id of its result, Spark's `AggregateExpression` or `Lag`, and the frame's length.

    The length is in microseconds, or for a frame of rows the number of events before the event itself.
    """

    identity: int
    function: JavaObject
    preceding: int


class Frames(NamedTuple):
    """PARTITION BY, the column of ORDER BY, the calls, whether their frames are numbers of rows, and one is `lag`."""

    keys: list[JavaObject]
    time: JavaObject
    calls: list[Call]
    of_rows: bool
    has_lag: bool

    @property
    def window(self) -> Range | Counted:
        """The window of a query with these frames: the widest one."""
        widest = max(call.preceding for call in self.calls)
        return Counted(widest + 1, 1) if self.of_rows else Range(widest)

    def value(
        self, made: Call, aggregate: Callable[[JavaObject], Aggregate], meaning: Callable[[JavaObject], Expression],
        aggregates: list[Aggregate],
    ) -> Expression:  # fmt: skip
        """The value of a call over `aggregates`, to which its own are added.

        `lag(x, n)` is the first value of n + 1 events, if the key has had so many.
        """
        if kind_of(made.function) != "Lag":
            return self._over(aggregate(made.function), made, aggregates)
        value, default = meaning(made.function.input()), constant_default(made.function, meaning)
        first = self._over(Aggregate("first", value, None, value.type), made, aggregates)
        count = self._over(Aggregate("count", None, None, "bigint"), made, aggregates)
        complete = call("eq", (count, literal(made.preceding + 1, "bigint")), "boolean")
        return call("case", (complete, first, default), value.type)

    def _over(self, aggregate: Aggregate, made: Call, aggregates: list[Aggregate]) -> Column:
        """An aggregate with its own frame, if that is shorter than the widest."""
        if made.preceding < max(one.preceding for one in self.calls):
            own = "preceding_rows" if self.of_rows else "preceding_us"
            aggregate = msgspec.structs.replace(aggregate, **{own: made.preceding})
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
            f"`{text_of(function)}` ignores NULLs, which is not answered over events.",
            "Leave IGNORE NULLS out, or leave the events with NULL out by WHERE.",
        )


def frames_of(catalyst: Catalyst, node: JavaObject) -> Frames:
    """Read a `Window` node.

    Raises:
        UnsupportedQuery: this version does not support its order, a frame or a function.
    """
    order = items(node.orderSpec())
    aliases = items(node.windowExpressions())
    lags = [kind_of(alias.child().windowFunction()) == "Lag" for alias in aliases]
    times = ("timestamp", WINDOW) if any(lags) else ("timestamp",)
    if len(order) != 1 or kind_of(order[0].direction()) != "Ascending" or type_of(order[0].child()) not in times:
        raise UnsupportedQuery(
            f"OVER (… ORDER BY {', '.join(text_of(one) for one in order) or 'nothing'}) is not answered.",
            "Order by the event time alone, a timestamp, upwards.",
        )
    keys = items(node.partitionSpec())
    for key in keys:
        if kind_of(key) != "AttributeReference":
            raise UnsupportedQuery(f"PARTITION BY `{text_of(key)}` is a constant.", "Leave it out.")
    of_rows = {_counts_rows(alias.child()) for alias in aliases}
    if len(of_rows) > 1:
        raise UnsupportedQuery("The query has frames of rows and frames of time.", "Make them two queries.")
    calls = [_call(catalyst, alias) for alias in aliases]
    return Frames(keys, order[0].child(), calls, True in of_rows, any(lags))


def _counts_rows(over: JavaObject) -> bool:
    return kind_of(over.windowSpec().frameSpecification().frameType()) == "RowFrame"


def whole(catalyst: Catalyst, number: JavaObject) -> int:
    """The value of a constant whole number."""
    return int(str(catalyst.constant(number)))


def _call(catalyst: Catalyst, alias: JavaObject) -> Call:
    over = alias.child()
    frame = over.windowSpec().frameSpecification()
    function = over.windowFunction()
    if kind_of(function) == "Lag":
        _check_nulls(function)
        rows = whole(catalyst, function.inputOffset())
        if not 0 <= rows < MAX_EVENTS:
            raise UnsupportedQuery(f"`{text_of(function)}` is of a later event, or of one too far back.", _LAG)
        return Call(id_of(alias), function, rows)
    if kind_of(function) != "AggregateExpression":
        raise UnsupportedQuery(f"`{text_of(function)}` OVER is not answered.", "Use an aggregate function, or lag.")
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
            f"The frame {_shown(frame)} is unbounded: every event would be stored indefinitely.",
            f"Bound it. {_CURE} Or group by the keys in update mode, where each row has the current total.",
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
