"""Selects the rows of stateless queries in the gather, once per distinct filter; `rows.selected_rows` divides them.

In a packet they are one Arrow IPC stream, lz4. It has the carried columns (see `plan.groups.stateless`) of every row
that some query takes, then one boolean per distinct `RowFilter`. A column that Spark evaluates is carried as Spark sent
it, as `struct<v>`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from millpond.arrays import Mask
from millpond.kernels.columns import NO_ROWS, to_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.model.expressions import Column, Expression, Foreign
from millpond.model.selection import Selection
from millpond.plan.groups.stateless import RowFilter, carried, moved_selections, row_filter_of, row_filters_of
from millpond.runtime.gather.stream_columns import StreamColumns
from millpond.runtime.packets.event_counts import ChunkCounts, Sources, count_selected
from millpond.runtime.task.column_layout import StreamLayout


def select_into_packet(
    selections: Sequence[Selection], layout: StreamLayout, table: pa.RecordBatch, evaluator: Evaluator,
    sources: Sources | None, counts: ChunkCounts, compared: Collection[str] = (),
) -> pa.RecordBatch | None:  # fmt: skip
    """Count the fates of a chunk's events, and return the rows that are needed, with the columns of a packet.

    Needed are the rows that some query emits, and those of `compared` queries; None if there are none.
    `evaluator` covers the whole chunk. Outputs are only evaluated for the rows that WHERE takes.
    """
    if not selections:
        return None
    filters = {selection.where: _tested(evaluator, selection.where) for selection in selections}
    passing = np.logical_or.reduce([mask for mask, _ in filters.values()])
    rows = np.flatnonzero(passing)
    whole = len(rows) == table.num_rows
    columns = StreamColumns(layout, table, None if whole else rows)
    row_evaluator = evaluator if whole else Evaluator(columns, len(rows))
    selections_by_filter: dict[RowFilter, list[Selection]] = {}
    for selection in selections:
        selections_by_filter.setdefault(row_filter_of(selection), []).append(selection)
    passed_rows: dict[RowFilter, Mask] = {}
    for row_filter, sharing in selections_by_filter.items():
        where, raising = row_filter
        mask, raised = filters[where]
        of_rows = mask[rows]
        for expression in raising:
            of_rows = of_rows & ~row_evaluator(expression).error
        passed_rows[row_filter] = of_rows
        applied = np.zeros(table.num_rows, bool)
        applied[rows] = of_rows
        count_selected(counts, [selection.name for selection in sharing], applied, (mask & ~applied) | raised, sources)
    return _packed(moved_selections(selections, compared), passed_rows, columns, row_evaluator)


def _tested(every: Evaluator, where: Expression | None) -> tuple[Mask, Mask]:
    """The rows for which a condition is TRUE, and those for which it raises an error."""
    if where is None:
        return np.ones(every.rows, bool), NO_ROWS
    values = every(where)
    return np.broadcast_to(values.is_true(), (every.rows,)), np.broadcast_to(values.error, (every.rows,))


def _packed(
    moved: Sequence[Selection], passed_rows: dict[RowFilter, Mask], columns: StreamColumns, evaluator: Evaluator
) -> pa.RecordBatch | None:  # fmt: skip
    masks = [passed_rows[one] for one in row_filters_of(moved)]
    if not masks or not evaluator.rows:
        return None
    chosen = np.logical_or.reduce(masks)
    if not chosen.any():
        return None
    arrays = [_carry(expression, columns, evaluator) for expression in carried(moved)]
    batch = pa.RecordBatch.from_arrays(
        [*arrays, *map(pa.array, masks)], names=[str(i) for i in range(len(arrays) + len(masks))]
    )
    return batch if chosen.all() else batch.filter(pa.array(chosen))


def _carry(expression: Expression, columns: StreamColumns, evaluator: Evaluator) -> pa.Array:
    if isinstance(expression, Column | Foreign):
        return columns.raw(expression.name)
    values = evaluator(expression)
    # an expression that raises has no value: only other queries take such rows
    return to_arrow(values._replace(null=values.null | values.error), expression.type, evaluator.rows)
