"""Windowed queries as frozen values that can be compared, hashed, stored and shared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import msgspec

from millpond.errors import QueryTypeError
from millpond.model.aggregates import Aggregate
from millpond.model.budget import Budget
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, Expression
from millpond.model.functions import UserFunction
from millpond.model.windows import RUNNING, Counted, Distinct, Pattern, Processed, Range, Session, Window


class Named(msgspec.Struct, frozen=True):
    """An expression and the name of its output column."""

    name: str
    expression: Expression


def named_once(columns: Sequence[Named]) -> tuple[Named, ...]:
    """Returns the columns after a check that their names are distinct.

    Raises:
        QueryTypeError: two columns have the same name.
    """
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise QueryTypeError(f"Two columns of the query are called {twice[0]}.", "Give one another name with AS.")
    return tuple(columns)


class Deduplication(msgspec.Struct, frozen=True):
    """Leaves out an event if another event with equal `columns` precedes it by at most `within_us` of event time.

    Of events with equal times, the first is taken: by source partition and offset or, without an order, by values.
    Columns are compared like keys: NULL equals NULL, and NaN equals NaN.
    """

    columns: tuple[Column, ...]
    within_us: int


class GroupingSet(msgspec.Struct, frozen=True):
    """One set of ROLLUP, CUBE or GROUPING SETS: the positions of its keys in `Query.keys`, and Spark's `grouping_id()`.

    The other keys are NULL in its rows.
    """

    keys: tuple[int, ...]
    id: int


class Query(msgspec.Struct, frozen=True, cache_hash=True):
    """One windowed aggregation over one stream.

    `keys` and the arguments and filters of the aggregates are over the stream's columns. `output` and `having` are over
    `key:i` and `agg:i` (positions in `keys` and `aggregates`), `window` (a struct), `window.start`, `window.end` and
    `window.time`, the last microsecond of the window. Unset fields are left out of the JSON of the query.

    - `event_time`: the name of a column; empty if the query has no event time, so that no event is late.
    - `delay_us`: an event is late, and dropped, iff its time is at or before the watermark, which is the largest event
      time seen minus the delay.
    - `late`: the sink of late rows (late events that WHERE takes); without it, they are only counted.
    - `functions`: the user functions that the query calls.
    - `event`: the expressions behind `event:i` in `output` and `having`, for windows with one row per event.
    - `emit`: `update` emits every change of a row in its epoch; otherwise a row is emitted when the watermark passes
      its window.
    - `correct_us`: events that are later than the delay by less than this are still taken, and correct rows that were
      already emitted; see `plan.options.output_modes`.
    - `late_by`: `window` judges an event by the end of the first of its windows that closes instead
      of by its own time; see `plan.options.output_modes`.
    - `deduplicate`: repeated events of the stream are left out before the query; see `plan.groups.deduplication`.
    - `sets`: the grouping sets, if there are several; the last key is then the id of the set.
    - `unnest`: an array of structs over results that meet HAVING. A result has one row for each element, whose fields
      are `each.i` in `output`; without it, a result is one row.
    - `zone`: the time zone in which its text was analysed, if it is not that of the session.
    - `ttl_us`: the `state.ttl` of the query, if keys of its first events are forgotten after it.
    """

    name: str
    stream: str
    event_time: str
    delay_us: int
    window: Window
    keys: tuple[Expression, ...]
    aggregates: tuple[Aggregate, ...]
    output: tuple[Named, ...]
    where: Expression | None = None
    having: Expression | None = None
    sink: Sink = Sink()
    serve: bool = False
    text: str = ""
    late: Sink | msgspec.UnsetType = msgspec.UNSET
    functions: tuple[UserFunction, ...] | msgspec.UnsetType = msgspec.UNSET
    event: tuple[Expression, ...] | msgspec.UnsetType = msgspec.UNSET
    emit: str | msgspec.UnsetType = msgspec.UNSET
    correct_us: int | msgspec.UnsetType = msgspec.UNSET
    deduplicate: Deduplication | msgspec.UnsetType = msgspec.UNSET
    budget: Budget | msgspec.UnsetType = msgspec.UNSET
    late_by: str | msgspec.UnsetType = msgspec.UNSET
    sets: tuple[GroupingSet, ...] | msgspec.UnsetType = msgspec.UNSET
    ttl_us: int | msgspec.UnsetType = msgspec.UNSET
    zone: str | msgspec.UnsetType = msgspec.UNSET
    unnest: Expression | msgspec.UnsetType = msgspec.UNSET

    def _repr_html_(self) -> str:
        """How a notebook shows the query."""
        return query_html(self.name, self.text)

    @property
    def unnested(self) -> Expression | None:
        """The array of which each element is a row of a result; None: a result is one row."""
        return None if isinstance(self.unnest, msgspec.UnsetType) else self.unnest

    @property
    def grouping_sets(self) -> tuple[GroupingSet, ...]:
        """The grouping sets; empty if all rows are grouped by all keys."""
        return () if isinstance(self.sets, msgspec.UnsetType) else self.sets

    @property
    def of_event(self) -> tuple[Expression, ...]:
        """The expressions over the stream's columns that a row shows of its event."""
        return () if isinstance(self.event, msgspec.UnsetType) else self.event

    @property
    def row_per_event(self) -> bool:
        """Whether each event has a row, which may show values of it."""
        return not isinstance(self.event, msgspec.UnsetType)

    @property
    def streams(self) -> tuple[str, ...]:
        """The stream that the query reads, as a tuple of one name."""
        return (self.stream,)

    @property
    def updating(self) -> bool:
        """Whether the query emits every change of a row (update mode)."""
        return self.emit == "update"

    @property
    def corrected_for_us(self) -> int:
        """How much later than the delay an event may be to still correct rows; 0 if rows are final."""
        return 0 if isinstance(self.correct_us, msgspec.UnsetType) else self.correct_us

    @property
    def changing(self) -> bool:
        """Whether an emitted row may be replaced or deleted later; rows then have additional columns that say so."""
        return self.updating or self.corrected_for_us > 0

    @property
    def late_after_us(self) -> int:
        """The delay after which an event is late: `delay_us` plus the time for which rows are corrected."""
        return self.delay_us + self.corrected_for_us

    @property
    def late_by_window(self) -> bool:
        """Whether an event is late when the first of its windows has closed, not when its own time has passed."""
        return self.late_by == "window"

    @property
    def deduplicated(self) -> Deduplication | None:
        """Which events are left out as repeated; None: no events are."""
        return None if isinstance(self.deduplicate, msgspec.UnsetType) else self.deduplicate

    @property
    def user_functions(self) -> dict[str, UserFunction]:
        """The user functions that the query calls, by the `function` of the aggregates that call them."""
        return {} if isinstance(self.functions, msgspec.UnsetType) else {made.function: made for made in self.functions}

    @property
    def late_sink(self) -> Sink | None:
        """The sink of late rows, if there is one."""
        return None if isinstance(self.late, msgspec.UnsetType) else self.late


def query_html(name: str, text: str) -> str:
    """A query as HTML: its name and its text.

    >>> query_html("spend", "SELECT a < 1 …")
    '<p>query spend</p><pre>SELECT a &lt; 1 …</pre>'
    """
    return f"<p>query {escape(name)}</p><pre>{escape(text.strip())}</pre>"


def changed_functions(before: Iterable[Query], after: Iterable[Query]) -> list[str]:
    """The sorted labels `name@version` of user functions that differ between both, despite equal name and version."""
    old, new = (
        {made.label: made for query in some for made in query.user_functions.values()} for some in (before, after)
    )
    return sorted(label for label in {*old} & {*new} if old[label] != new[label])


def has_no_start(window: Window) -> bool:
    """Whether a query that is added later takes every event from then on, instead of beginning with a window."""
    return window == RUNNING or isinstance(window, Distinct | Processed)


def length_us(window: Window) -> int:
    """The largest size of a window; for sessions the gap, their least length; 0 for windows that are not a time."""
    if isinstance(window, Counted | Distinct | Pattern | Processed):
        return 0
    if isinstance(window, Range):
        return window.preceding_us + 1
    return window.gap_us if isinstance(window, Session) else window.longest_us
