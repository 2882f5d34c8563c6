"""Result rows that functions of users answer: events of the log to the host, its answers back."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints
from millpond.model.functions import UserFunction
from millpond.runtime.columns import Values, from_arrow
from millpond.runtime.functions.host import FunctionHost
from millpond.runtime.holistic import Found, Taken


@cache
def process_host() -> FunctionHost:
    """The host of this process; its children end with it."""
    return FunctionHost()


def answered(function: UserFunction, taken: Taken, found: Found) -> Values:
    """The function's value for each result row.

    Raises:
        UserFunctionError: it failed; `row` is the result row it was at, where that is known.
    """
    if function.kind == "mergeable":
        taken, cells = _in_cells(taken, found)
    else:
        cells = None
    order, _ = taken.sorted(taken.position())
    arguments = [taken.values(order, i) for i in range(len(function.takes))]
    names = [str(i) for i in range(len(arguments) + 1)]
    table = pa.Table.from_arrays([pa.array(taken.rows[order]), *arguments], names=names)
    return from_arrow(process_host().call(function, table, len(found.slots), cells), function.returns)


def _in_cells(taken: Taken, found: Found) -> tuple[Taken, pa.ListArray]:
    """The same events, each once, by the piece of time between two edges of windows; and the pieces of each row."""
    events, used = taken.events, np.unique(taken.index)
    edges = np.unique(np.concatenate([found.starts_us, found.ends_us]))
    width = len(edges) + 1
    at = events.slots[used].astype(np.int64) * width + np.searchsorted(edges, events.times_us[used], "right")
    present, cell = np.unique(at, return_inverse=True)
    low = np.searchsorted(present, found.slots * width + np.searchsorted(edges, found.starts_us) + 1)
    end = np.searchsorted(present, found.slots * width + np.searchsorted(edges, found.ends_us), "right")
    counts: Ints = np.maximum(end - low, 0)
    begins = np.cumsum(counts) - counts
    members = np.arange(counts.sum()) + np.repeat(low - begins, counts)
    offsets = pa.array(np.append(begins, counts.sum()).astype(np.int32))
    held = Taken(taken.aggregate, events, used, cell, len(present))
    return held, pa.ListArray.from_arrays(offsets, pa.array(members, pa.int64()))
