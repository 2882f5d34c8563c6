"""Rows that a query and its shadow tell differently in an epoch: what both tell alike leaves no instance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints
from millpond.plan.plan import Plan
from millpond.runtime.outbox import rows_stream
from millpond.state.delta import DeltaWriter

NET = "__net"
"""How often more the query tells a row than its shadow."""

_AT = "at"


class Differing:
    """What the compared queries of a plan and their shadows tell in one epoch, until both are known."""

    def __init__(self, plan: Plan) -> None:
        self._compared, self.names = plan.compared, plan.compared_names
        self._told: dict[str, Sequence[pa.RecordBatch]] = {}

    def add(self, name: str, rows: Sequence[pa.RecordBatch]) -> None:
        """The rows of one of them."""
        if name in self.names:
            self._told[name] = rows

    def write(self, delta: DeltaWriter) -> None:
        """Add what differs to the delta: of each pair a section that is named like the query."""
        for query, shadow in self._compared.items():
            rows = differing(*(self._told.get(name, ()) for name in (query, shadow)))
            if rows is not None:
                delta.add("differing", query, rows_stream([rows]), rows.num_rows, {})


def differing(query: Sequence[pa.RecordBatch], shadow: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """The rows that one tells more often than the other, each with `NET`; None: both tell the same.

    Rows are the same if their bits are. With columns that Arrow does not group by, lists and maps, all of them differ.
    """
    sides = [(pa.Table.from_batches(rows), net) for rows, net in ((query, 1), (shadow, -1)) if rows]
    if not sides:
        return None
    told = pa.concat_tables([rows for rows, _ in sides]).combine_chunks()
    net: Ints = np.repeat([net for _, net in sides], [len(rows) for rows, _ in sides])
    if len(sides) == 2:
        with suppress(pa.ArrowNotImplementedError):
            told, net = _summed(told, net)
    made = told.append_column(NET, pa.array(net, pa.int64())).combine_chunks().to_batches()
    return made[0] if made else None


def _summed(told: pa.Table, net: Ints) -> tuple[pa.Table, Ints]:
    """Each row once, with what it comes to; none where that is nothing. On one core: other instances need theirs."""
    plain = [part for column in told.columns for part in _plain(column.combine_chunks())]
    names = [str(i) for i in range(len(plain))]
    keyed = pa.table([*plain, pa.array(net), pa.array(np.arange(len(net)))], [*names, NET, _AT])
    summed = keyed.group_by(names, use_threads=False).aggregate([(NET, "sum"), (_AT, "min")])
    summed = summed.filter(pc.not_equal(summed[f"{NET}_sum"], 0))
    return told.take(summed[f"{_AT}_min"]), summed[f"{NET}_sum"].to_numpy()


def _plain(column: pa.Array) -> Iterator[pa.Array]:
    """A column as such that Arrow groups by: of a struct whether it is NULL, and its fields."""
    if not pa.types.is_struct(column.type):
        yield column
        return
    yield column.is_null()
    for field in column.flatten():
        yield from _plain(field)
