"""Rows of stateless queries: selected in the gather once per distinct filter, divided by the fold in the same epoch.

In a packet they are one Arrow IPC stream, lz4. It has the carried columns (see `plan.groups.stateless`) of every row
that some query takes, then one boolean per distinct `Bit`. A column that Spark evaluates is carried as Spark sent it,
as `struct<v>`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa

from millpond.arrays import Mask
from millpond.kernels.columns import NONE, Values, arrow_type, attempted, from_arrow, to_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.model.expressions import Column, Expression, Foreign
from millpond.model.selection import Selection
from millpond.model.types import is_known
from millpond.plan.groups.stateless import Bit, bit_of, carried, leaves_of, moved_selections
from millpond.runtime.gather.stream_columns import StreamColumns
from millpond.runtime.packets.event_counts import ChunkCounts, Sources, count_selected
from millpond.runtime.packets.row_batches import RowBatch
from millpond.runtime.task.column_layout import StreamLayout


def select_rows(
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
    narrow = evaluator if whole else Evaluator(columns, len(rows))
    askers: dict[Bit, list[Selection]] = {}
    for selection in selections:
        askers.setdefault(bit_of(selection), []).append(selection)
    passed_rows: dict[Bit, Mask] = {}
    for bit, asking in askers.items():
        where, raising = bit
        mask, raised = filters[where]
        of_rows = mask[rows]
        for expression in raising:
            of_rows = of_rows & ~narrow(expression).error
        passed_rows[bit] = of_rows
        applied = np.zeros(table.num_rows, bool)
        applied[rows] = of_rows
        count_selected(counts, [selection.name for selection in asking], applied, (mask & ~applied) | raised, sources)
    return _packed(moved_selections(selections, compared), passed_rows, columns, narrow)


def _tested(every: Evaluator, where: Expression | None) -> tuple[Mask, Mask]:
    """The rows for which a condition is TRUE, and those for which it raises an error."""
    if where is None:
        return np.ones(every.rows, bool), NONE
    values = every(where)
    return np.broadcast_to(values.is_true(), (every.rows,)), np.broadcast_to(values.error, (every.rows,))


def _packed(
    moved: Sequence[Selection], passed_rows: dict[Bit, Mask], columns: StreamColumns, evaluator: Evaluator
) -> pa.RecordBatch | None:  # fmt: skip
    masks = [passed_rows[bit] for bit in _bits(moved)]
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


def selected_rows(
    selections: Sequence[Selection], batches: Sequence[pa.RecordBatch], compared: Collection[str]
) -> Iterator[RowBatch]:
    """The rows of the selections, query by query; `batches` are those of one stream, in packet order.

    `compared`: the queries whose rows are compared, and their shadows.
    """
    moved = moved_selections(selections, compared)
    places = {expression: place for place, expression in enumerate(carried(moved))}
    bits = _bits(moved)
    for selection in moved:
        place = len(places) + bits.index(bit_of(selection))
        for batch in batches:
            mask = batch.column(place)
            if mask.true_count:
                yield RowBatch(selection.name, _projected(selection, batch, mask, places))


def _projected(
    selection: Selection, batch: pa.RecordBatch, mask: pa.BooleanArray, places: dict[Expression, int]
) -> pa.RecordBatch:  # fmt: skip
    """The output of a query for the rows that it takes."""
    count = mask.true_count
    whole = count == batch.num_rows

    def column(expression: Expression) -> pa.Array:
        array = batch.column(places[expression])
        return array if whole else array.filter(mask)

    computed = [item.expression for item in selection.output if item.expression not in places]
    leaves = dict.fromkeys(leaf for expression in computed for leaf in leaves_of(expression))
    rows = Evaluator({leaf.name: _values(leaf, column(leaf)) for leaf in leaves}, count)
    arrays = []
    for item in selection.output:
        kind = item.expression.type
        if item.expression in places:
            array = column(item.expression)
            array = array.field("v") if isinstance(item.expression, Foreign) else array
            arrays.append(array.cast(arrow_type(kind)) if is_known(kind) else array)
        else:
            arrays.append(to_arrow(rows(item.expression), kind, count))
    return pa.RecordBatch.from_arrays(arrays, names=[item.name for item in selection.output])


def _values(leaf: Column | Foreign, array: pa.Array) -> Values:
    return attempted(array, leaf.type) if isinstance(leaf, Foreign) else from_arrow(array, leaf.type)


def _bits(selections: Sequence[Selection]) -> list[Bit]:
    return list(dict.fromkeys(map(bit_of, selections)))
