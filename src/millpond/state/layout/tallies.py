"""Stored form of tallies: how many events of a key and slice had each value, or a value in each bin, by filter.

They are stored like logged events (see `state.layout.event_log`), with one more column, `count`. `time` is the start of
the slice. A row has the values of one tally: the values themselves, or one bin, which is stored as the first of the
finest bins (`kernels.bins`) in it. Equal tallies are added up, so their size depends on the values or bins that occur,
not on the number of events.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millpond.state.layout.event_log import CLASS, SLOT, TIME, Events
from millpond.state.layout.segments import narrow

COUNT = "count"


def added_up(events: Events) -> Events:
    """The tallies with equal ones added up, in any order."""
    if not events.rows:
        return events
    leading = {SLOT: events.slots, TIME: events.times_us, CLASS: events.late_class}
    keys = {name: pa.array(column) for name, column in leading.items()}
    keys |= {name: column for name, column in events.columns.items() if name != COUNT}
    table = pa.table({**keys, COUNT: events.columns[COUNT]})
    summed = table.group_by(list(keys), use_threads=False).aggregate([(COUNT, "sum")])
    columns = {name: _one(summed.column(name)) for name in keys if name not in leading}
    slots, times, classes = (np.asarray(_one(summed.column(name))) for name in leading)
    counts = _one(summed.column(f"{COUNT}_sum")).cast(pa.int64())
    return Events(slots, times, classes, {name: columns.get(name, counts) for name in events.columns})


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def as_stored(events: Events) -> Events:
    """The tallies with counts in the narrowest integer type."""
    return events._replace(columns=events.columns | {COUNT: pa.array(narrow(np.asarray(events.columns[COUNT])))})
