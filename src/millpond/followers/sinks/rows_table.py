"""The rows of a query as rows of a database table: columns, key, and the last change of each key in a record.

A sink that writes to a database makes a `RowsTable` with the database's names of types, and writes what `last` returns
in the transaction that stores its cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.followers.record_rows import key_columns
from millpond.model.selection import AnyQuery
from millpond.model.types import WINDOW
from millpond.plan.options.output_modes import OP, REVISION
from millpond.runtime.rows.window_rows import with_flat_windows
from millpond.runtime.rows.window_updates import DELETE

Positions = npt.NDArray[np.int64]


class Changes(NamedTuple):
    """The last change of each key: rows to insert or to replace, and rows to delete; both in the order of the log."""

    upserts: pa.Table
    deletes: pa.Table


class RowsTable(NamedTuple):
    """The columns of a table with their types in the database, and those that are the key; no key: rows are inserted.

    A window `w` is two columns, `w_start` and `w_end`. `latest`: the column that decides which of several rows of a
    record with one key is the latest. `changing`: rows have the column `_op`, and some delete.
    """

    columns: Mapping[str, str]
    key: tuple[str, ...]
    latest: str | None
    changing: bool

    @classmethod
    def of(cls, query: AnyQuery, sink: str, type_of: Callable[[str], str | None], key: str | None = None) -> RowsTable:
        """The table for the rows of a query.

        `type_of` returns the database's type for one of ours, or None if it has none. `key`: the option `key`, column
        names with commas between them; the default is the window and the key columns of the query.

        Raises:
            UnsupportedQuery: a column has no type in the database, or no columns identify a row.
            QueryTypeError: the key has an unknown column.
        """
        columns: dict[str, str] = {}
        windows: dict[str, tuple[str, str]] = {}
        for item in query.output:
            kind = item.expression.type
            parts = (f"{item.name}_start", f"{item.name}_end") if kind == WINDOW else (item.name,)
            found = type_of("timestamp" if kind == WINDOW else kind)
            if found is None:
                what = f"The {sink} sink of {query.name} cannot write {item.name}, of type {kind}."
                raise UnsupportedQuery(what, "Select its parts, or cast it to string.")
            columns |= dict.fromkeys(parts, found)
            if len(parts) == 2:
                windows[item.name] = parts
        listed = [one.strip() for one in (key or "").split(",") if one.strip()] or key_columns(query)
        keys = [part for one in listed for part in windows.get(one, (one,))]
        for column in keys:
            if column not in columns:
                raise QueryTypeError(f"The {sink} sink of {query.name} has no column {column}.", "Mend its 'key'.")
        if getattr(query, "corrected_for_us", 0):
            columns[REVISION] = type_of("bigint") or "bigint"
        latest = next((end for _, end in windows.values()), None)
        return cls(columns, tuple(keys), latest, bool(getattr(query, "changing", False)))

    def flat(self, table: pa.Table) -> pa.Table:
        """The rows with each window as two columns, in the order of `columns`; then `_op`, if rows change."""
        return with_flat_windows(table).select([*self.columns, *([OP] if self.changing else [])])

    def last(self, table: pa.Table) -> Changes:
        """The last change of each key in the rows of a record, without `_op`; without a key, all rows are upserts."""
        rows = self.flat(table)
        if self.key:
            ranks = np.zeros(len(rows), np.int64)
            if self.latest is not None:
                ranks = pc.fill_null(rows[self.latest].cast(pa.int64()), 0).to_numpy()
            rows = rows.take(np.sort(last_of_groups(_groups(rows, self.key), ranks)))
        if not self.changing:
            return Changes(rows, rows.slice(0, 0))
        deleted = pc.equal(rows[OP], DELETE)
        rows = rows.drop_columns([OP])
        return Changes(rows.filter(pc.invert(deleted)), rows.filter(deleted))


def last_of_groups(groups: Positions, ranks: Positions) -> Positions:
    """The position of the last row of each group: the one with the highest rank, of several the one that comes last.

    >>> last_of_groups(np.array([0, 1, 0, 1]), np.array([5, 7, 5, 6])).tolist()
    [2, 1]
    """
    order = np.lexsort((np.arange(len(groups)), ranks, groups))
    return order[np.append(groups[order][1:] != groups[order][:-1], True)] if len(groups) else order


def _groups(rows: pa.Table, key: tuple[str, ...]) -> Positions:
    """For each row a number that rows with equal keys share; NULL is a value, and -0.0 equals 0.0, as in SQL."""
    groups = np.zeros(len(rows), np.int64)
    for name in key:
        column = rows[name].combine_chunks()
        if pa.types.is_floating(column.type):
            column = pc.add(column, pa.scalar(0.0, column.type))
        codes = column.dictionary_encode(null_encoding="encode")
        if isinstance(codes, pa.ChunkedArray):
            codes = codes.unify_dictionaries().combine_chunks()
        numbers = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        groups = np.unique(groups * (len(codes.dictionary) + 1) + numbers, return_inverse=True)[1]
    return groups
