"""Reads the Parquet files of Delta Lake and Iceberg tables into the columns that a stream declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millpond.clock import moment_us
from millpond.errors import GoneError, LateSchemaError, one_of

_ROWS = 1 << 16

_PLAIN = {
    kind.id: plain
    for plain, wide in (
        (pa.string(), (pa.large_string(), pa.string_view())),
        (pa.binary(), (pa.large_binary(), pa.binary_view())),
    )
    for kind in wide
}
"""By the number of an Arrow type, the type that Spark has for the same values."""


class DataFile(NamedTuple):
    """A data file of a table: its address, its size in bytes, and the values of the columns of its partition by name.

    A column that is in the file has the values of the file.
    """

    path: str
    size: int
    constants: dict[str, Any]


class FileReader(msgspec.Struct, frozen=True):
    """Reads files of a table in a task, which does not open the table.

    `table` is its name in messages, `open` opens the address of a file (None: it is a local path), and `missing_cure`
    is the cure if a file does not exist. `ids` are the numbers of the table's columns by name in lower case, by which
    files name their columns; None: columns are found by name. `defaults` are the values of columns that a file lacks.
    """

    table: str
    missing_cure: str
    open: Callable[[str], Any] | None = None
    ids: dict[str, int] | None = None
    defaults: dict[str, Any] = {}

    def read(self, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a file in the types of `schema`; a column that the file lacks is NULL. Ignores the case of names.

        Raises:
            GoneError: the file does not exist. LateSchemaError: the table does not have a column, or it has another
                type than the schema.
        """
        if (ids := self.ids) is not None:
            for name in schema.names:
                if name.lower() not in ids:
                    raise LateSchemaError(f"{name} is not a column of {self.table}.", one_of(name, ids))
        try:
            source = file.path if self.open is None else self.open(file.path)
            opened = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
        except FileNotFoundError as error:
            raise GoneError(f"The data file {file.path} no longer exists.", self.missing_cure) from error
        with opened:
            constants = {name.lower(): value for name, value in (self.defaults | file.constants).items()}
            yield from _batches(file, schema, opened, _stored_names(ids, opened.schema_arrow), constants)


def _batches(
    file: DataFile, schema: pa.Schema, opened: pq.ParquetFile, stored: dict[str, str], constants: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    leaves = [opened.schema.column(number) for number in range(len(opened.schema))]
    int96 = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
    needed = [stored[name.lower()] for name in schema.names if name.lower() in stored]
    for batch in opened.iter_batches(_ROWS, columns=needed):
        columns = []
        for field in schema:
            name = field.name.lower()
            if name in stored:
                instants = any(f"{path}.".startswith(f"{stored[name]}.") for path in int96)
                columns.append(_converted(file, field, batch.column(stored[name]), instants))
            elif name in constants:
                columns.append(_repeated(file, field, constants[name], batch.num_rows))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _stored_names(ids: dict[str, int] | None, stored: pa.Schema) -> dict[str, str]:
    """By the name of a column in lower case, its name in the file, which differs if the column was renamed."""
    numbers = {int((field.metadata or {}).get(b"PARQUET:field_id", 0)): field.name for field in stored}
    if ids is None or not numbers.keys() - {0}:
        return {name.lower(): name for name in stored.names}
    return {name: numbers[number] for name, number in ids.items() if number in numbers}


def _repeated(file: DataFile, field: pa.Field, value: object, count: int) -> pa.Array:
    """The value of a partition column. Delta has it as a text; the text of a time without an offset is in UTC."""
    if pa.types.is_binary(field.type):
        raise _misfit(file, field, "the text of a partition", "Leave the column out of the declaration.")
    if value is None or value == "":
        return pa.nulls(count, field.type)
    try:
        if isinstance(value, str) and pa.types.is_timestamp(field.type) and field.type.tz is not None:
            value = pa.scalar(moment_us(datetime.fromisoformat(value)), pa.timestamp("us", "UTC"))
        return pa.repeat(pa.scalar(value).cast(field.type), count)
    except (ValueError, pa.ArrowNotImplementedError) as error:
        raise _misfit(file, field, f"the partition {value!r}") from error


def _converted(file: DataFile, field: pa.Field, values: pa.Array, instants: bool) -> pa.Array:
    if values.type == field.type:
        return values
    if not _fits(values.type, field.type, instants):
        raise _misfit(file, field, str(values.type))
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _misfit(file, field, str(values.type)) from error


def _fits(stored: pa.DataType, to: pa.DataType, instants: bool) -> bool:
    """Whether each value of a type is one of another type; with `instants`, times without a zone are in UTC.

    Spark writes a TIMESTAMP as INT96 by default, which has no zone in Arrow.
    """
    kinds = pa.types
    stored = _PLAIN.get(stored.id, stored.value_type if kinds.is_dictionary(stored) else stored)
    if kinds.is_timestamp(stored) and kinds.is_timestamp(to):
        return (stored.tz is None) == (to.tz is None) or (instants and stored.tz is None)
    if kinds.is_signed_integer(stored) and kinds.is_signed_integer(to):
        return bool(stored.bit_width <= to.bit_width)
    if kinds.is_floating(stored) and kinds.is_floating(to):
        return bool(stored.bit_width <= to.bit_width)
    if kinds.is_decimal(stored) and kinds.is_decimal(to):
        return bool(stored.scale == to.scale and stored.precision <= to.precision)
    if kinds.is_nested(stored) and stored.id == to.id and stored.num_fields == to.num_fields:
        parts = [(stored.field(place), to.field(place)) for place in range(stored.num_fields)]
        named = kinds.is_struct(stored)
        return all((a.name == b.name or not named) and _fits(a.type, b.type, instants) for a, b in parts)
    return bool(stored == to)


def _misfit(file: DataFile, field: pa.Field, found: str, cure: str = "Correct the declaration.") -> LateSchemaError:
    return LateSchemaError(f"{field.name} of {file.path} is {found}, and its stream declares {field.type}.", cure)
