"""Calls user functions in child processes, for many result rows at once."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, distinct_of, places_of
from millpond.errors import UserFunctionError
from millpond.kernels.columns import Values, from_arrow
from millpond.model.functions import UserFunction
from millpond.runtime.event_log.event_aggregates import AggregateInput, ResultRows
from millpond.runtime.functions.host import FunctionHost

EVENTS_AT_ONCE = 1 << 19
"""The approximate number of events in one call, so that overlapping windows do not exceed the memory limit."""


@cache
def process_host() -> FunctionHost:
    """The host of this process; its children end with the process."""
    return FunctionHost()


def call_function(function: UserFunction, inputs: AggregateInput, windows: ResultRows | None) -> Values:
    """The function's value for each result row; `windows`: the rows' windows, if these determine the rows' events.

    Raises:
        UserFunctionError: the function failed; `row` is the result row that it was processing, if known.
    """
    host, rows = process_host(), inputs.size
    if function.kind == "mergeable":
        held, cells = _in_cells(inputs, windows) if windows is not None else _as_cells(inputs)
        order, _ = held.sorted([held.position()])
        return from_arrow(host.call(function, _table(function, held, order, 0), rows, cells), function.returns)
    order, bounds = inputs.sorted([inputs.position()])
    parts = []
    for first, end in pairwise(_cuts(bounds)):
        table = _table(function, inputs, order[bounds[first] : bounds[end]], first)
        try:
            parts.append(host.call(function, table, end - first))
        except UserFunctionError as error:
            error.row = None if error.row is None else first + error.row
            raise
    return from_arrow(pa.concat_arrays(parts), function.returns)


def _table(function: UserFunction, inputs: AggregateInput, pairs: Ints, first: int) -> pa.Table:
    """The host's input for some of the events: their result rows, counted from `first`, and the arguments."""
    arguments = [inputs.values(pairs, i) for i in range(len(function.takes))]
    names = [str(i) for i in range(len(arguments) + 1)]
    return pa.Table.from_arrays([pa.array(inputs.rows[pairs] - first), *arguments], names=names)


def _cuts(bounds: Ints) -> list[int]:
    """Where to cut the rows into calls: a call exceeds `EVENTS_AT_ONCE` events by less than one row."""
    wanted = np.arange(EVENTS_AT_ONCE, int(bounds[-1]), EVENTS_AT_ONCE)
    cuts = {0, len(bounds) - 1, *np.searchsorted(bounds, wanted).tolist()}
    return sorted(cuts)


def _as_cells(inputs: AggregateInput) -> tuple[AggregateInput, pa.ListArray]:
    """One cell with all events of each row that has events; and the cells of each row."""
    present, cell = places_of(inputs.rows)
    offsets = np.searchsorted(present, np.arange(inputs.size + 1)).astype(np.int32)
    cell_inputs = AggregateInput(inputs.aggregate, inputs.events, inputs.index, cell, len(present))
    return cell_inputs, pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.arange(len(present))))


def _in_cells(inputs: AggregateInput, windows: ResultRows) -> tuple[AggregateInput, pa.ListArray]:
    """Each event once, in the cell of its key between two window edges; and the cells of each row."""
    events, used = inputs.events, distinct_of(inputs.index)
    edges = distinct_of(np.concatenate([windows.starts_us, windows.ends_us]))
    width = len(edges) + 1
    at = events.slots[used].astype(np.int64) * width + np.searchsorted(edges, events.times_us[used], "right")
    present, cell = places_of(at)
    low = np.searchsorted(present, windows.slots * width + np.searchsorted(edges, windows.starts_us) + 1)
    end = np.searchsorted(present, windows.slots * width + np.searchsorted(edges, windows.ends_us), "right")
    counts: Ints = np.maximum(end - low, 0)
    begins = np.cumsum(counts) - counts
    members = np.arange(counts.sum()) + np.repeat(low - begins, counts)
    offsets = pa.array(np.append(begins, counts.sum()).astype(np.int32))
    cell_inputs = AggregateInput(inputs.aggregate, events, used, cell, len(present))
    return cell_inputs, pa.ListArray.from_arrays(offsets, pa.array(members, pa.int64()))
