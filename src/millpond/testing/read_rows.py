"""Converts rows of tests (dicts, Arrow, frames of pandas or polars) to Arrow columns of SQL types, with strict checks.

Nothing is guessed: text is never converted to a number, a fraction is never cut off, and every column that a query
reads must be present. Times may be text, `2026-01-01 10:00:00`, which is UTC unless it names a zone.
"""

from __future__ import annotations

import datetime
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Context, Decimal, InvalidOperation
from numbers import Real
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from millpond.clock import moment_us
from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.kernels.columns import arrow_type
from millpond.model.types import FLOATS, WINDOW, digits_of, integer_range, is_decimal, is_integer


class ArrowStream(Protocol):
    """Any object with Arrow's stream interface: a frame of pandas or polars, a table of DuckDB, …"""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """See Arrow's PyCapsule interface."""


Rows: TypeAlias = Iterable[Mapping[str, Any]] | pa.Table | pa.RecordBatch | ArrowStream
"""Events or rows in any form that tests may use."""


class Wanted(NamedTuple):
    """A column that events must have.

    `name`: its name in tests; `key`: its name in expressions; `foreign`: whether only Spark evaluates it; `queries`:
    those that read it; `default`: its DEFAULT; `padded`: the number of characters to which Spark pads its texts.
    """

    name: str
    type: str
    key: str
    foreign: bool = False
    queries: tuple[str, ...] = ()
    default: str = ""
    padded: int = 0


class Misfit(Exception):
    """A value is not of its type; the text states what it should be."""


_EXACT = Context(prec=200)


def time_us(value: Any) -> int:
    """Converts a time to microseconds since 1970 UTC: ISO text, a datetime (both UTC without a zone), or an int.

    >>> time_us("1970-01-01 00:00:01.5"), time_us("1970-01-01T02:00:00+02:00")
    (1500000, 0)

    Raises:
        Misfit: it is none of these.
    """
    if isinstance(value, str):
        text = re.sub(r"(?<=:\d\d)\.(\d{1,6})(?!\d)", lambda part: "." + part[1].ljust(6, "0"), value.strip())
        try:
            value = datetime.datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
        except ValueError:
            raise Misfit("a time like '2026-01-01 10:00:00'") from None
    if isinstance(value, datetime.datetime):
        return moment_us(value)
    return _whole(value, 64, "a time: text, a datetime or microseconds since 1970 (int)")


def value_of(kind: str, value: Any) -> Any:
    """Converts a value for an Arrow column of SQL type `kind`: times as microseconds, dates as days.

    Raises:
        Misfit: the value is not of that type.
    """
    if value is None:
        return None
    if kind == WINDOW:
        if not isinstance(value, Mapping) or {*value} != {"start", "end"}:
            raise Misfit("a window: {'start': …, 'end': …}")
        return {part: time_us(value[part]) for part in ("start", "end")}
    if is_decimal(kind):
        return _decimal(kind, value)
    if is_integer(kind):
        low, high = integer_range(kind)
        return _whole(value, (high + 1).bit_length(), f"a {kind}: an int from {low} to {high}")
    return _CONVERTERS.get(kind, lambda same: same)(value)


def _whole(value: Any, bits: int, wanted: str) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise Misfit(wanted)
    return number


def _float(value: Any) -> float:
    if not isinstance(value, bool) and isinstance(value, Real):
        number = float(value)
        if number == value or number != number:
            return number
    raise Misfit("a double: a float, or an int that is one")


def _decimal(kind: str, value: Any) -> Decimal:
    digits = digits_of(kind)
    wanted = f"a {kind}: a Decimal or an int of {digits.precision} digits, {digits.scale} of them after the point"
    if isinstance(value, bool) or not isinstance(value, Decimal | int):
        raise Misfit(wanted)
    try:
        number = _EXACT.quantize(Decimal(value), Decimal(1).scaleb(-digits.scale))
    except InvalidOperation:
        raise Misfit(wanted) from None
    if number != value or len(number.as_tuple().digits) > digits.precision:
        raise Misfit(wanted)
    return number


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise Misfit("a string")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise Misfit("a boolean")


def _date(value: Any) -> int:
    if isinstance(value, str):
        try:
            value = datetime.date.fromisoformat(value)
        except ValueError:
            raise Misfit("a date like '2026-01-01'") from None
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return (value - datetime.date(1970, 1, 1)).days
    return _whole(value, 32, "a date: text, a date or days since 1970 (int)")


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(FLOATS, _float), "string": _text, "boolean": _boolean, "date": _date,
    "timestamp": time_us, "timestamp_ntz": time_us,
}  # fmt: skip


def events_table(stream: str, columns: Sequence[str], wanted: Sequence[Wanted], rows: Rows) -> pa.Table:
    """The columns of a stream's events that queries read; `columns`: the names of all columns of the stream.

    Raises:
        QueryTypeError: an event lacks a column, has an unknown column, or has a value of a wrong type.
        UnsupportedQuery: the values of an expression that only Spark evaluates are missing.
    """
    known = {*columns, *(column.name for column in wanted)}
    if isinstance(rows, pa.RecordBatch):
        table: pa.Table = pa.Table.from_batches([rows])
    elif isinstance(rows, pa.Table):
        table = rows
    elif hasattr(rows, "__arrow_c_stream__"):
        table = pa.table(rows)
        table = table.select([name for name in table.column_names if not name.startswith("__index_level_")])
    else:
        return _of_dicts(stream, known, wanted, list(rows))
    _check_names(stream, "The table", table.column_names, known, wanted)
    arrays = [_of_arrow(stream, column, table.column(column.name).combine_chunks()) for column in wanted]
    return _table(wanted, arrays, len(table))


def _padded(column: Wanted, array: pa.Array) -> pa.Array:
    """Pads the texts of a CHAR(n) with blanks to their length, as Spark does when it reads them."""
    return pc.utf8_rpad(array, width=column.padded, padding=" ") if column.padded else array


def _of_dicts(stream: str, known: set[str], wanted: Sequence[Wanted], rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    shapes: set[tuple[str, ...]] = set()
    for number, row in enumerate(rows):
        if (shape := tuple(row)) not in shapes:
            _check_names(stream, f"Row {number}", shape, known, wanted)
            shapes.add(shape)
    arrays = [_of_values(stream, column, [row[column.name] for row in rows]) for column in wanted]
    return _table(wanted, arrays, len(rows))


def _table(wanted: Sequence[Wanted], arrays: Sequence[pa.Array], rows: int) -> pa.Table:
    if not wanted:
        return pa.table({"": pa.nulls(rows)})
    padded = [_padded(column, array) for column, array in zip(wanted, arrays, strict=True)]
    return pa.Table.from_arrays(padded, names=[column.name for column in wanted])


def _check_names(stream: str, what: str, names: Iterable[str], known: set[str], wanted: Sequence[Wanted]) -> None:
    given = set(names)
    if strange := sorted(given - known):
        raise QueryTypeError(
            f"{what} fed to {stream} has a column {strange[0]}, which the stream does not have.",
            f"Its columns are {', '.join(sorted(known))}.",
        )
    for column in wanted:
        if column.name in given:
            continue
        readers = " and ".join(column.queries)
        if column.foreign:
            raise UnsupportedQuery(
                f"Only Spark evaluates `{column.name}`, which {readers} reads of {stream}.",
                "Give its values in the rows fed, in a column of that name, or leave the query out with `only`.",
            )
        filled = f" Spark fills in its DEFAULT {column.default}; a trial does not." if column.default else ""
        raise QueryTypeError(
            f"{what} fed to {stream} lacks the column {column.name}, which {readers} reads.{filled}",
            "NULL is written None.",
        )


def _of_values(stream: str, column: Wanted, values: Sequence[Any]) -> pa.Array:
    converted = []
    for number, value in enumerate(values):
        try:
            converted.append(value_of(column.type, value))
        except Misfit as error:
            raise QueryTypeError(
                f"Row {number} fed to {stream} has {value!r} ({type(value).__name__}) as {column.name}.",
                f"It must be {error}.",
            ) from None
    kind = arrow_type(column.type)
    if column.type == "date":
        return pa.array(converted, pa.int32()).view(kind)
    return pa.array(converted, pa.int64()).view(kind) if pa.types.is_timestamp(kind) else pa.array(converted, kind)


def _of_arrow(stream: str, column: Wanted, array: pa.Array) -> pa.Array:
    """Casts an Arrow column to the type of the stream if nothing is lost, else converts each value, for the error."""
    kind = arrow_type(column.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type == kind:
        return array
    try:
        if pa.types.is_timestamp(array.type) and pa.types.is_timestamp(kind):
            # without a zone it is UTC
            return array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64()).view(kind)
        if any(same(array.type) and same(kind) for same in _FAMILIES) or pa.types.is_null(array.type):
            return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if pa.types.is_timestamp(array.type):
            raise QueryTypeError(
                f"The times fed to {stream} as {column.name} do not fit: {error}.", "Use whole microseconds."
            ) from error
    return _of_values(stream, column, array.to_pylist())


_FAMILIES: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer, pa.types.is_decimal,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view",
    lambda kind: pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind),
)  # fmt: skip
