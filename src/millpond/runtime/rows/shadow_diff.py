"""Diff between a query and its shadow: the rows that only one of them emitted. Equal rows are not written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.plan.groups.plan import Plan
from millpond.runtime.packets.row_batches import RowBatch, without_private_columns

NET = "__net"
"""The column with how many more times the query emits a row than its shadow does; negative if fewer."""


class ShadowDiff:
    """Collects the rows that compared queries and their shadows emit in one epoch, until both are complete.

    `silent`: queries that emit nothing; their pairs cannot be compared.
    """

    def __init__(self, plan: Plan, silent: Collection[str]) -> None:
        self._compared, self.names, self._silent = plan.compared, plan.compared_names, silent
        self._rows: dict[str, list[pa.RecordBatch]] = {}

    def add(self, name: str, rows: Sequence[pa.RecordBatch]) -> None:
        """Add rows of a query or shadow, without the columns of served queries that only the view reads."""
        if name in self.names:
            self._rows.setdefault(name, []).extend(without_private_columns(batch) for batch in rows if batch.num_rows)

    def batches(self) -> Iterator[RowBatch]:
        """The differing rows of each pair; they belong to the query."""
        for query, shadow in self._compared.items():
            if query in self._silent or shadow in self._silent:
                continue
            rows = row_diff(*(self._rows.get(name, []) for name in (query, shadow)))
            if rows is not None:
                yield from (RowBatch(query, batch, "differing") for batch in rows.to_batches())


def row_diff(query: Sequence[pa.RecordBatch], shadow: Sequence[pa.RecordBatch]) -> pa.Table | None:
    """The rows that one side emits more often than the other, each with `NET`; None if both emit the same rows.

    No batch may be empty. Rows are equal if their bits are. If a column has no fixed size (lists, for example), all
    rows count as different.
    """
    sides = [(_nullable(pa.Table.from_batches(rows)), net) for rows, net in ((query, 1), (shadow, -1)) if rows]
    if not sides:
        return None
    rows_of_both = pa.concat_tables(
        [rows.append_column(NET, pa.array(np.full(len(rows), net))) for rows, net in sides]
    )  # fmt: skip
    summed = sum_net(rows_of_both) if len(sides) == 2 else None
    rows_of_both = rows_of_both if summed is None else summed
    return rows_of_both if len(rows_of_both) else None


def sum_net(table: pa.Table, keys: pa.Array | None = None) -> pa.Table | None:
    """Equal rows combined into one with the sum of their `NET`, the last column, and without rows whose sum is 0.

    Rows are equal if their `keys` are, or without `keys` if their bits are. None: a column has no fixed size.
    """
    rows = table.drop_columns([NET])
    keys = bytes_of_rows(rows) if keys is None else keys
    if keys is None:
        return None
    codes = keys.dictionary_encode().indices.to_numpy()
    net = np.bincount(codes, table[NET].to_numpy()).astype(np.int64)
    first = np.empty(len(net), np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    differs = np.flatnonzero(net)
    return rows.take(pa.array(first[differs])).append_column(NET, pa.array(net[differs]))


def _nullable(rows: pa.Table) -> pa.Table:
    """The rows with all fields nullable: two versions of a query may differ in which fields can be NULL."""
    schema = pa.schema([pa.field(field.name, _with_nulls(field.type)) for field in rows.schema])
    return rows if rows.schema == schema else rows.cast(schema)


def _with_nulls(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _with_nulls(field.type)) for field in kind])
    return pa.list_(_with_nulls(kind.value_type)) if pa.types.is_list(kind) else kind


def bytes_of_rows(table: pa.Table) -> pa.Array | None:
    """Each row as bytes, which are equal if the rows are; None if the values of some column have no fixed size.

    This is used because Arrow's grouping by columns imports Pandas: 0.2 s in a worker's first epoch that needs it.
    """
    words: list[npt.NDArray[Any]] = []
    for part in (part for column in table.columns for part in _plain(column.combine_chunks())):
        column_words = _words(part)
        if column_words is None:
            return None
        # constant columns are left out; most of them are bounds of windows
        words += [word for word in column_words if (word != word[0]).any()]
    rows = np.empty(len(table), [(str(i), word.dtype) for i, word in enumerate(words)])
    for i, word in enumerate(words):
        rows[str(i)] = word
    data = [None, pa.py_buffer(rows.view(np.uint8))]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(rows.dtype.itemsize), len(rows), data)


def _plain(column: pa.Array) -> Iterator[pa.Array]:
    """A column as columns without fields: for a struct, whether it is NULL, then its fields."""
    if not pa.types.is_struct(column.type):
        yield column
        return
    yield column.is_null()
    for field in column.flatten():
        yield from _plain(field)


def _words(column: pa.Array) -> list[npt.NDArray[Any]] | None:
    """The values of a column as words that are equal if the values are: whether it is NULL, then its bits (0 if NULL).

    None: the values have no fixed size.
    """
    kind, null = column.type, np.asarray(column.is_null())
    if pa.types.is_null(kind):
        return []
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        column = column.dictionary_encode().indices
    elif pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind)):
        return None
    size, data = column.type.bit_width // 8, column.buffers()[1]
    width = min(size, 8)
    flat = np.frombuffer(data, f"u{width}")
    each = size // width
    values = flat[column.offset * each : (column.offset + len(column)) * each].reshape(len(column), each)
    if not column.null_count:
        return [*values.T]
    return [null, *np.where(null[:, None], np.zeros(1, values.dtype), values).T]
