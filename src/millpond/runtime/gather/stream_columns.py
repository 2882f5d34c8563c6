"""The columns of a stream in one chunk, converted from Arrow on first use."""

from __future__ import annotations

import pyarrow as pa

from millpond.arrays import Ints
from millpond.kernels.columns import Values, attempted, from_arrow
from millpond.runtime.task.column_layout import StreamLayout
from millpond.state.keys.keys import plain


class StreamColumns(dict[str, Values]):
    """Values by column name; with `rows`, only the values of these rows."""

    def __init__(self, layout: StreamLayout, table: pa.RecordBatch, rows: Ints | None = None) -> None:
        super().__init__()
        self._table = table
        self._rows = None if rows is None else pa.array(rows)
        self._places = {column.name: column for column in layout.columns}

    def raw(self, name: str) -> pa.Array:
        """A column as it was read, without a dictionary; a foreign one is `struct<v>`."""
        return plain(self._read(name))

    def encoded(self, name: str) -> pa.DictionaryArray | None:
        """A column that was read with a dictionary; None if it has none."""
        column = self._read(name)
        return column if isinstance(column, pa.DictionaryArray) else None

    def _read(self, name: str) -> pa.Array:
        column = self._table.column(self._places[name].position)
        return column if self._rows is None else column.take(self._rows)

    def __missing__(self, name: str) -> Values:
        place, column = self._places[name], self.raw(name)
        if place.foreign:
            self[name] = attempted(column, place.type)
        else:
            self[name] = from_arrow(column, place.type)
        return self[name]
