"""Calls a user function of each kind for many keys; this runs in the child process.

A holistic function is called once per key, the other kinds once for all keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, ordered

BATCH_ROWS = 1 << 16
"""The most events in one call of a mergeable function's `update`."""

KEY = "key"
"""The column with the result row of each event: 0, 1, 2, …, ascending."""

VALUE = "value"
"""The column of the first argument; the others are `value_2`, `value_3`, …"""


class Wrong(Exception):
    """A function's result is wrong; `row` is the wrong row, if it is a single one."""

    def __init__(self, what: str, row: int | None = None) -> None:
        super().__init__(what)
        self.row = row


def holistic(
    function: Callable[..., Any],
    table: pa.Table,
    rows: int,
    answer: pa.DataType,
    convert: Callable[[pa.Array], Any],
    at: Callable[[int], None],
) -> pa.Array:
    """Calls `function` for the events of each key; calls `at` with the row before each call."""
    keys, columns = _split(table)
    bounds = np.searchsorted(keys, np.arange(rows + 1)).tolist()
    found = []
    for row, (first, end) in enumerate(pairwise(bounds)):
        at(row)
        value = function(*(convert(column.slice(first, end - first)) for column in columns))
        found.append(value.as_py() if isinstance(value, pa.Scalar) else value)
    return _of_values(found, answer)


def grouped(function: Callable[[pa.Table], Any], table: pa.Table, rows: int, answer: pa.DataType) -> pa.Array:
    """Calls `function` once; a returned table has a column `key`, or its rows are in the order of the keys."""
    returned = function(table)
    if isinstance(returned, pa.RecordBatch):
        returned = pa.Table.from_batches([returned])
    if not isinstance(returned, pa.Table):
        return as_column(returned, rows, answer)
    rest = [name for name in returned.column_names if name != KEY]
    if len(rest) != 1:
        raise Wrong(f"gave a table of the columns {', '.join(returned.column_names)}, not {KEY} and one more")
    column = as_column(returned.column(rest[0]), rows, answer)
    if KEY not in returned.column_names:
        return column
    keys = as_column(returned.column(KEY), rows, pa.int64()).to_numpy(zero_copy_only=False)
    order = ordered(keys)
    missing = np.flatnonzero(keys[order] != np.arange(rows))
    if len(missing):
        raise Wrong("gave a table without one row for each key", int(missing[0]))
    return column.take(pa.array(order))


def mergeable(
    function: Any, table: pa.Table, rows: int, answer: pa.DataType, cells: pa.ChunkedArray | None = None
) -> pa.Array:
    """Updates a state per key and finishes it; with `cells` (a list per row), `key` numbers cells, which are merged."""
    keys, columns = _split(table)
    batch = pa.table(columns, table.column_names[1:])
    count = rows if cells is None else int(keys[-1]) + 1 if len(keys) else 0
    state = _state(function.create(count), count, None)
    for first in range(0, len(keys), BATCH_ROWS):
        part = slice(first, first + BATCH_ROWS)
        state = _state(function.update(state, pa.array(keys[part]), batch[part]), count, state.schema)
    if cells is not None:
        state = _merged(function, state, cells.combine_chunks())
    return as_column(function.finish(state), rows, answer)


STEPS = ("process", "timer")
"""The methods of a processor: for new events of keys, and for timers that are due."""

TIME = "time"
"""The column with the time of an event, a timer or a row."""

TIMER = "timer"
"""The column of a state with the time at which `timer` is called for the key; NULL: it is not."""


def processed(function: Any, step: str, events: pa.Table, state: pa.Table, row_type: pa.StructType) -> list[pa.Table]:
    """Calls a processor for all keys; returns the rows (`key` and the fields of `row_type`) and the new states.

    Row i of `state` is that of key i. A state whose values are all NULL is the same as none.
    """
    found = getattr(function, step)(events, state)
    if not isinstance(found, tuple) or len(found) != 2:
        raise Wrong(f"returned {_short(found)} from {step}, not a pair of rows and states")
    rows, states = (pa.Table.from_batches([one]) if isinstance(one, pa.RecordBatch) else one for one in found)
    fields = [pa.field(KEY, pa.int64()), *row_type]
    made = pa.schema(fields).empty_table() if rows is None else _as_table(rows, pa.schema(fields), "rows")
    missing, keys = any(made.column(name).null_count for name in (KEY, TIME)), made.column(KEY).to_numpy()
    if missing or (len(keys) and not 0 <= keys.min() <= keys.max() < len(state)):
        raise Wrong(f"gave rows without a {TIME}, or with a {KEY} that the states do not have")
    kept = _as_table(states, state.schema, "states")
    if len(kept) != len(state):
        raise Wrong(f"gave {len(kept)} states for {len(state)} keys")
    return [made, kept]


def _as_table(found: Any, schema: pa.Schema, what: str) -> pa.Table:
    """The columns of `schema` of a table that a processor returned; other columns are refused."""
    if not isinstance(found, pa.Table):
        raise Wrong(f"gave a {type(found).__name__} for a table of {what}")
    if sorted(found.column_names) != sorted(schema.names):
        raise Wrong(f"gave {what} with the columns {', '.join(found.column_names)}, not {', '.join(schema.names)}")
    columns = [as_column(found.column(field.name), len(found), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _merged(function: Any, state: pa.Table, cells: pa.ListArray) -> pa.Table:
    """Merges cells into one state per row: neighbours in pairs, all rows at once, in log2(cells per row) rounds."""
    lengths: Ints = np.diff(np.asarray(cells.offsets))
    state = state.take(cells.flatten())
    while len(lengths) and lengths.max() > 1:
        starts = np.cumsum(lengths) - lengths
        place = np.arange(lengths.sum()) - np.repeat(starts, lengths)  # the position of a cell in its row
        last = np.repeat(lengths, lengths) - 1
        left = np.flatnonzero((place % 2 == 0) & (place < last))
        alone = np.flatnonzero((place % 2 == 0) & (place == last))
        pairs = state.take(pa.array(left)), state.take(pa.array(left + 1))
        merged = _state(function.merge(*pairs), len(left), state.schema)
        both = pa.concat_tables([merged, state.take(pa.array(alone))])
        state = both.take(pa.array(ordered(np.concatenate([left, alone]))))
        lengths = (lengths + 1) // 2
    return state


def _state(returned: Any, rows: int, schema: pa.Schema | None) -> pa.Table:
    if isinstance(returned, pa.RecordBatch):
        returned = pa.Table.from_batches([returned])
    if not isinstance(returned, pa.Table):
        raise Wrong(f"gave a {type(returned).__name__} for a table of states")
    if returned.num_rows != rows:
        raise Wrong(f"gave {returned.num_rows} states for {rows}")
    if schema is not None and not returned.schema.equals(schema):
        raise Wrong(f"gave states of {_columns(returned.schema)}, not of {_columns(schema)}")
    return returned


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _split(table: pa.Table) -> tuple[Ints, list[pa.Array]]:
    """The keys, and the other columns, each as one chunk."""
    columns = [_one_piece(column) for column in table.columns]
    return columns[0].to_numpy(zero_copy_only=False), columns[1:]


def _one_piece(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _of_values(values: Sequence[Any], answer: pa.DataType) -> pa.Array:
    """Converts Python values to a column; a bool is not accepted as a number."""
    if not pa.types.is_boolean(answer):
        for row, value in enumerate(values):
            if isinstance(value, bool | np.bool_):
                raise Wrong(f"gave a bool for a {answer}", row)
    try:
        return pa.array(values, answer)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for row, what in _misfits(values, answer):
            raise Wrong(what, row) from None
        raise


def _misfits(values: Sequence[Any], answer: pa.DataType) -> Iterator[tuple[int, str]]:
    for row, value in enumerate(values):
        try:
            pa.array([value], answer)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            yield row, f"gave {_short(value)} ({type(value).__name__}) for a {answer}"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


def as_column(column: Any, rows: int, answer: pa.DataType) -> pa.Array:
    """Converts a column that a function returned to the declared type; numbers are cast if no information is lost.

    Raises:
        Wrong: it is not a column of a convertible type, or has a wrong number of rows.
    """
    if isinstance(column, np.ndarray) and column.ndim == 1:
        column = pa.array(column)
    elif hasattr(column, "to_arrow"):  # a Polars series
        column = column.to_arrow()
    if isinstance(column, pa.ChunkedArray):
        column = _one_piece(column)
    if not isinstance(column, pa.Array):
        raise Wrong(f"gave a {type(column).__name__} for a column of {answer}")
    if len(column) != rows:
        raise Wrong(f"gave {len(column)} values for {rows} keys")
    if column.type.equals(answer):
        return column
    if _family(column.type) != _family(answer) and not pa.types.is_null(column.type):
        raise Wrong(f"gave a column of {column.type} for one of {answer}")
    try:
        return column.cast(answer)
    except pa.ArrowException as error:
        raise Wrong(f"gave a column of {column.type} that is none of {answer}: {error}") from None


_NESTED = (
    (pa.types.is_list, "list"), (pa.types.is_large_list, "list"), (pa.types.is_map, "map"),
    (pa.types.is_struct, "struct"),
)  # fmt: skip


def _family(kind: pa.DataType) -> str:
    """The family of a type; types of one family are converted to each other."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    for is_kind, name in _NESTED:
        if is_kind(kind):
            return name
    return "timestamp" if pa.types.is_timestamp(kind) and kind.tz is not None else str(kind).split("[")[0]
