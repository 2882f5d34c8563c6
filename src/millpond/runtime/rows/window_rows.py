"""Computes the result rows of queries for their windows: finishes aggregates, applies HAVING, evaluates outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask
from millpond.errors import OverflowedError, TooManyPairsError, UserFunctionError
from millpond.kernels.columns import ARROW_TYPES, Values, arrow_type, from_arrow, to_arrow, unnested
from millpond.kernels.evaluate import Evaluator
from millpond.model.aggregates import PERCENTILE
from millpond.model.expressions import Call, Column, Expression
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, foreign_above, input_type
from millpond.model.types import WINDOW, is_storable
from millpond.model.windows import Calendar, Counted, Cumulating, Pattern, Session
from millpond.plan.groups.build import presence_filter
from millpond.plan.groups.event_log import ties_of
from millpond.plan.groups.plan import GroupPlan, QueryPlan, measures_read
from millpond.plan.options.output_modes import OP, REVISION
from millpond.plan.upstream.upstream_joins import WINDOW_OF
from millpond.runtime.aggregates.finish import finish
from millpond.runtime.event_log.event_aggregates import AggregateInput, ResultRows, input_of_windows, value_of
from millpond.runtime.event_log.event_log import among, of_slots
from millpond.runtime.event_log.event_order import in_order
from millpond.runtime.event_log.tallies import input_of_tallies, needs_tallies, percentiles
from millpond.runtime.functions.call_functions import call_function
from millpond.runtime.packets.row_batches import RowBatch
from millpond.runtime.rows.foreign_values import values_of
from millpond.runtime.rows.query_families import Family, QueryRows, Shares
from millpond.runtime.rows.served_keys import served_key
from millpond.runtime.windows.choose_combine import AnyBlock
from millpond.runtime.windows.closing import Closing
from millpond.runtime.windows.combine import Block
from millpond.runtime.windows.combine_by_filter import SignedBlock
from millpond.runtime.windows.combine_sparse import SparseBlock
from millpond.runtime.windows.sessions import Sessions
from millpond.state.keys.key_dictionary import KeyDictionary
from millpond.state.layout.event_log import Events

ARROW_WINDOW = pa.struct([("start", ARROW_TYPES["timestamp"]), ("end", ARROW_TYPES["timestamp"])])


def output_schema(query: AnyQuery) -> pa.Schema:
    """The Arrow schema of a query's emitted rows; types that are only passed through appear as `null`."""
    columns = [(item.name, result_type(item.expression.type)) for item in query.output]
    return pa.schema([*columns, *(change_columns(query) if isinstance(query, Query) else ())])


def change_columns(query: Query) -> list[tuple[str, pa.DataType]]:
    """The columns that Millpond appends to the rows of a query with updating results."""
    columns = [(OP, pa.string())] if query.changing else []
    return [*columns, (REVISION, pa.int64())] if query.corrected_for_us else columns


def result_type(kind: str) -> pa.DataType:
    """The Arrow type of a key, an aggregate, a window or an output; null for types that are only passed through."""
    if kind == WINDOW:
        return ARROW_WINDOW
    return arrow_type(kind) if is_storable(kind) else pa.null()


PairFilter: TypeAlias = Callable[[Ints, Ints], Mask]
"""Selects pairs of a window (by position) and a slot (within the block); TRUE for the pairs that are wanted."""


class BlockKeys:
    """The keys of some slots, for example those of a block, read from the dictionary once for all queries.

    `events` and `tallies`: those of these keys, if some query needs them; their slots are positions among the given
    slots. `spread`: the `spread_by` of the group.
    """

    def __init__(
        self, group: GroupPlan, keys: KeyDictionary, slots: Ints, events: Events | None = None,
        tallies: Events | None = None,
    ) -> None:  # fmt: skip
        self.spread = group.spread_by
        self._columns, self._here = keys.take(slots), keys.here(slots)
        self.events = None if events is None else among(events, slots)
        self.tallies = None if tallies is None else among(tallies, slots)

    @classmethod
    def of(
        cls, group: GroupPlan, keys: KeyDictionary, block: AnyBlock, events: Events | None = None,
        tallies: Events | None = None,
    ) -> BlockKeys:  # fmt: skip
        """The keys of a block; unless it is sparse, `events` and `tallies` must be in the order of their slots."""
        if isinstance(block, SparseBlock):
            return cls(group, keys, block.slots, events, tallies)
        block_keys = cls(group, keys, block.slots)
        block_keys.events = None if events is None else of_slots(events, block.first, block.size)
        block_keys.tallies = None if tallies is None else of_slots(tallies, block.first, block.size)
        return block_keys

    def owned_here(self, pair_filter: PairFilter | None = None) -> PairFilter | None:
        """The wanted pairs whose keys still belong to this instance; None: all pairs."""
        here = self._here
        if here is None:
            return pair_filter
        if pair_filter is None:
            return lambda _windows, slots: here[slots]
        return lambda windows, slots: here[slots] & pair_filter(windows, slots)

    def take(self, slots: Ints) -> list[pa.Array]:
        """The key columns of some slots, given by their positions within the block."""
        return [column.take(pa.array(slots)) for column in self._columns]


def rows_of_block(
    group: GroupPlan, family: Family, block: AnyBlock, windows: Sequence[Closing], keys: BlockKeys,
    buckets: int, read: Mask,
) -> QueryRows:  # fmt: skip
    """The rows of a family for some windows and the slots of one block, and how many HAVING withheld, by query.

    Queries without rows are left out. Rows of queries that are not `read` are only counted.

    Raises:
        OverflowedError: an exact sum, or an output expression, leaves its SQL type.
    """
    results, columns = _results(group, family, block, windows, keys.owned_here())
    if not len(results.slots):
        return QueryRows()
    return _rows(group, family, results, columns, keys, buckets, read)


def rows_of_sessions(
    group: GroupPlan, family: Family, sessions: Sessions, columns: dict[str, Ints], keys: BlockKeys, buckets: int
) -> QueryRows:
    """Like `rows_of_block`, for one query and its sessions.

    The slots of `sessions` are positions among `keys`; `columns` are those of the query's measures.

    Raises:
        OverflowedError: an exact sum, or an output expression, leaves its SQL type.
    """
    results = _Results.of_one(sessions.slots, sessions.starts_us, sessions.ends_us)
    return _rows(group, family, results, columns, keys, buckets, _READ)


_READ = np.ones(1, bool)


class LocatedRows(NamedTuple):
    """Rows of one query, the window (position) and slot (within the block) of each row, how many HAVING withheld."""

    rows: pa.RecordBatch
    windows: Ints
    slots: Ints
    withheld: int


def located_rows_of_block(
    group: GroupPlan, family: Family, block: AnyBlock, windows: Sequence[Closing], keys: BlockKeys,
    buckets: int, pair_filter: PairFilter,
) -> LocatedRows | None:  # fmt: skip
    """The rows of one query for the wanted pairs of window and slot; None if there are no events.

    Raises:
        OverflowedError: an exact sum, or an output expression, leaves its SQL type.
    """
    results, columns = _results(group, family, block, windows, keys.owned_here(pair_filter))
    if not len(results.slots):
        return None
    return _located(group, family.first, results, columns, keys, buckets)


def located_rows_of_sessions(
    group: GroupPlan, plan: QueryPlan, sessions: Sessions, columns: dict[str, Ints], keys: BlockKeys, buckets: int
) -> LocatedRows:
    """The rows of one query for sessions.

    The slots of `sessions` are positions among `keys`; `columns` are those of the query's measures.

    Raises:
        OverflowedError: an exact sum, or an output expression, leaves its SQL type.
    """
    places = np.arange(len(sessions.slots))
    results = _Results.of_one(sessions.slots, sessions.starts_us, sessions.ends_us)._replace(windows=places)
    return _located(group, plan, results, columns, keys, buckets)


def _located(
    group: GroupPlan, plan: QueryPlan, results: _Results, columns: dict[str, Ints], keys: BlockKeys, buckets: int
) -> LocatedRows:
    inputs = _inputs(group, plan, columns, results, keys) | _key_values(group, results.slots, keys)
    emitted, rows, withheld = _emitted([plan], inputs, results, keys, buckets)
    return LocatedRows(rows, emitted.windows, emitted.slots, sum(withheld.values()))


def _rows(
    group: GroupPlan, family: Family, results: _Results, columns: dict[str, Ints], keys: BlockKeys, buckets: int,
    read: Mask,
) -> QueryRows:  # fmt: skip
    inputs = _inputs(group, family.first, columns, results, keys) | _key_values(group, results.slots, keys)
    return _by_plan(family.plans, *_emitted(family.plans, inputs, results, keys, buckets), read)


def rows_of_results(
    group: GroupPlan, plan: QueryPlan, slots: Ints, bounds: tuple[Ints, Ints], inputs: dict[str, Values],
    keys: BlockKeys, buckets: int,
) -> QueryRows:  # fmt: skip
    """Like `rows_of_block`, for one query whose aggregates are known.

    `inputs` has everything except keys and windows. `bounds`: start and end of each row's window.

    Raises:
        OverflowedError: an output expression leaves its SQL type.
    """
    results = _Results.of_one(slots, *bounds)
    inputs = inputs | _window_values(results) | _key_values(group, slots, keys)
    return _by_plan([plan], *_emitted([plan], inputs, results, keys, buckets), _READ)


def _by_plan(
    plans: Sequence[QueryPlan], results: _Results, rows: pa.RecordBatch, withheld: dict[str, int], read: Mask
) -> QueryRows:
    shares = results.shares
    unread = None if read.all() else np.where(read, 0, shares.counts())
    batches = [RowBatch(plans[i].query.name, rows_of_query) for i, rows_of_query in shares.split(rows, read)]
    return QueryRows(batches, withheld, unread)


def _emitted(
    plans: Sequence[QueryPlan], inputs: dict[str, Values], results: _Results, keys: BlockKeys, buckets: int
) -> tuple[_Results, pa.RecordBatch, dict[str, int]]:
    """The results that meet HAVING, their rows, and how many results it withheld, by query."""
    plan = plans[0]
    having, withheld = plan.query.having, dict[str, int]()
    foreigns = foreign_above(plan.query)
    if foreigns:
        columns = {name: _arrow_input(plan.query, name, inputs, results) for one in foreigns for name in one.columns}
        known = values_of(plan.query.name, foreigns, columns, len(results.slots))
        if known is None:  # only the inputs were wanted
            none = results.take(np.zeros(0, np.int64))
            bare = msgspec.structs.replace(plan.query, output=(), serve=False)
            return none, _outputs(msgspec.structs.replace(plan, query=bare), {}, none, keys, buckets), {}
        inputs = inputs | known
    if having is not None:
        evaluator = Evaluator(inputs, len(results.slots))
        passed = checked(plan, evaluator(having)).is_true()
        passed = np.broadcast_to(passed, (len(results.slots),))
        passing = np.flatnonzero(passed)
        withheld = _by_query(plans, results.shares.take(np.flatnonzero(~passed)).counts())
        results = results.take(passing)
        inputs = {name: take_values(values, passing) for name, values in inputs.items()}
    if plan.query.unnested is not None:
        results, inputs = _unnested(plan, plan.query.unnested, results, inputs)
    return results, _outputs(plan, inputs, results, keys, buckets), withheld


def _unnested(
    plan: QueryPlan, array: Expression, results: _Results, inputs: dict[str, Values]
) -> tuple[_Results, dict[str, Values]]:
    """The results and their values, once for each element of their arrays, with the fields of the elements."""
    count = len(results.slots)
    rows, fields = unnested(checked(plan, Evaluator(inputs, count)(array)), array.type, count)
    if plan.query.changing and (np.diff(rows) == 0).any():
        raise TooManyPairsError(
            f"A result of query {plan.query.name!r} has several rows of a table or elements of an array, so an update "
            "does not say which of its rows it replaces.",
            "Join a table with one row per key, or emit final rows.",
        )
    return results.take(rows), {name: take_values(values, rows) for name, values in inputs.items()} | fields


def _arrow_input(query: Query, name: str, inputs: dict[str, Values], results: _Results) -> pa.Array:
    """An input of an expression that only Spark evaluates."""
    if name == "window":
        return _windows(results.starts_us, results.ends_us)
    return to_arrow(inputs[name], input_type(query, name), len(results.slots))


def _by_query(plans: Sequence[QueryPlan], counts: Ints) -> dict[str, int]:
    return {plan.query.name: count for plan, count in zip(plans, counts.tolist(), strict=True) if count}


class _Results(NamedTuple):
    """Results: the queries that share each, the position of its window, its slot in the block, its window's bounds."""

    shares: Shares
    windows: Ints
    slots: Ints
    starts_us: Ints
    ends_us: Ints

    @staticmethod
    def of_one(slots: Ints, starts_us: Ints, ends_us: Ints) -> _Results:
        """The results of a family's only query; all windows get the position 0."""
        return _Results(Shares.of_one(len(slots)), np.zeros(len(slots), np.int64), slots, starts_us, ends_us)

    @staticmethod
    def at(shares: Shares, windows: Ints, slots: Ints, closing: Sequence[Closing]) -> _Results:
        """The results of closing windows."""
        starts, ends = np.array([(window.start_us, window.end_us) for window in closing], np.int64).T
        return _Results(shares, windows, slots, starts[windows], ends[windows])

    def take(self, rows: Ints) -> _Results:
        """Some of the results."""
        return _Results(self.shares.take(rows), *(column[rows] for column in self[1:]))


def _results(
    group: GroupPlan, family: Family, block: AnyBlock, windows: Sequence[Closing],
    pair_filter: PairFilter | None = None,
) -> tuple[_Results, dict[str, Ints]]:  # fmt: skip
    """The results of windows in which some query has events, and the columns of the first query's measures for them."""
    if isinstance(block, SignedBlock):
        chains = family.chains(block.table)
        runs = chains.runs(block, windows)
        results = _Results.at(Shares(runs.first, runs.until, chains.order), runs.windows, runs.slots, windows)
        if pair_filter is None:
            return results, runs.columns
        passing = np.flatnonzero(pair_filter(results.windows, results.slots))
        return results.take(passing), {name: column[passing] for name, column in runs.columns.items()}
    measures = group.measures
    presence = measures[family.first.presence].id
    measure_ids = {measures[i].id for i in measures_read([family.first])}
    if isinstance(block, SparseBlock):
        rows, windows_of = block.found(f"{presence}:n", windows)
        slots_of_rows = block.cells.slots[rows].astype(np.int64)
        results = _Results.at(Shares.of_one(len(windows_of)), windows_of, slots_of_rows, windows)
        if pair_filter is not None:
            passing = np.flatnonzero(pair_filter(results.windows, results.slots))
            results, rows = results.take(passing), rows[passing]
        return results, block.columns(measure_ids, rows)
    slots = [np.flatnonzero(block.window(f"{presence}:n", window) > 0) for window in windows]
    windows_of = np.repeat(np.arange(len(windows)), [len(slots_of) for slots_of in slots])
    results = _Results.at(Shares.of_one(len(windows_of)), windows_of, np.concatenate(slots), windows)
    if pair_filter is not None:
        results = results.take(np.flatnonzero(pair_filter(results.windows, results.slots)))
    return results, _measured(block, measure_ids, windows, results)


def _measured(
    block: Block, measures: Collection[str], windows: Sequence[Closing], results: _Results
) -> dict[str, Ints]:  # fmt: skip
    """The columns of some measures for the results."""
    borders = np.searchsorted(results.windows, np.arange(len(windows) + 1)).tolist()  # results are ordered by window
    rows_of = [slice(*pair) for pair in pairwise(borders)]
    measured: dict[str, Ints] = {}
    for column in (*block.columns, *block.extremes):
        if column.partition(":")[0] in measures:
            values = np.empty(len(results.slots), block.dtype(column))
            for window, rows in zip(windows, rows_of, strict=True):
                values[rows] = block.window(column, window, results.slots[rows])
            measured[column] = values
    return measured


def _inputs(
    group: GroupPlan, plan: QueryPlan, columns: dict[str, Ints], results: _Results, keys: BlockKeys
) -> dict[str, Values]:
    ends, inputs = results.ends_us, _window_values(results)
    ties = ties_of(plan.query.aggregates)
    events = in_order(keys.events, ties) if keys.events is not None and ties else keys.events
    for i, (aggregate, places) in enumerate(zip(plan.query.aggregates, plan.measures, strict=True)):
        if aggregate.logged:
            rows, tallies = ResultRows(results.slots, results.starts_us, ends), keys.tallies
            if needs_tallies(plan):
                assert tallies is not None
                taken = input_of_tallies(aggregate, presence_filter(plan.query), tallies, rows)
                from_bins = aggregate.function == PERCENTILE
                inputs[f"agg:{i}"] = percentiles(aggregate, taken) if from_bins else checked(plan, value_of(taken))
                continue
            assert events is not None
            taken = input_of_windows(aggregate, presence_filter(plan.query), events, rows)
            inputs[f"agg:{i}"] = checked(plan, of_events(plan, taken, rows.slots, keys, rows))
            continue
        measures = [group.measures[place] for place in places]
        missing = {f"{measures[-1].id}:n": np.zeros(len(ends), np.int64)}
        values = finish(aggregate, measures, missing | columns)
        inputs[f"agg:{i}"] = checked(plan, values)
    return inputs


def _window_values(results: _Results) -> dict[str, Values]:
    ends = Values(results.ends_us)
    return {"window.end": ends, "window.start": Values(results.starts_us), "window.time": Values(results.ends_us - 1)}


def of_events(
    plan: QueryPlan, aggregate_input: AggregateInput, slots: Ints, keys: BlockKeys, windows: ResultRows | None = None
) -> Values:
    """The value of an aggregate for each row, from the events that it has taken; `slots`: the slots of the rows' keys.

    `windows`: the windows of the rows, if these determine which events belong to a row.

    Raises:
        UserFunctionError: a user function failed.
    """
    function = plan.query.user_functions.get(aggregate_input.aggregate.function)
    if function is None:
        return value_of(aggregate_input)
    try:
        return call_function(function, aggregate_input, windows)
    except UserFunctionError as error:
        raise with_key(error, slots, keys) from error


def with_key(error: UserFunctionError, slots: Ints, keys: BlockKeys) -> UserFunctionError:
    """The error of a user function, with the key at which it failed, if that is known."""
    if error.row is None:
        return error
    key, _ = served_key(keys.take(slots[[error.row]]), 1, 1, None)
    return error.at_key(key[0].as_py())


def checked(plan: QueryPlan, values: Values) -> Values:
    """The values, if none of them raised an error.

    Raises:
        OverflowedError: one of them did.
    """
    if values.error.any():
        raise OverflowedError(
            f"A result of query {plan.query.name!r} leaves its type or divides by zero.",
            "Widen the type (cast to double) or guard the expression.",
        )
    return values


def _key_values(group: GroupPlan, slots: Ints, keys: BlockKeys) -> dict[str, Values]:
    columns = keys.take(slots)
    return {
        f"key:{i}": from_arrow(column, key.type)
        for i, (column, key) in enumerate(zip(columns, group.keys, strict=True))
    }


def take_values(values: Values, rows: Ints) -> Values:
    """The values of some rows; constants stay zero-dimensional."""
    data = values.data
    if isinstance(data, pa.Array):
        data = data.take(pa.array(rows))
    elif not isinstance(data, pa.Scalar) and data.ndim:
        data = data[rows]
    return Values(data, *(mask[rows] if mask.ndim else mask for mask in (values.null, values.error)))


def _outputs(
    plan: QueryPlan,
    inputs: dict[str, Values],
    results: _Results,
    keys: BlockKeys,
    buckets: int,
) -> pa.RecordBatch:
    slots, ends = results.slots, results.ends_us
    count = len(slots)
    evaluator = Evaluator(inputs, count)
    arrays, names = [], []
    for item in plan.query.output:
        if item.expression.type == WINDOW and isinstance(item.expression, Column):
            arrays.append(_windows(results.starts_us, ends))
        elif isinstance(item.expression, Call) and item.expression.op == WINDOW_OF:
            starts_us, ends_us = (evaluator(bound).data for bound in item.expression.args)
            arrays.append(_windows(starts_us, ends_us))
        else:
            values = checked(plan, evaluator(item.expression))
            arrays.append(to_arrow(values, item.expression.type, count))
        names.append(item.name)
    if plan.query.serve:
        arrays += served_key(keys.take(slots), count, buckets, keys.spread)
        arrays.append(pa.array(ends))
        names += ["__key", "__bucket", "__end"]
        if isinstance(plan.query.window, Calendar | Cumulating | Session | Counted | Pattern):
            arrays.append(pa.array(results.starts_us))
            names.append("__start")
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _windows(starts: Ints, ends: Ints) -> pa.Array:
    kind = ARROW_TYPES["timestamp"]
    parts = [pa.array(starts).view(kind), pa.array(ends).view(kind)]
    return pa.StructArray.from_arrays(parts, fields=list(ARROW_WINDOW))


def with_flat_windows(rows: pa.Table) -> pa.Table:
    """The rows with each window `w` as two columns, `w_start` and `w_end`."""
    names: list[str] = []
    columns: list[pa.ChunkedArray] = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        window = column.type == ARROW_WINDOW
        names += [f"{name}_start", f"{name}_end"] if window else [name]
        columns += column.flatten() if window else [column]
    return pa.Table.from_arrays(columns, names=names)
