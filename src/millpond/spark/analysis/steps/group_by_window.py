"""Groups the rows of a query by their own window: `GROUP BY w`, or by the bounds of the window.

Rows of one tumbling window are the rows whose time lies in it. So the group is a window of the same size over the time
of the rows, and closes when the upstream query has emitted all rows of the window.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Call, Column, Expression, conjuncts_of
from millpond.model.join import LEFT, RIGHT, Join
from millpond.model.query import Named, Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.types import WINDOW
from millpond.model.windows import RUNNING, Calendar, Counted, Distinct, Range, Session, Sliding, Window
from millpond.plan.upstream.rows_as_stream import bounds_of, passed_column, times_of
from millpond.plan.upstream.upstream_joins import join_times
from millpond.spark.analysis.aggregation_input import InputPlan
from millpond.spark.analysis.input_streams import QueryInput
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, id_of, kind_of, references

_ONE_MICROSECOND = Sliding(1, 1)
_EARLIEST = ("start", "time", "end")
_NULL_REJECTING = ("isnotnull", "eq", "lt", "le", "gt", "ge")
"""Operators that are not TRUE if their first argument is NULL."""


class RowWindow(NamedTuple):
    """The window of rows as a window of the query over them; `parts`: what each grouping key is of that window."""

    event_time: str
    window: Sliding | Calendar
    parts: dict[int, str]


def unqualified(catalyst: Catalyst, names: Mapping[int, str], expression: JavaObject) -> JavaObject:
    """The expression over columns named only as in the stream, so that equal expressions have equal text."""
    named = []
    for column in references(expression):
        if name := names.get(id_of(column)):
            named.append(catalyst.alias(catalyst.named(column, name), name, column))
    return catalyst.substitute(expression, named)


def row_column(node: JavaObject, plan: InputPlan, source: QueryInput) -> str | None:
    """The name of the column of an upstream query's rows that an expression is; None if it is none."""
    if not source.upstreams:
        return None
    node = plan.unaliased(node)
    if kind_of(node) == "AttributeReference":
        return source.names.get(id_of(node))
    found = source.bound(plan, node) if kind_of(node) in ("GetStructField", "PreciseTimestampConversion") else None
    return None if found is None else found.name


def grouped_rows(
    keys: Mapping[int, str | None], source: QueryInput, nullable: Collection[str], *, final: bool
) -> RowWindow | None:
    """The window by which the rows of a query are grouped if no window was made for it; None for other inputs.

    `keys` are the results of `row_column` by expression id. `nullable` and `final`: see `row_window`.

    Raises:
        UnsupportedQuery: see `row_window`; or the branches of a UNION ALL have different windows.
    """
    named = {identity: name for identity, name in keys.items() if name is not None}
    found = [row_window(named, upstream, source.grids, nullable, final=final) for upstream in source.upstreams]
    if any(one != found[0] for one in found):
        raise UnsupportedQuery(
            f"Rows are grouped by {', '.join(named.values())}, but the branches of the union have different windows.",
            "Group by a window over it, such as window(w, '1 hour'), which makes other groups.",
        )
    return found[0] if found else None


def has_windows(steps: Sequence[AnyQuery]) -> bool:
    """Whether rows of inner queries belong to windows; rows without repeats are single events."""
    return not all(isinstance(step, Query) and _emits_single_events(step.window) for step in steps)


def _emits_single_events(window: Window) -> bool:
    return isinstance(window, Distinct) or (isinstance(window, Counted) and window.once is True)


def row_window(
    keys: Mapping[int, str], upstream: AnyQuery, grids: Mapping[str, Sliding], nullable: Collection[str], *, final: bool
) -> RowWindow | None:
    """The window by which rows are grouped; `keys` are the keys that are columns of the rows, by expression id.

    Rows of one hopping window have one time, that of its last microsecond, so they are grouped by this time
    and the window. `grids`: see `grids_of`; `nullable`: see `nullable_times`. `final`: each row is emitted once, so
    rows can also be grouped by a column that is their event time: its groups are windows of a microsecond. Returns None
    if no key is a part of a window.

    Raises:
        UnsupportedQuery: a key is a window that does not show when its rows are complete, or all keys that are times
            of an outer join may be NULL.
    """
    windows = {item.name for item in upstream.output if item.expression.type == WINDOW}
    times = times_of(upstream)
    for name in keys.values():
        whole = name if name in windows else name.rpartition(".")[0]
        if whole in grids and f"{whole}.time" in times:
            parts = {f"{whole}{part}": f"window{part}" for part in ("", ".start", ".end", ".time")}
            found = {identity: parts[of] for identity, of in keys.items() if of in parts}
            return RowWindow(f"{whole}.time", grids[whole], found)
        if name in windows and f"{name}.time" in times:
            return RowWindow(f"{name}.time", _ONE_MICROSECOND, {})
        if name in windows:
            raise UnsupportedQuery(
                f"Rows are grouped by {name}, but it is not the window of an aggregation or of a join.",
                f"Group by its end in each step: SELECT {name}.end AS e in the step below, then GROUP BY e here.",
            )
    window, bounds = _window_and_bounds(upstream)
    own = {identity: bounds[name] for identity, name in keys.items() if name in bounds}
    if window is None or not own:
        if not final or _has_sessions(upstream):
            return None
        moments = {name: identity for identity, name in keys.items() if name in times}
        never_null = [name for name in moments if name not in nullable]
        if moments and not never_null:
            raise UnsupportedQuery(
                f"Rows of an outer join are grouped by {next(iter(moments))}, which is NULL in rows without a partner, "
                "so the group of these rows would never be final.",
                "Group by the event time of the other side as well, or leave out these rows: WHERE … IS NOT NULL.",
            )
        return next((RowWindow(name, _ONE_MICROSECOND, {moments[name]: "window.start"}) for name in never_null), None)
    first = min(own, key=lambda identity: _EARLIEST.index(own[identity]))
    if own[first] == "end":  # a row at the end of its window is at the start of the next one
        return RowWindow(keys[first], window, dict.fromkeys(own, "window.start"))
    return RowWindow(keys[first], window, {identity: f"window.{part}" for identity, part in own.items()})


def nullable_times(query: AnyQuery, queries: Mapping[str, AnyQuery]) -> frozenset[str]:
    """The times of one side of an outer join, which are NULL in rows of the other side alone.

    `queries` are those whose rows the query may read. If WHERE needs a value of the side, there are no such rows.
    """
    if isinstance(query, Selection) and query.stream in queries:
        lower = nullable_times(queries[query.stream], queries)
        return frozenset(item.name for item in query.output if passed_column(query, item.name) in lower)
    if not isinstance(query, Join):
        return frozenset()
    present = {name.partition(":")[0] for name in null_rejected_columns(query.having)}
    nullable = {LEFT: query.preserves(RIGHT), RIGHT: query.preserves(LEFT)}
    one_side = {name: time.sides[0] for name, time in join_times(query).items() if len(time.sides) == 1}
    return frozenset(name for name, side in one_side.items() if nullable[side] and side not in present)


def null_rejected_columns(condition: Expression | None) -> frozenset[str]:
    """The columns that a condition needs: it rejects rows in which one is NULL. Only comparisons are considered."""
    parts = [part for part in conjuncts_of(condition) if isinstance(part, Call) and part.op in _NULL_REJECTING]
    return frozenset(part.args[0].name for part in parts if isinstance(part.args[0], Column))


def _has_sessions(upstream: AnyQuery) -> bool:
    """Whether rows may have the bounds of sessions, which Spark merges where it groups by them."""
    return isinstance(upstream, Query) and isinstance(upstream.window, Session | Range)


def grids_of(query: AnyQuery, queries: Mapping[str, AnyQuery]) -> dict[str, Sliding]:
    """The tumbling windows of a query's window columns, by column; `queries` are those whose rows it may read."""
    grids: dict[str, Sliding] = {}
    for item in query.output:
        if item.expression.type != WINDOW:
            continue
        if isinstance(query, Join):
            window = _of_join(query, item.expression, queries)
        elif isinstance(query, Selection) or isinstance(query.window, Range):
            column, upstream = _window_read(query, item), queries.get(query.stream)
            window = None if upstream is None else grids_of(upstream, queries).get(column or "")
        else:
            window = query.window if isinstance(query, Query) and isinstance(query.window, Sliding) else None
        if window is not None and window.tumbling and window != RUNNING:
            grids[item.name] = window
    return grids


def _window_read(query: Selection | Query, item: Named) -> str | None:
    """The window of the rows that a query reads which is its output `item`."""
    if isinstance(query, Selection):
        return passed_column(query, item.name)
    bounds = times_of(query)
    return query.event_time.removesuffix(".time") if f"{item.name}.end" in bounds else None


def _of_join(join: Join, window: Expression, queries: Mapping[str, AnyQuery]) -> Sliding | None:
    """The window of a column of a join: the join's own, or that of the rows which a side reads."""
    if not isinstance(window, Call):
        return join.when if isinstance(join.when, Sliding) else None
    start = window.args[0]
    side, _, place = start.name.partition(":") if isinstance(start, Column) else ("", "", "")
    value = join.sides[side].values[int(place)] if place.isdecimal() else None
    upstream = queries.get(join.sides[side].stream) if value is not None else None
    if not isinstance(value, Column) or upstream is None:
        return None
    return grids_of(upstream, queries).get(value.name.rpartition(".")[0])


def _window_and_bounds(upstream: AnyQuery) -> tuple[Sliding | Calendar | None, dict[str, str]]:
    """The tumbling window of the rows, if they have one, and which columns are its `start`, `end` or `time`."""
    if isinstance(upstream, Join):
        window = upstream.when
        if not isinstance(window, Sliding) or not window.tumbling:
            return None, {}
        parts = {0: "start", window.size_us: "end", window.size_us - 1: "time"}
        times = {name: time for name, time in join_times(upstream).items() if not time.sides}
        return window, {name: parts[time.after_us] for name, time in times.items() if time.after_us in parts}
    if not isinstance(upstream, Query) or not isinstance(upstream.window, Sliding | Calendar):
        return None, {}
    if upstream.window == RUNNING or not upstream.window.tumbling:
        return None, {}
    return upstream.window, bounds_of(upstream)
