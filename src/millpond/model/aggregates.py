"""An aggregate of a query, and the functions that need the events themselves."""

from __future__ import annotations

from typing import Literal as OneOf

import msgspec

from millpond.model.calendars.months import Months
from millpond.model.expressions import Expression, Literal
from millpond.model.functions import PREFIX
from millpond.model.types import is_known

NTH = "nth"
"""The value of the n-th event of a frame of rows: `nth_value` in SQL. Its parameter is n; only `Counted` windows have
it.
"""

APPROX_DISTINCT = "approx_count_distinct"
"""Its `other` is a constant, the largest relative standard error allowed; its result is never NULL."""

DISTINCT_VALUES = (
    "sum_distinct", "avg_distinct", "bit_xor_distinct", "stddev_samp_distinct", "stddev_pop_distinct",
    "var_samp_distinct", "var_pop_distinct", "skewness_distinct", "kurtosis_distinct",
)  # fmt: skip
"""The functions of the distinct values of one argument that are computed as those of all values are."""

LOGGED = (
    "count_distinct", *DISTINCT_VALUES, "percentile", "percentile_disc", "approx_percentile", "mode", "collect_list",
    "collect_set", "first", "last", "min_by", "max_by", "listagg", "listagg_distinct", "histogram_numeric", "product",
)  # fmt: skip
"""Functions that are computed from the event log: they need single events, or distinct values, which are not stored.

`first` and `last` order events by event time. Events with equal times are ordered by source partition and offset or,
without these, by values (see `plan.groups.event_log.ties_of`). `min_by(argument, other)` compares `other`.
`parameters` are the fractions of a percentile, or the number of bins of a histogram. For a listagg they are the
delimiter, and then one of `DIRECTIONS` for each expression of WITHIN GROUP; these expressions are the arguments after
the first.
"""

RANKS = ("row_number", "rank", "dense_rank")
"""Functions that rank an event. Queries with a `Range` window rank among events of one key and time. Those with a
ranked `Distinct` window rank among all events of the key until now.

The arguments are the expressions of ORDER BY, and `parameters` has one of `DIRECTIONS` for each. The arguments of
`row_number` go on with other columns of the event, which decide ties, so that equal ranks mean equal rows. Ties among
all events until now are ordered by event time, then as for `first` and `last`.
"""

SHARES = ("percent_rank", "cume_dist", "ntile")
"""Functions that say where an event is among all events of its key and time; otherwise as `RANKS`.

`ntile` has its number of parts as a last parameter, and orders ties like `row_number`.
"""

NEIGHBOURS = ("lag", "lead", "nth_value", "running_total")
"""Functions that read a value of another event of the same key and time; otherwise as `row_number`.

The value is a last argument. After the directions, the parameters are: how many events before (`lag`) or after (`lead`)
the event, and the result if there is no such event; or for `nth_value` the number of the event, one of `FRAMES`, and
the number of expressions in which events that tie are equal. A negative number counts from the end of the frame: -1 is
`last_value`. A further parameter `IGNORE_NULLS` counts only events with a value.
"""

RUNNING_TOTAL = "running_total"
"""An aggregate of the events up to one in an order; otherwise as `nth_value`.

After the directions, the parameters are: the aggregate function, one of `FRAMES`, and the number of expressions in
which events that tie are equal.
"""

IGNORE_NULLS = "ignore nulls"
"""The last parameter of one of `NEIGHBOURS` that counts only events with a value."""

OR_NULL = "null on overflow"
"""The parameter of a sum or average that is NULL where its total leaves its type: `try_sum`, `try_avg`."""

FRAMES = ("peers", "rows", "partition")
"""Where the frame of `nth_value` ends: with the last event that ties, with the event itself, or with the partition."""

Running = OneOf["rows", "peers"]
"""Where the frame of a running total over events ends: with the event of the row, or the last event of equal time."""

ORDERED = (*RANKS, *SHARES, *NEIGHBOURS)
"""Functions of the events of a key and time in an order; only queries with a `Range` window have them."""

_LOGGED = frozenset((*LOGGED, NTH, *ORDERED))

LISTAGGS = ("listagg", "listagg_distinct")
"""The functions of `LOGGED` that concatenate strings."""

DIRECTIONS = ("asc nulls first", "asc nulls last", "desc nulls first", "desc nulls last")
"""The sort directions of a listagg or a rank."""

DESCENDING = "desc"
"""The last parameter of a `percentile`, `percentile_disc` or `mode` whose values are in descending order."""

PERCENTILE = "approx_percentile"
"""Answered from tallies, within its `accuracy`, where it needs no stored events (see `plan.groups.tallies`)."""

ACCURACY = 10_000
"""Spark's default accuracy of an approximate percentile."""


class Aggregate(msgspec.Struct, frozen=True, cache_hash=True):
    """`function(argument) FILTER (WHERE filter)`; `argument` None is `count(*)`; `type` is the result's SQL type.

    `other` is the second argument, if the function has one; `more` are the arguments after the second; `parameters`
    are additional constants. `preceding_us`: the aggregate's own frame, if it is shorter than the frame of its `Range`
    window; `preceding_months`: the same in months. `preceding_rows`: the same for a `Counted` window, in events before
    that of the row (below 0: after it). `following_rows`: where this frame ends, in events after that of the row
    (below 0: before it); unset: with the row's event. `running`: the frame begins with the first event of the key, and
    ends with the event of the row or with the last one of equal time. `accuracy`: the accuracy of an approximate
    percentile, if it differs from `ACCURACY`.
    """

    function: str
    argument: Expression | None
    filter: Expression | None
    type: str
    other: Expression | msgspec.UnsetType = msgspec.UNSET
    parameters: tuple[Literal, ...] | msgspec.UnsetType = msgspec.UNSET
    more: tuple[Expression, ...] | msgspec.UnsetType = msgspec.UNSET
    preceding_us: int | msgspec.UnsetType = msgspec.UNSET
    accuracy: int | msgspec.UnsetType = msgspec.UNSET
    preceding_rows: int | msgspec.UnsetType = msgspec.UNSET
    following_rows: int | msgspec.UnsetType = msgspec.UNSET
    running: Running | msgspec.UnsetType = msgspec.UNSET
    preceding_months: Months | msgspec.UnsetType = msgspec.UNSET

    @property
    def arguments(self) -> tuple[Expression, ...]:
        """The arguments, in order."""
        first = () if self.argument is None else (self.argument,)
        second = () if isinstance(self.other, msgspec.UnsetType) else (self.other,)
        return first + second + (() if isinstance(self.more, msgspec.UnsetType) else self.more)

    @property
    def logged(self) -> bool:
        """Whether the aggregate is answered from the event log: its function, or the type it compares, has no cells."""
        if self.function in ("min", "max") and self.argument is not None:
            return self.argument.type == "string" or not is_known(self.argument.type)
        return self.function in _LOGGED or self.function.startswith(PREFIX)
