"""Reads a join side that consists of an upstream query's rows: its windows, and the columns of its event time."""

from __future__ import annotations

from collections.abc import Sequence

from millpond.model.expressions import Column
from millpond.model.query import Query
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.plan.upstream.rows_as_stream import after_us, times_of
from millpond.spark.analysis.below_aggregation import InputTranslator
from millpond.spark.analysis.joins.bounds import Bound
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, delay_ms, id_of, kind_of, type_of


class RowsSide:
    """Determines the event time of a side while the condition is read.

    If the rows show complete windows, the event time is always the last microsecond of the window, so that all joins
    over one query agree. Otherwise it is the first time column that the condition uses. `outputs` are the columns of
    the side.
    """

    def __init__(self, catalyst: Catalyst, reader: InputTranslator, outputs: Sequence[JavaObject]) -> None:
        self._catalyst, self._reader = catalyst, reader
        self._names, self._upstreams = reader.source.names, reader.source.upstreams
        declared = reader.input_plan.watermark is not None  # otherwise it is the delay of the upstream query itself
        delays = (delay for column in outputs if (delay := delay_ms(column)) is not None and declared)
        self.delay_us = max(delays, default=0) * 1000  # no row is late, and a longer delay would only emit rows later
        self.event_time: str | None = None

    @property
    def sliding(self) -> Sliding | None:
        """The windows of the rows, if they are hopping or tumbling windows."""
        windows = {one.window if isinstance(one, Query) else None for one in self._upstreams}
        window = windows.pop()
        return window if isinstance(window, Sliding) and not windows else None

    @property
    def times(self) -> tuple[str, ...]:
        """The columns that give the time of the rows."""
        first, *others = map(times_of, self._upstreams)
        return tuple(time for time in first if all(time in other for other in others))

    def window(self, expression: JavaObject) -> str | None:
        """The name of the window if an expression is a complete window; otherwise None."""
        node = self._over_stream(expression)
        if kind_of(node) != "AttributeReference" or type_of(node) != WINDOW:
            return None
        return self._names.get(id_of(node))

    def bound(self, expression: JavaObject) -> Column | None:
        """The column for a bound of a window, or for its last microsecond; None for other expressions."""
        node = self._over_stream(expression)
        if kind_of(node) not in ("GetStructField", "PreciseTimestampConversion"):
            return None
        found = self._reader.bound(node)
        return found if isinstance(found, Column) else None

    def after_us(self, expression: JavaObject) -> int | None:
        """By how many µs an expression is later than the event time; None if it does not give the time."""
        node = self._over_stream(expression)
        found = self.bound(node)
        if found is not None:
            return self.named_after_us(found.name)
        own = self._names.get(id_of(node)) if kind_of(node) == "AttributeReference" else None
        return None if own is None else self.named_after_us(own)

    def named_after_us(self, column: str) -> int | None:
        """The same for a column of the stream."""
        times = self.times
        if column not in times:
            return None
        if self.event_time is None:
            alike = (time for time in times if self._apart_us(time, column) is not None)
            self.event_time = next((time for time in alike if time.endswith(".time")), column)
        return self._apart_us(column, self.event_time)

    def _apart_us(self, column: str, other: str) -> int | None:
        """How many µs one time column is after another in every row; None if this differs between rows."""
        found = {after_us(upstream, column, other) for upstream in self._upstreams}
        return found.pop() if len(found) == 1 else None

    def _over_stream(self, expression: JavaObject) -> JavaObject:
        """The expression over the columns of the stream, without an alias."""
        for layer in self._reader.input_plan.layers:
            expression = self._catalyst.substitute(expression, layer)
        while kind_of(expression) in ("Alias", "KnownNotNull", "KnownNullable"):
            expression = expression.child()
        return expression


def same_window(left: RowsSide, right: RowsSide, names: tuple[str, str]) -> Bound | None:
    """The bound on the two event times for equal windows, which end at the same time; None if this cannot be concluded.

    `exact` says that windows with the same end are equal.
    """
    after = left.named_after_us(f"{names[0]}.end"), right.named_after_us(f"{names[1]}.end")
    if after[0] is None or after[1] is None:
        return None
    apart = after[0] - after[1]
    alike = left.sliding is not None and right.sliding is not None and left.sliding.size_us == right.sliding.size_us
    return Bound(apart, apart, alike)
