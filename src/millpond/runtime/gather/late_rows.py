"""Late rows: collected in the gather once per stream, with one bit per filter and delay, and written by the fold.

In a packet they are one Arrow IPC stream, lz4. Its columns are the union of those that queries need, `base` (the time
that the event was compared with, before the delay is subtracted; see `lateness`), and one boolean per distinct
(WHERE, delay).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask
from millpond.kernels.columns import ARROW_TYPES, arrow_type
from millpond.kernels.evaluate import Evaluator
from millpond.model.expressions import Expression
from millpond.plan.groups.plan import GroupPlan
from millpond.plan.options.late_rows import LATE_EPOCH, LATE_WATERMARK, LateAsk
from millpond.runtime.gather.lateness import Judged, limit_us
from millpond.runtime.packets.row_batches import rows_stream
from millpond.runtime.task.column_layout import StreamLayout
from millpond.state.layout.delta import DeltaWriter


class LateCatch:
    """Collects the late events of one chunk that queries request; costs nothing if no query does."""

    def __init__(self, asks: Sequence[LateAsk]) -> None:
        self._asks = asks
        self._masks: dict[tuple[Expression | None, int], Mask] = {}

    def see(self, group: GroupPlan, rows: Evaluator, late: Ints) -> None:
        """Determine which events are late for the queries of a group, from their lateness classes."""
        for ask in self._asks:
            if ask.group == group.id and _bit(ask) not in self._masks:
                missed = late > ask.delay
                if ask.where is not None and missed.any():
                    missed = missed & rows(ask.where).is_true()
                self._masks[_bit(ask)] = missed

    def packed(self, layout: StreamLayout, table: pa.RecordBatch, judged: Judged) -> bytes:
        """The late rows in the form of a packet; empty if there are none."""
        if not self._masks:
            return b""
        masks = [self._masks[bit] for bit in _bits(self._asks)]
        rows = np.flatnonzero(np.logical_or.reduce(masks))
        if not len(rows):
            return b""
        places = {column.name: column for column in layout.columns}
        arrays = []
        for name in _columns(self._asks):
            place = places[name]
            arrays.append(table.column(place.position).take(pa.array(rows)).cast(arrow_type(place.type)))
        arrays.append(pa.array(np.broadcast_to(judged.base_us, (table.num_rows,))[rows]))
        arrays += [pa.array(mask[rows]) for mask in masks]
        return rows_stream([pa.RecordBatch.from_arrays(arrays, names=[str(i) for i in range(len(arrays))])])


def write_late_rows(
    asks: Sequence[LateAsk], batches: Iterable[pa.RecordBatch], floor_us: int | None, epoch: int,
    delta: DeltaWriter, counts: dict[str, int],
) -> None:  # fmt: skip
    """Write one section of the delta per query with late rows; `batches` are those of one stream, in packet order."""
    columns, bits = _columns(asks), _bits(asks)
    arrived = list(batches)
    for ask in asks:
        found = []
        for batch in arrived:
            mine = batch.filter(batch.column(len(columns) + 1 + bits.index(_bit(ask))))
            if mine.num_rows:
                found.append(_rows(ask, mine, columns, floor_us, epoch))
        if found:
            rows = sum(batch.num_rows for batch in found)
            counts[f"late_rows:{ask.query}"] = rows
            delta.add("late", ask.query, rows_stream(found), rows, {})


def _rows(
    ask: LateAsk, batch: pa.RecordBatch, columns: Sequence[str], floor_us: int | None, epoch: int
) -> pa.RecordBatch:
    base = np.asarray(batch.column(len(columns)))
    missed = pa.array(limit_us(base, floor_us, ask.delay_us)).view(ARROW_TYPES["timestamp"])
    arrays = [batch.column(columns.index(name)) for name in ask.columns]
    arrays += [missed, pa.array(np.full(batch.num_rows, epoch, np.int64))]
    return pa.RecordBatch.from_arrays(arrays, names=[*ask.columns, LATE_WATERMARK, LATE_EPOCH])


def _bit(ask: LateAsk) -> tuple[Expression | None, int]:
    """The filter and delay of a query: queries for which both are equal have the same late events."""
    return ask.where, ask.delay_us


def _bits(asks: Sequence[LateAsk]) -> list[tuple[Expression | None, int]]:
    return list(dict.fromkeys(map(_bit, asks)))


def _columns(asks: Sequence[LateAsk]) -> list[str]:
    """The union of the columns that the queries request, in the same order on both sides of the shuffle."""
    return list(dict.fromkeys(name for ask in asks for name in ask.columns))
