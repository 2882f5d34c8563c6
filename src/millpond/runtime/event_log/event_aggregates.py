"""Aggregates that need individual events: exact percentiles, distinct counts, lists, `first`, `last` and others.

All result rows of a query are computed at once: events are labelled with their result row and sorted by (row, value)
where the function needs it, so that each result row is a run of events. No loop runs over events, keys or windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints, distinct_of, new_values, ordered, repeated
from millpond.kernels.columns import Values, arrow_type, from_arrow, list_of, to_arrow
from millpond.kernels.decimals import to_doubles
from millpond.kernels.ranks import directed, ranks
from millpond.model.aggregates import DESCENDING, DISTINCT_VALUES, Aggregate
from millpond.model.expressions import Column, Expression
from millpond.model.types import bin_centre_type, element_of, is_decimal, is_float
from millpond.model.windows import Framed
from millpond.plan.groups.event_log import logged_rows
from millpond.plan.groups.measures import measures_of
from millpond.plan.groups.plan import QueryPlan
from millpond.plan.groups.tallies import keeps_tallies
from millpond.runtime.aggregates.finish import finish
from millpond.runtime.aggregates.histograms import Bins, binned
from millpond.runtime.aggregates.partials import Partials
from millpond.runtime.event_log.event_order import POSITION
from millpond.runtime.event_log.select_events import passed_mask, value_column
from millpond.state.keys.keys import canonical
from millpond.state.layout.cells import order_codes
from millpond.state.layout.event_log import Events
from millpond.state.layout.tallies import COUNT

_MOST_EMPTY = 16
"""A table of slots may be larger than the number of events and windows by this factor."""


class ResultRows(NamedTuple):
    """Result rows: the slot of each row's key, and its window [start, end).

    No window of a slot contains another window of the same slot, so starts and ends ascend together.
    """

    slots: Ints
    starts_us: Ints
    ends_us: Ints


def value_of(inputs: AggregateInput) -> Values:
    """The aggregate's value for each result row."""
    return _FUNCTIONS[inputs.aggregate.function](inputs)


def input_of_windows(
    aggregate: Aggregate, presence: Expression | None, events: Events, windows: ResultRows
) -> AggregateInput:  # fmt: skip
    """The events that an aggregate takes, with their result rows; `events`: all that are in time, sorted by slot."""
    events = passing(events, logged_rows(aggregate, presence))
    index, rows = rows_of(events, windows)
    return AggregateInput(aggregate, events, index, rows, len(windows.slots))


def passing(events: Events, condition: Expression | None) -> Events:
    """The events that pass a filter stored in the log; None: all pass."""
    return events if condition is None else events.take(passed_mask(events.columns, condition))


def input_of_frames(
    aggregate: Aggregate, presence: Expression | None, events: Events, low: Ints, high: Ints
) -> AggregateInput:  # fmt: skip
    """The events that an aggregate takes, if result row i covers the events `low[i]` … `high[i] - 1`."""
    rows, nth = repeated(high - low)
    index = low[rows] + nth
    condition = logged_rows(aggregate, presence)
    if condition is not None:
        passed = passed_mask(events.columns, condition)[index]
        index, rows = index[passed], rows[passed]
    return AggregateInput(aggregate, events, index, rows, len(low))


def rows_of(events: Events, windows: ResultRows) -> tuple[Ints, Ints]:
    """Pairs of an event's position and a result row's position; an event in k windows is in k pairs."""
    order = np.lexsort((windows.starts_us, windows.slots))
    slots = windows.slots[order]
    if len(slots) and bool(new_values(slots).all()) and slots[-1] < _MOST_EMPTY * (events.rows + len(slots)):
        return _rows_of_single_windows(events, windows)
    edges = distinct_of(np.concatenate([windows.starts_us, windows.ends_us]))
    width = len(edges) + 2
    first = windows.slots[order] * width + np.searchsorted(edges, windows.starts_us[order]) + 1
    last = windows.slots[order] * width + np.searchsorted(edges, windows.ends_us[order])
    # an event between edge i - 1 and edge i belongs to the rows of its slot with first <= i <= last
    at = events.slots.astype(np.int64) * width + np.searchsorted(edges, events.times_us, "right")
    low = np.searchsorted(last, at, "left")
    counts = np.maximum(np.searchsorted(first, at, "right") - low, 0)
    index, nth = repeated(counts)
    return index, order[low[index] + nth]


def _rows_of_single_windows(events: Events, windows: ResultRows) -> tuple[Ints, Ints]:
    """The pairs of `rows_of` if no slot has two windows: a table of slots takes a tenth of the time of a search."""
    row_of_slot = np.full(int(windows.slots.max()) + 2, -1)
    row_of_slot[windows.slots] = np.arange(len(windows.slots))
    rows = row_of_slot[np.minimum(events.slots, len(row_of_slot) - 1)]
    inside = (rows >= 0) & (events.times_us >= windows.starts_us[rows]) & (events.times_us < windows.ends_us[rows])
    index = np.flatnonzero(inside)
    return index, rows[index]


class AggregateInput:
    """The input of an aggregate: pairs of an event (`index`, into `events`) and a result row (`rows`, below `size`)."""

    def __init__(self, aggregate: Aggregate, events: Events, index: Ints, rows: Ints, size: int) -> None:
        self.aggregate, self.size = aggregate, size
        self.events, self.index, self.rows = events, index, rows

    @property
    def fractions(self) -> list[float]:
        """The parameters that are numbers."""
        given = self.aggregate.parameters
        numbers = [one.value for one in given if one.type != "string"] if isinstance(given, tuple) else []
        return [float(number) for number in numbers if number is not None]

    def column(self, argument: int = 0) -> pa.Array:
        """The values of an argument for all of `events`."""
        return value_column(self.events, self.aggregate.arguments[argument])

    def codes(self, argument: int = 0) -> Ints:
        """Integer codes of an argument's values, one per pair, in the order of the values; NULL is least."""
        return ranks(self.column(argument), self.aggregate.arguments[argument].type)[self.index]

    def sort_codes(self) -> Ints:
        """Like `codes`, but so that they ascend in the order of the aggregate, which may be descending."""
        given = self.aggregate.parameters
        descending = isinstance(given, tuple) and any(one.value == DESCENDING for one in given)
        return ~self.codes() if descending else self.codes()

    def position(self) -> Ints:
        """The position of each pair's event in the query's order of events, see `in_order`."""
        return np.asarray(self.events.columns[POSITION])[self.index]

    def counts(self) -> Ints:
        """How many events each pair stands for: more than one if `events` are tallies."""
        counted = self.events.columns.get(COUNT)
        return np.ones(len(self.index), np.int64) if counted is None else np.asarray(counted)[self.index]

    def only(self, pairs: Ints) -> AggregateInput:
        """Selects some of the pairs."""
        return AggregateInput(self.aggregate, self.events, self.index[pairs], self.rows[pairs], self.size)

    def sorted(self, keys: Sequence[Ints]) -> tuple[Ints, Ints]:
        """Positions of the pairs sorted by (row, keys), the major key last, and the `size` + 1 bounds of their rows."""
        order = np.lexsort((*keys, self.rows)) if len(keys) != 1 else _by_row(self.rows, keys[0], self.size)
        return order, np.concatenate([[0], np.cumsum(np.bincount(self.rows, minlength=self.size))])

    def values(self, pairs: Ints, argument: int = 0) -> pa.Array:
        """The values of an argument for some of the pairs."""
        return self.column(argument).take(pa.array(self.index[pairs]))

    def equal_values(self, pairs: Ints) -> pa.Array:
        """Like `values`, for functions that compare values: with one zero and one NaN, as in keys."""
        return canonical(self.values(pairs))

    def one_per_row(self, pairs: Ints, empty: Any, values: Callable[[AggregateInput, Ints], pa.Array]) -> Values:
        """The argument of one pair per row, read by the method `values`; NULL where the row is `empty`."""
        kind = self.aggregate.arguments[0].type
        if not len(self.rows):
            return from_arrow(pa.nulls(self.size, arrow_type(kind)), kind)
        column = values(self, np.where(empty, 0, pairs))
        return from_arrow(pc.if_else(pa.array(~empty), column, pa.scalar(None, column.type)), kind)

    def lists(self, items: pa.Array, bounds: Ints, null: Any = None) -> Values:
        """One list per row: items `bounds[i]` … `bounds[i + 1] - 1`, NULL where `null`."""
        listed = pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), items, type=list_of(items.type))
        return Values(listed) if null is None else Values(listed, null)


def _by_row(rows: Ints, codes: Ints, size: int) -> Ints:
    """Positions sorted by (row, code); ties are in any order."""
    if not len(rows):
        return rows
    low, high = int(codes.min()), int(codes.max())
    if (high - low + 1) * size < 1 << 62:
        return ordered(rows * (high - low + 1) + (codes - low))
    order = np.argsort(codes)
    # rank below row in one integer: sorting plain integers is several times as fast as sorting by two keys
    ranked: Ints = order[np.sort(rows[order] * len(rows) + np.arange(len(rows))) % len(rows)]
    return ranked


def _runs(rows: Ints, codes: Ints) -> Ints:
    """Where each run of equal (row, code) pairs begins; the input is sorted."""
    return np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]) | (codes[1:] != codes[:-1]))) if len(rows) else rows


def _distinct(inputs: AggregateInput) -> Ints:
    """Positions of one pair for each distinct value of each row, sorted by row and value."""
    codes = [inputs.codes(i) for i in range(len(inputs.aggregate.arguments))]
    order, _ = inputs.sorted(codes)
    if not len(order):
        return order
    rows, begins = inputs.rows[order], np.zeros(len(order), bool)
    begins[0] = True
    begins[1:] = rows[1:] != rows[:-1]
    for code in codes:
        begins[1:] |= code[order][1:] != code[order][:-1]
    return order[begins]


def _count_distinct(inputs: AggregateInput) -> Values:
    return Values(np.bincount(inputs.rows[_distinct(inputs)], minlength=inputs.size))


def _collect_list(inputs: AggregateInput) -> Values:
    order, bounds = inputs.sorted([inputs.position()])
    return inputs.lists(inputs.values(order), bounds)


def _collect_set(inputs: AggregateInput) -> Values:
    chosen = _distinct(inputs)
    counts = np.bincount(inputs.rows[chosen], minlength=inputs.size)
    return inputs.lists(inputs.equal_values(chosen), np.concatenate([[0], np.cumsum(counts)]))


def _listagg(distinct: bool) -> Callable[[AggregateInput], Values]:
    """Concatenates texts with a delimiter, in the order of WITHIN GROUP.

    Ties, and texts without such an order, are ordered as by `collect_list` or, if `distinct`, as by `collect_set`.
    """

    def answer(inputs: AggregateInput) -> Values:
        parameters = inputs.aggregate.parameters
        delimiter, *directions = [str(one.value) for one in parameters] if isinstance(parameters, tuple) else [""]
        if distinct:
            inputs = inputs.only(_distinct(inputs))
        keys = [inputs.codes() if distinct else inputs.position()]
        for place in range(len(directions), 0, -1):
            keys += directed(inputs.codes(place), directions[place - 1])
        order, bounds = inputs.sorted(keys)
        lists = pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), inputs.values(order))
        return Values(pc.binary_join(lists, delimiter), np.diff(bounds) == 0)

    return answer


def _histogram(inputs: AggregateInput) -> Values:
    (most,), kind = inputs.fractions, bin_centre_type(element_of(inputs.aggregate.type))
    order, _ = inputs.sorted([inputs.codes()])
    rows, values = inputs.rows[order], _doubles(inputs, order)
    begins = _runs(rows, order_codes(values))  # integers may be equal as doubles
    counts = np.diff(np.append(begins, len(rows))).astype(np.float64)
    histograms = binned(Bins(rows[begins], values[begins], counts), int(most), inputs.size)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(histograms.rows, minlength=inputs.size))])
    assert kind is not None
    if not is_float(kind):  # truncated towards zero; the largest bigint is not exactly a double
        centres = np.where(histograms.centres < 2.0**63, histograms.centres, 0.0).astype(np.int64)
        data: Any = np.where(histograms.centres < 2.0**63, centres, np.iinfo(np.int64).max)
    else:
        data = histograms.centres.astype(np.float32 if kind == "float" else np.float64)
    parts = [to_arrow(Values(data), kind, len(data)), pa.array(histograms.counts)]
    fields = list(arrow_type(element_of(inputs.aggregate.type)))
    return inputs.lists(pa.StructArray.from_arrays(parts, fields=fields), bounds, np.diff(bounds) == 0)


class _Selected:
    """The values of selected pairs as `PartialsInput`: every row passes, and all expressions are `data`."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def filter_of(self, condition: Expression | None) -> None:
        """See `Facts.filter_of`."""

    def passed(self, name: object) -> None:
        """See `Facts.passed`."""

    def values(self, expression: Expression) -> Any:
        return self._data


def _of_distinct(inputs: AggregateInput) -> Values:
    """The function of each row's distinct values, as exact as that of cells."""
    chosen, kind = _distinct(inputs), inputs.aggregate.arguments[0].type
    function = inputs.aggregate.function.removesuffix("_distinct")
    parameters = inputs.aggregate.parameters
    plain = Aggregate(function, Column("value", kind), None, inputs.aggregate.type, parameters=parameters)
    measures = measures_of(plain, None)
    facts = _Selected(from_arrow(inputs.values(chosen), kind).data)
    partials = Partials(facts, inputs.rows[chosen], inputs.size)
    for measure in measures:
        partials.add(measure)
    columns = {}
    for name, column in partials.columns(np.arange(len(partials.ids))).items():
        columns[name] = np.zeros(inputs.size, column.dtype)
        columns[name][partials.ids] = column
    return finish(plain, measures, columns)


def _product(inputs: AggregateInput) -> Values:
    """The product of each row's values in the query's order of events, which decides the last bits."""
    order, bounds = inputs.sorted([inputs.position()])
    counts = np.diff(bounds)
    products = np.ones(inputs.size)
    if len(order):
        values = from_arrow(inputs.values(order), "double").data
        with np.errstate(over="ignore", invalid="ignore"):
            products[counts > 0] = np.multiply.reduceat(values, bounds[:-1][counts > 0])
    return Values(products, counts == 0)


def _percentile(inputs: AggregateInput) -> Values:
    """Linear interpolation between the two nearest values, as Spark's `percentile` does."""
    order, bounds = inputs.sorted([inputs.sort_codes()])
    counts = np.diff(bounds)
    ordered = np.append(_doubles(inputs, order), np.nan)  # the last entry serves rows without values
    results = []
    for fraction in inputs.fractions:
        place = np.maximum(counts - 1, 0) * fraction
        low, high = np.floor(place), np.ceil(place)
        left, right = (ordered[np.where(counts > 0, bounds[:-1] + at.astype(np.int64), -1)] for at in (low, high))
        with np.errstate(invalid="ignore"):
            between = left + (right - left) * (place - low)
        same = (low == high) | (left == right) | (np.isnan(left) & np.isnan(right))
        results.append(np.where(same, left, between))
    return _one_or_list(inputs, results, counts == 0)


def _percentile_disc(inputs: AggregateInput) -> Values:
    """The first value up to which at least the fraction of all values lies, as a double."""
    order, bounds = inputs.sorted([inputs.sort_codes()])
    counts = np.diff(bounds)
    ordered = np.append(_doubles(inputs, order), np.nan)
    results = []
    for fraction in inputs.fractions:
        at = np.maximum(np.ceil(counts * fraction).astype(np.int64) - 1, 0)
        results.append(ordered[np.where(counts > 0, bounds[:-1] + at, -1)])
    return _one_or_list(inputs, results, counts == 0)


def _approx_percentile(inputs: AggregateInput) -> Values:
    """The least value at or below which at least the fraction of all values lies; exact, and in its own type."""
    order, bounds = inputs.sorted([inputs.codes()])
    counts = np.diff(bounds)
    items = []
    for fraction in inputs.fractions:
        at = np.clip(np.ceil(counts * fraction).astype(np.int64) - 1, 0, np.maximum(counts - 1, 0))
        items.append(_picked(order, bounds[:-1] + at))
    if not inputs.aggregate.type.startswith("array<"):
        return inputs.one_per_row(items[0], counts == 0, AggregateInput.equal_values)
    nonempty = np.flatnonzero(counts > 0)
    pairs = np.stack([one[nonempty] for one in items], axis=1).reshape(-1) if len(order) else order
    sizes = np.where(counts > 0, len(items), 0)
    return inputs.lists(inputs.equal_values(pairs), np.concatenate([[0], np.cumsum(sizes)]), counts == 0)


def _doubles(inputs: AggregateInput, pairs: Ints) -> Any:
    column, kind = inputs.equal_values(pairs), inputs.aggregate.arguments[0].type
    data = from_arrow(column, kind).data
    return to_doubles(data, kind) if is_decimal(kind) else data.astype(np.float64)


def _picked(order: Ints, places: Ints) -> Ints:
    """The entries of `order` at `places`; positions out of range give an arbitrary entry."""
    return order[np.clip(places, 0, len(order) - 1)] if len(order) else order


def _one_or_list(inputs: AggregateInput, results: list[Any], empty: Any) -> Values:
    if not inputs.aggregate.type.startswith("array<"):
        return Values(np.where(empty, 0.0, results[0]), empty)
    items = np.stack(results, axis=1).reshape(-1)
    return inputs.lists(pa.array(items), np.arange(inputs.size + 1) * len(results), empty)


def _mode(inputs: AggregateInput) -> Values:
    """The most frequent value of each row; the first one if several are equally frequent."""
    codes = inputs.sort_codes()
    order, _ = inputs.sorted([codes])
    rows = inputs.rows[order]
    begins = _runs(rows, codes[order])
    lengths = np.add.reduceat(inputs.counts()[order], begins) if len(begins) else begins
    best = np.lexsort((-np.arange(len(begins)), lengths, rows[begins]))  # the last of each row wins
    pairs = np.zeros(inputs.size, np.int64)
    pairs[rows[begins][best]] = order[begins[best]]
    return inputs.one_per_row(pairs, np.bincount(inputs.rows, minlength=inputs.size) == 0, AggregateInput.equal_values)


def _end_by(
    codes: Callable[[AggregateInput], Ints], values: Callable[[AggregateInput, Ints], pa.Array], *, last: bool
) -> Callable[[AggregateInput], Values]:
    """The argument of the first or last event of each row in the order of `codes`."""

    def answer(inputs: AggregateInput) -> Values:
        order, bounds = inputs.sorted([codes(inputs)])
        return inputs.one_per_row(_at_end(order, bounds, last), np.diff(bounds) == 0, values)

    return answer


def _at_end(order: Ints, bounds: Ints, last: bool) -> Ints:
    """The first or last pair of each row; arbitrary for a row without pairs."""
    return _picked(order, bounds[1:] - 1 if last else bounds[:-1])


def _nth(inputs: AggregateInput) -> Values:
    """The argument of the n-th event of each row, NULL where a row has fewer."""
    order, bounds = inputs.sorted([inputs.position()])
    places = bounds[:-1] + int(inputs.fractions[0]) - 1
    return inputs.one_per_row(_picked(order, places), places >= bounds[1:], AggregateInput.values)


def _extreme_by(largest: bool) -> Callable[[AggregateInput], Values]:
    """The argument of the event with the least or largest second argument.

    Among events with that argument, `min_by` takes the first one in the query's order, and `max_by` the last one. So
    `max_by(x, event_time)` and `last(y)` choose one event, and so do `min_by(x, event_time)` and `first(y)`. With a
    parameter n the value is a list of the first n such arguments.
    """

    def answer(inputs: AggregateInput) -> Values:
        keys = [inputs.position(), inputs.codes(1)]
        order, bounds = inputs.sorted([~key for key in keys] if largest else keys)
        if not inputs.fractions:
            return inputs.one_per_row(_at_end(order, bounds, False), np.diff(bounds) == 0, AggregateInput.values)
        (most,) = inputs.fractions
        nth = np.arange(len(order)) - np.repeat(bounds[:-1], np.diff(bounds))
        sizes = np.minimum(np.diff(bounds), int(most))
        chosen = order[nth < most]
        return inputs.lists(inputs.values(chosen), np.concatenate([[0], np.cumsum(sizes)]), sizes == 0)

    return answer


_FUNCTIONS: dict[str, Callable[[AggregateInput], Values]] = {
    "count_distinct": _count_distinct,
    **dict.fromkeys(DISTINCT_VALUES, _of_distinct),
    "percentile": _percentile,
    "percentile_disc": _percentile_disc,
    "approx_percentile": _approx_percentile,
    "mode": _mode,
    "collect_list": _collect_list,
    "collect_set": _collect_set,
    "first": _end_by(AggregateInput.position, AggregateInput.values, last=False),
    "nth": _nth,
    "last": _end_by(AggregateInput.position, AggregateInput.values, last=True),
    "min": _end_by(AggregateInput.codes, AggregateInput.equal_values, last=False),
    "max": _end_by(AggregateInput.codes, AggregateInput.equal_values, last=True),
    "listagg": _listagg(distinct=False),
    "listagg_distinct": _listagg(distinct=True),
    "histogram_numeric": _histogram,
    "product": _product,
    "min_by": _extreme_by(largest=False),
    "max_by": _extreme_by(largest=True),
}


def needs_events(plan: QueryPlan) -> bool:
    """Whether an aggregate of the query is computed from the event log."""
    query = plan.query
    logged = any(aggregate.logged for aggregate in query.aggregates) and not keeps_tallies(query)
    return isinstance(query.window, Framed) or logged
