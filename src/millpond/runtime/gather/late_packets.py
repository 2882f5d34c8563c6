"""Late rows in packets: the gather writes each late event once per stream; the fold selects each query's rows.

The gather uses `LateCollector`, the fold `late_rows`. In a packet, late rows are one Arrow IPC stream, lz4. Its columns
are the union of those that queries need, `base` (the time that the event was compared with, before the delay is
subtracted; see `lateness`), and one boolean per distinct (WHERE, delay).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask
from millpond.kernels.columns import ARROW_TYPES, arrow_type
from millpond.kernels.evaluate import Evaluator
from millpond.model.expressions import Expression
from millpond.model.windows import Sliced
from millpond.plan.groups.plan import GroupPlan
from millpond.plan.upstream.late_sinks import LATE_EPOCH, LATE_WATERMARK, LateSink
from millpond.runtime.gather.lateness import Judged, limit_us
from millpond.runtime.packets.row_batches import RowBatch, rows_stream
from millpond.runtime.task.column_layout import StreamLayout

_Condition: TypeAlias = tuple[Expression | None, int, Sliced | None]
"""The filter, delay and rule of a query: queries for which these are equal have the same late events."""


class LateCollector:
    """Collects the late events of one chunk that late sinks write; costs nothing if there are none."""

    def __init__(self, sinks: Sequence[LateSink]) -> None:
        self._sinks = sinks
        self._masks: dict[_Condition, Mask] = {}

    def add_group(self, group: GroupPlan, rows: Evaluator, late: Ints) -> None:
        """Add the events that are late for the queries of a group; `late` are the lateness classes of all events."""
        for sink in self._sinks:
            if sink.group == group.id and _condition(sink) not in self._masks:
                missed = late > sink.delay_index
                if sink.where is not None and missed.any():
                    missed = missed & rows(sink.where).is_true()
                self._masks[_condition(sink)] = missed

    def packed(self, layout: StreamLayout, table: pa.RecordBatch, judged: Judged) -> bytes:
        """The late rows in the form of a packet; empty if there are none."""
        if not self._masks:
            return b""
        masks = [self._masks[condition] for condition in _conditions(self._sinks)]
        rows = np.flatnonzero(np.logical_or.reduce(masks))
        if not len(rows):
            return b""
        places = {column.name: column for column in layout.columns}
        arrays = []
        for name in _columns(self._sinks):
            place = places[name]
            arrays.append(table.column(place.position).take(pa.array(rows)).cast(arrow_type(place.type)))
        arrays.append(pa.array(np.broadcast_to(judged.base_us, (table.num_rows,))[rows]))
        arrays += [pa.array(mask[rows]) for mask in masks]
        return rows_stream([pa.RecordBatch.from_arrays(arrays, names=[str(i) for i in range(len(arrays))])])


def late_rows(
    sinks: Sequence[LateSink], batches: Sequence[pa.RecordBatch], floor_us: int | None, epoch: int
) -> Iterator[RowBatch]:
    """The late rows, query by query; `batches` are those of one stream, in packet order."""
    columns, conditions = _columns(sinks), _conditions(sinks)
    for sink in sinks:
        for batch in batches:
            mine = batch.filter(batch.column(len(columns) + 1 + conditions.index(_condition(sink))))
            if mine.num_rows:
                yield RowBatch(sink.query, _rows(sink, mine, columns, floor_us, epoch), "late")


def _rows(
    sink: LateSink, batch: pa.RecordBatch, columns: Sequence[str], floor_us: int | None, epoch: int
) -> pa.RecordBatch:
    base = np.asarray(batch.column(len(columns)))
    missed = pa.array(limit_us(base, floor_us, sink.delay_us)).view(ARROW_TYPES["timestamp"])
    arrays = [batch.column(columns.index(name)) for name in sink.columns]
    arrays += [missed, pa.array(np.full(batch.num_rows, epoch, np.int64))]
    return pa.RecordBatch.from_arrays(arrays, names=[*sink.columns, LATE_WATERMARK, LATE_EPOCH])


def _condition(sink: LateSink) -> _Condition:
    return sink.where, sink.delay_us, sink.late_by


def _conditions(sinks: Sequence[LateSink]) -> list[_Condition]:
    return list(dict.fromkeys(map(_condition, sinks)))


def _columns(sinks: Sequence[LateSink]) -> list[str]:
    """The union of the columns that the queries request, in the same order on both sides of the shuffle."""
    return list(dict.fromkeys(name for sink in sinks for name in sink.columns))
