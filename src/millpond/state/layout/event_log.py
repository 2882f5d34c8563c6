"""The event log of a group on one instance: events that queries need individually, each stored once, as Arrow columns.

A section is one Arrow IPC file with a row per event: `slot`, `time` (µs) and `class` (the number of delays for which
the event was late), then one column per distinct value (`v:<id>`) and filter (`f:<id>`, booleans), and for a stream
with an order `partition` and `offset`. If a section lacks a column, the column was added later, and no window that
began earlier uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays import Ints, Mask
from millpond.errors import CorruptError
from millpond.state.layout.segments import narrow

SLOT, TIME, CLASS = "slot", "time", "class"
_LEADING = (SLOT, TIME, CLASS)

PARTITION, OFFSET = "partition", "offset"


class Events(NamedTuple):
    """Events: the slot of the key, the time, the number of the group's delays for which it was late, and columns."""

    slots: npt.NDArray[np.integer]
    times_us: Ints
    late_class: npt.NDArray[np.integer]
    columns: dict[str, pa.Array]

    @property
    def rows(self) -> int:
        """The number of events."""
        return len(self.slots)

    def take(self, rows: Ints | Mask) -> Events:
        """The events at these positions, or in this mask."""
        index = np.flatnonzero(rows) if rows.dtype == bool else rows
        if _is_every_row(index, self.rows):
            return self
        places = pa.array(index)
        columns = {name: column.take(places) for name, column in self.columns.items()}
        return Events(self.slots[index], self.times_us[index], self.late_class[index], columns)

    def between(self, first: int, end: int) -> Events:
        """The events at positions `first` … `end` - 1, without a copy."""
        columns = {name: column.slice(first, end - first) for name, column in self.columns.items()}
        return Events(self.slots[first:end], self.times_us[first:end], self.late_class[first:end], columns)


def concatenated(parts: Sequence[Events], types: dict[str, pa.DataType]) -> Events:
    """Concatenates events, with the columns of `types`; a column that a part lacks is NULL."""
    columns = {}
    for name, kind in types.items():
        chunks = [_column(part, name, kind) for part in parts]
        columns[name] = pa.concat_arrays(chunks) if chunks else pa.nulls(0, kind)
    return Events(
        _together([part.slots for part in parts]),
        _together([part.times_us for part in parts]),
        _together([part.late_class for part in parts]),
        columns,
    )


def _column(events: Events, name: str, kind: pa.DataType) -> pa.Array:
    column = events.columns.get(name)
    if column is None:
        return pa.nulls(events.rows, kind)
    return column if column.type == kind else column.cast(kind)


def _is_every_row(index: Ints | Mask, rows: int) -> bool:
    """Whether the index is 0 … `rows` - 1 in this order; a copy of all columns costs more than this check."""
    if len(index) != rows or not rows or index[0] != 0 or index[-1] != rows - 1:
        return False
    return bool((index[1:] > index[:-1]).all())


def _together(arrays: Iterable[npt.NDArray[np.integer]]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *(array.astype(np.int64, copy=False) for array in arrays)])


def encode_events(events: Events) -> pa.RecordBatch:
    """The events as one record batch."""
    arrays = [narrow(events.slots), events.times_us, narrow(events.late_class)]
    columns = [*map(pa.array, arrays), *events.columns.values()]
    return pa.RecordBatch.from_arrays(columns, names=[*_LEADING, *events.columns])


def decode_events(batch: pa.RecordBatch) -> Events:
    """The events of a batch from `encode_events`; arrays are views of its buffers.

    Raises:
        CorruptError: a leading column is missing.
    """
    named = dict(zip(batch.schema.names, batch.columns, strict=True))
    try:
        slots, times, classes = (np.asarray(named.pop(name)) for name in _LEADING)
    except KeyError as error:
        raise CorruptError(f"A section of events lacks {error}.", "Restore the file.") from error
    return Events(slots, times, classes, named)
