"""Computes the result rows of windows that are runs of events: `OVER` frames, count windows and pattern matches.

Frames overlap, but no event is summed twice: sums are differences of running sums, which is exact on integers, and
extremes merge two runs whose lengths are powers of two. Only aggregates without partial results read
every frame completely.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays import Ints, Mask, places_of
from millpond.kernels.columns import Array, Values, from_arrow
from millpond.model.aggregates import ORDERED, RUNNING_TOTAL
from millpond.model.expressions import Expression
from millpond.model.windows import Counted, Distinct, Pattern
from millpond.plan.groups.build import presence_filter
from millpond.plan.groups.event_log import ties_of
from millpond.plan.groups.measures import measures_of
from millpond.plan.groups.plan import GroupPlan, Measure, QueryPlan
from millpond.runtime.aggregates.finish import finish
from millpond.runtime.aggregates.partials import Partials
from millpond.runtime.event_log.event_aggregates import input_of_frames
from millpond.runtime.event_log.event_order import in_order, with_position
from millpond.runtime.event_log.rank_events import RankedEvents, RunningTotal
from millpond.runtime.event_log.select_events import passed_mask, value_column, value_name
from millpond.runtime.rows.query_families import Family, QueryRows
from millpond.runtime.rows.window_rows import BlockKeys, checked, of_events, rows_of_results, take_values
from millpond.state.keys.key_dictionary import KeyDictionary
from millpond.state.keys.keys import canonical
from millpond.state.layout.cells import extreme_of
from millpond.state.layout.event_log import Events
from millpond.state.layout.merge_rules import (
    ADD,
    MergeRule,
    identities,
    is_low_word,
    merged,
    merged_overlapping,
    rule_of,
)

AT_ONCE = 1 << 20
"""About this many events of frames are held at once; a frame with more events is computed alone."""

_HALF_BITS = 26
_WORD_BITS = 52


def cut_by(cost: Ints) -> Iterator[tuple[int, int]]:
    """The bounds of consecutive parts of about `AT_ONCE` in cost; row i costs `cost[i]`."""
    if not len(cost):
        return
    part = (np.cumsum(cost) - cost) // AT_ONCE
    bounds = np.flatnonzero(np.diff(part, prepend=-1, append=part[-1] + 1)).tolist()
    yield from pairwise(bounds)


class DueFrames(NamedTuple):
    """Rows of one query: for aggregate j, row i is computed from the events `lows[j][i]` … `highs[j][i]` - 1.

    The last of `lows` and of `highs` belong to the whole window, which contains all frames. `events` are sorted by
    slot, then in the order that frames use. Row i is the row of event `at[i]`, with the window [`starts_us[i]`,
    `ends_us[i]`). `totals`: for aggregates whose frames reach back to events that are not stored, by their positions,
    the columns of their measures with a value for each row.
    """

    events: Events
    lows: Sequence[Ints]
    highs: Sequence[Ints]
    at: Ints
    starts_us: Ints
    ends_us: Ints
    totals: Mapping[int, Mapping[str, npt.NDArray[Any]]] = {}

    def cut(self, plan: QueryPlan) -> Iterator[DueFrames]:
        """The rows in parts that are computed one after the other."""
        if not len(self.at):
            return
        reads_events = any(one.logged and one.function not in ORDERED for one in plan.query.aggregates)
        cost = self.highs[-1] - self.lows[-1] if reads_events else np.ones(len(self.at), np.int64)
        for first, end in cut_by(cost):
            rows = slice(first, end)
            base, top = int(self.lows[-1][rows].min()), int(self.highs[-1][rows].max())
            lows, highs = ([bound[rows] - base for bound in bounds] for bounds in (self.lows, self.highs))
            totals = {i: {name: column[rows] for name, column in some.items()} for i, some in self.totals.items()}
            bounds_us = self.starts_us[rows], self.ends_us[rows]
            yield DueFrames(self.events.between(base, top), lows, highs, self.at[rows] - base, *bounds_us, totals)


def rows_of_events(
    group: GroupPlan, family: Family, due: DueFrames, dictionary: KeyDictionary, buckets: int
) -> QueryRows:  # fmt: skip
    """The rows of the family's query, and the number of rows that HAVING withheld.

    Raises:
        OverflowedError: an exact sum, or an output expression, leaves its SQL type.
        UserFunctionError: a user function failed.
    """
    plan = family.first
    slots, places = places_of(due.events.slots)
    due = due._replace(events=due.events._replace(slots=places))
    keys = BlockKeys(group, dictionary, slots)
    inputs = _inputs(plan, due, keys)
    return rows_of_results(group, plan, places[due.at], (due.starts_us, due.ends_us), inputs, keys, buckets)


def _inputs(plan: QueryPlan, due: DueFrames, keys: BlockKeys) -> dict[str, Values]:
    query, size = plan.query, len(due.at)
    presence, ties = presence_filter(query), ties_of(query.aggregates)
    events = in_order(due.events, ties) if ties else due.events
    ordered = isinstance(query.window, Counted) and query.row_per_event  # events of equal time have an order
    if ordered or isinstance(query.window, Pattern):
        events = with_position(due.events, np.arange(due.events.rows))
    frames, ranked = Frames(due.events), RankedEvents(query.aggregates, due.events, due.at)
    inputs = {}
    for i, (aggregate, low, high) in enumerate(zip(query.aggregates, due.lows, due.highs, strict=False)):
        if aggregate.function == RUNNING_TOTAL:
            values = _running_total(ranked.total(aggregate), due.events)
        elif aggregate.function in ORDERED:
            values = ranked.values(aggregate)
        elif aggregate.logged:
            aggregate_input = input_of_frames(aggregate, presence, events, low, high)
            values = of_events(plan, aggregate_input, due.events.slots[due.at].astype(np.int64), keys)
        else:
            measures = measures_of(aggregate, presence)
            found = due.totals[i] if i in due.totals else frames.columns(measures, low, high)
            values = finish(aggregate, measures, {f"{measures[-1].id}:n": np.zeros(size, np.int64), **found})
        inputs[f"agg:{i}"] = checked(plan, values)
    at = pa.array(due.at)
    # as Spark, the row of equal events has 0.0 for -0.0; the event that `keeps` chooses is emitted unchanged
    one_of_equal = query.keys if isinstance(query.window, Distinct) and not query.window.keeps else ()
    for i, value in enumerate(query.of_event):
        column = value_column(due.events, value).take(at)
        inputs[f"event:{i}"] = from_arrow(canonical(column) if value in one_of_equal else column, value.type)
    return inputs


def _running_total(total: RunningTotal, events: Events) -> Values:
    """The values of an aggregate of the events up to each one in an order."""
    measures = measures_of(total.aggregate, None)
    none = {f"{measures[-1].id}:n": np.zeros(len(total.places), np.int64)}
    events = events.take(total.places)
    frames = Frames(events, _ValueFacts(events, total.aggregate.arguments[0]))
    columns = none | frames.columns(measures, total.lows, total.highs)
    return take_values(finish(total.aggregate, measures, columns), total.rows)


class EventFacts:
    """Events of the log as `PartialsInput`: conditions and values were evaluated when the events arrived."""

    def __init__(self, events: Events) -> None:
        self._columns = events.columns

    def filter_of(self, condition: Expression | None) -> Expression | None:
        return condition

    def passed(self, name: Any) -> Mask | None:
        return None if name is None else passed_mask(self._columns, name)

    def values(self, expression: Expression) -> Array:
        stored = from_arrow(self._columns[value_name(expression)], expression.type)
        if not stored.null.any():
            without_nulls: Array = stored.data
            return without_nulls
        data: Array = stored.data.copy()
        data[stored.null] = 0
        return data


class _ValueFacts(EventFacts):
    """The same, where the only condition is that a value is not NULL, which the log does not store."""

    def __init__(self, events: Events, value: Expression) -> None:
        super().__init__(events)
        self._value = value

    def passed(self, name: Any) -> Mask | None:
        return None if name is None else np.asarray(self._columns[value_name(self._value)].is_valid())


class Carried(NamedTuple):
    """Cells of earlier events that are not stored: each is inserted before the event at `at` (ascending).

    The names of `columns` begin with the ids of measures.
    """

    at: Ints
    columns: Mapping[str, npt.NDArray[Any]]


class Frames:
    """Computes measures of frames: each event is a cell, and a frame is a run of cells, `carried` ones included."""

    def __init__(self, events: Events, facts: EventFacts | None = None, carried: Carried | None = None) -> None:
        self._partials = Partials(facts or EventFacts(events), np.arange(events.rows), events.rows)
        self._every = np.arange(events.rows)
        self._added: set[str] = set()
        self._carried = carried or Carried(self._every[:0], {})

    def columns(self, measures: Sequence[Measure], low: Ints, high: Ints) -> dict[str, npt.NDArray[Any]]:
        """The columns of some measures, with one row per frame [low, high)."""
        for measure in measures:
            if measure.id not in self._added:
                self._partials.add(measure)
                self._added.add(measure.id)
        ids = {measure.id for measure in measures}
        known, carried = self._partials.columns(self._every), self._carried.columns
        names = [name for name in {**known, **carried} if name.partition(":")[0] in ids and not is_low_word(name)]
        merged_columns: dict[str, npt.NDArray[Any]] = {}
        for name in names:
            rule, complete = rule_of(name), self._with_carried(name, known)
            if ":w" in name:
                _add_words(merged_columns, name, complete, low, high)
            else:
                merge = merged_frames if rule.inverse is None else _difference
                merged_columns[name] = merge(rule, complete, low, high)
        return merged_columns

    def _with_carried(self, name: str, known: Mapping[str, Ints]) -> npt.NDArray[Any]:
        """A column of all cells; where there is none of the events, or of the carried cells, it has no effect."""
        at, columns = self._carried
        column, carried = extreme_of(name, known), extreme_of(name, columns)
        if not len(at):
            assert column is not None
            return column
        one = carried if column is None else column
        assert one is not None
        rule = rule_of(name)
        column = identities(rule, one.dtype, len(self._every)) if column is None else column
        return np.insert(column, at, identities(rule, one.dtype, len(at)) if carried is None else carried)


def _difference(rule: MergeRule, column: Ints, low: Ints, high: Ints) -> Ints:
    """The merged values of each frame [low, high), from running results."""
    assert rule.inverse is not None
    first = np.full(1, rule.identity, np.int64)
    running = np.concatenate([first, rule.ufunc.accumulate(column, dtype=np.int64)])
    return np.asarray(rule.inverse(running[high], running[low]))  # correct even if a running sum wraps around


def _add_words(columns: dict[str, npt.NDArray[Any]], name: str, column: Ints, low: Ints, high: Ints) -> None:
    """Sum words in halves, because sums of full words of many events would leave int64; adds the results to `columns`.
    """
    prefix, _, place = name.rpartition(":w")
    lower = _difference(ADD, column & ((1 << _HALF_BITS) - 1), low, high)
    upper = _difference(ADD, column >> _HALF_BITS, low, high)
    parts = {
        int(place): lower + ((upper & ((1 << _HALF_BITS) - 1)) << _HALF_BITS),
        int(place) + 1: upper >> (_WORD_BITS - _HALF_BITS),
    }
    for k, part in parts.items():
        word = f"{prefix}:w{k}"
        if part.any() or word == name:
            columns[word] = columns[word] + part if word in columns else part


def merged_frames(rule: MergeRule, values: npt.NDArray[Any], low: Ints, high: Ints) -> npt.NDArray[Any]:
    """The merged values of each frame [low, high), from two runs that may overlap.

    >>> merged_frames(rule_of("x:min"), np.array([3, 1, 2]), np.array([0, 2]), np.array([3, 3])).tolist()
    [1, 2]

    Raises:
        ValueError: the rule may not be applied twice to an event.
    """
    level = np.frexp((high - low).astype(np.float64))[1] - 1
    results = identities(rule, values.dtype, len(low))
    for step in range(int(level.max()) + 1 if len(level) else 0):
        width = 1 << step  # values[i] merges `width` values from i on
        at = np.flatnonzero(level == step)
        results[at] = merged_overlapping(rule, values[low[at]], values[high[at] - width])
        values = merged(rule, values[:-width], values[width:])
    return results
