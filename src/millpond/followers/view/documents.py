"""Decodes JSON documents, as `view.latest_documents` writes them, to rows with the query's columns."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

import msgspec
import pyarrow as pa

from millpond.errors import BusyError, CorruptError
from millpond.model.query import Query
from millpond.model.types import (
    INTERVAL,
    WINDOW,
    element_of,
    is_array,
    is_decimal,
    is_float,
    is_integer,
    is_struct,
    struct_fields,
)
from millpond.plan.options.output_modes import OP, REVISION
from millpond.runtime.rows.window_rows import output_schema
from millpond.state.ports.store import BucketStore, Rows

_ROWS_AT_ONCE = 1 << 16
_TRIES, _PAUSE_SECONDS = 40, 0.05

_INTERVAL = re.compile(r"INTERVAL '(-?)(\d+) (\d+):(\d+):(\d+)(?:\.(\d+))?' DAY TO SECOND")


class _Interval(datetime.timedelta):
    """The type of intervals for msgspec, which would read a `timedelta` from a text of ISO 8601."""


_PLAIN: dict[str, Any] = {
    "string": str, "boolean": bool, "date": datetime.date, "timestamp": datetime.datetime,
    "timestamp_ntz": datetime.datetime, INTERVAL: _Interval,
}  # fmt: skip


def _interval(_kind: type, text: str) -> _Interval:
    """Decodes an interval, as `sinks.text` writes it."""
    found = _INTERVAL.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no interval")
    sign, *parts, fraction = found.groups(default="")
    days, hours, minutes, seconds, micros = (int(sign + part) for part in (*parts, fraction.ljust(6, "0")))
    return _Interval(days, seconds, micros, 0, minutes, hours)


class ServedColumn(NamedTuple):
    """A column of the served rows: its name and SQL type."""

    name: str
    type: str


def served_columns(query: Query) -> list[ServedColumn]:
    """The columns of the documents of a query."""
    columns = [ServedColumn(item.name, item.expression.type) for item in query.output]
    return [*columns, *([ServedColumn(REVISION, "bigint")] if query.corrected_for_us else [])]


class Documents:
    """Decodes the documents of a query; create it once, because it prepares a decoder."""

    def __init__(self, query: Query) -> None:
        columns = served_columns(query)
        schema = output_schema(query)
        self._query = query.name
        self._type = pa.struct([field for field in schema if field.name != OP or not query.changing])
        document = _fields(row=_fields(**{name: _read_as(kind) for name, kind in columns}))
        # not strict, because NaN and infinities are strings in JSON
        self._decoder: Any = msgspec.json.Decoder(list[document], strict=False, dec_hook=_interval)  # type: ignore[valid-type]

    @property
    def schema(self) -> pa.Schema:
        """The schema of `rows`."""
        return pa.schema(list(self._type))

    def rows(self, documents: Sequence[bytes]) -> pa.RecordBatch:
        """The row of each document.

        Raises:
            CorruptError: a document is not of this query, or has a time outside of the years 1 to 9999.
        """
        try:
            found = self._decoder.decode(b"[" + b",".join(documents) + b"]")
            rows = pa.array([document["row"] for document in found], self._type)
        except (msgspec.MsgspecError, pa.ArrowInvalid) as error:
            raise CorruptError(
                f"The stored rows of {self._query} do not read: {error}.",
                "Times must be of the years 1 to 9999; else delete the store, it is made again from the log.",
            ) from error
        return pa.RecordBatch.from_struct_array(rows)


def rows_of_one_record(
    store: BucketStore, buckets: Iterable[int], names: Sequence[str]
) -> tuple[int, list[list[Rows]]]:  # fmt: skip
    """The number of a record, and the rows of some queries as of it: by bucket, then by query.

    Raises:
        BusyError: the rows change too fast to be read as of one record.
        StoreError: the store cannot be read.
    """
    wanted = list(buckets)
    for _ in range(_TRIES):
        scanned = store.scan_tables(wanted, names)
        numbers = {rows.applied for bucket in scanned for rows in bucket}
        if len(numbers) == 1:
            return numbers.pop(), scanned
        time.sleep(_PAUSE_SECONDS)
    raise BusyError("Instances are writing the rows of different records.", "Try again.")


def decoded(query: Query, found: Iterable[Rows]) -> Iterator[pa.RecordBatch]:
    """The rows of a query from the stored rows of some buckets, in batches; at least one batch."""
    reader = Documents(query)
    documents = [value for rows in found for value in rows.values]
    for start in range(0, max(1, len(documents)), _ROWS_AT_ONCE):
        yield reader.rows(documents[start : start + _ROWS_AT_ONCE])


def _fields(**types: Any) -> Any:
    """The type of a dict with these fields; their names need not be identifiers."""
    return TypedDict("fields", types)  # type: ignore[operator]


def _read_as(kind: str) -> Any:
    """The Python type of the values of a SQL type, for msgspec; values may be NULL."""
    if kind == WINDOW:
        plain: Any = _fields(start=datetime.datetime, end=datetime.datetime)
    elif is_array(kind):
        plain = list[_read_as(element_of(kind))]  # type: ignore[misc]
    elif is_struct(kind):
        plain = _fields(**{field.name: _read_as(field.type) for field in struct_fields(kind)})
    elif is_decimal(kind):
        plain = Decimal
    else:
        plain = int if is_integer(kind) else float if is_float(kind) else _PLAIN[kind]
    return plain | None
