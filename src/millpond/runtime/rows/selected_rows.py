"""Divides the rows that the gather selected among the stateless queries; this runs in the fold of the same epoch.

`gather.select_rows` describes these rows in a packet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from millpond.kernels.columns import Values, arrow_type, attempted, from_arrow, to_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.model.expressions import Column, Expression, Foreign
from millpond.model.selection import Selection
from millpond.model.types import is_known
from millpond.plan.groups.stateless import carried, leaves_of, moved_selections, row_filter_of, row_filters_of
from millpond.runtime.packets.row_batches import RowBatch


def rows_from_packet(
    selections: Sequence[Selection], batches: Sequence[pa.RecordBatch], compared: Collection[str]
) -> Iterator[RowBatch]:
    """The rows of the selections, query by query; `batches` are those of one stream, in packet order.

    `compared`: the queries whose rows are compared, and their shadows.
    """
    moved = moved_selections(selections, compared)
    positions = {expression: i for i, expression in enumerate(carried(moved))}
    bits = row_filters_of(moved)
    for selection in moved:
        position = len(positions) + bits.index(row_filter_of(selection))
        for batch in batches:
            mask = batch.column(position)
            if mask.true_count:
                yield RowBatch(selection.name, _projected(selection, batch, mask, positions))


def _projected(
    selection: Selection, batch: pa.RecordBatch, mask: pa.BooleanArray, positions: dict[Expression, int]
) -> pa.RecordBatch:  # fmt: skip
    """The output of a query for the rows that it takes."""
    count = mask.true_count
    whole = count == batch.num_rows

    def column(expression: Expression) -> pa.Array:
        array = batch.column(positions[expression])
        return array if whole else array.filter(mask)

    computed = [item.expression for item in selection.output if item.expression not in positions]
    leaves = dict.fromkeys(leaf for expression in computed for leaf in leaves_of(expression))
    rows = Evaluator({leaf.name: _values(leaf, column(leaf)) for leaf in leaves}, count)
    arrays = []
    for item in selection.output:
        kind = item.expression.type
        if item.expression in positions:
            array = column(item.expression)
            array = array.field("v") if isinstance(item.expression, Foreign) else array
            arrays.append(array.cast(arrow_type(kind)) if is_known(kind) else array)
        else:
            arrays.append(to_arrow(rows(item.expression), kind, count))
    return pa.RecordBatch.from_arrays(arrays, names=[item.name for item in selection.output])


def _values(leaf: Column | Foreign, array: pa.Array) -> Values:
    return attempted(array, leaf.type) if isinstance(leaf, Foreign) else from_arrow(array, leaf.type)
