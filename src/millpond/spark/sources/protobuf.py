"""Parses Kafka values in Protocol Buffers, with a stream's `.proto` file or a schema from a registry.

`formats.protobuf` decodes them in Spark's Python workers, before anything else is evaluated. Spark's own decoder is
not available for every version of Scala.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from millpond.errors import SetupError, UnknownSchemaError
from millpond.formats.malformed_reasons import NO_PARSE, misfit_reason
from millpond.formats.protobuf_schema import ProtoError, ProtoSchema, proto_schema
from millpond.formats.schema_registry import HEADER, Registered
from millpond.local_path import local_path
from millpond.model.stream import Stream
from millpond.plugins import imported as library
from millpond.spark.session.worker import worker_task
from millpond.spark.sources.convert_values import Parsed, is_strict
from millpond.spark.sources.value_schemas import (
    NO_NUMBER,
    NOT_THERE,
    VALUE,
    numbered,
    registered,
    schema_text,
)

if TYPE_CHECKING:
    from millpond.formats.protobuf import Decoded

Ints: TypeAlias = npt.NDArray[np.int64]

_MADE = "__made"
_REASON = "r"
_DEEPEST = 16
_NO_VALUES = pa.array([], pa.binary())
_LIBRARY = ("the format protobuf", "millpond.formats.protobuf:decode_messages", "protobuf")


class Messages(NamedTuple):
    """Decodes values into columns with the stream's own schema, or with schemas by number (a text says why one is
    invalid).

    `message` is the full name of the only expected message; None means the message that each value names. `misfits`: by
    column, why a message is malformed whose value does not fit; empty: it is not malformed. With `fetches_unknown`, an
    unknown schema raises an error, so that the driver requests it; otherwise a value that names one is malformed.
    """

    stream: str
    file: ProtoSchema | None
    schemas: dict[int, ProtoSchema | str]
    message: str | None
    misfits: tuple[str, ...]
    fetches_unknown: bool
    to: pa.StructType

    def __call__(self, values: pa.Array) -> pa.StructArray:
        """The columns, and the reason why a value is malformed (NULL if it is not), as one struct.

        Raises:
            UnknownSchemaError: a value names an unknown schema.
        """
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        reasons = np.full(len(values), None, object)
        parts: list[pa.StructArray] = []
        places: list[Ints] = []
        for which, schema, name, mine, messages in self._sorted(values, reasons):
            try:
                found = _decoded(schema, name, messages, self.to)
            except ProtoError as error:
                reasons[mine] = _schema_error(which, error)
                continue
            if self.misfits:
                reasons[mine] = np.array([*self.misfits, None], object)[found.misfit]
            reasons[mine[found.broken]] = NO_PARSE
            parts.append(found.rows)
            places.append(mine)
        where = np.full(len(values), -1, np.int64)
        if places:
            where[np.concatenate(places)] = np.arange(sum(map(len, places)))
        rows = pa.concat_arrays(parts) if parts else pa.nulls(0, self.to)
        taken = rows.take(pa.array(where, mask=where < 0)).flatten()
        columns = [*taken, pa.array(reasons, pa.string())]
        return pa.StructArray.from_arrays(columns, names=[f"c{n}" for n in range(len(taken))] + [_REASON])

    def _sorted(
        self, values: pa.BinaryArray, reasons: npt.NDArray[np.object_]
    ) -> list[tuple[int | None, ProtoSchema, str, Ints, pa.BinaryArray]]:
        """Group values by schema and message: the messages and their positions; write why values are malformed."""
        given = np.asarray(values.is_valid())
        if self.file is not None:
            return [(None, self.file, self.message or "", np.flatnonzero(given), values.drop_null())]
        data, first, stop = _bytes_of(values)
        headed = given & (stop - first > HEADER)
        headed[headed] = data[first[headed]] == 0
        reasons[given & ~headed] = NO_NUMBER
        mine = np.flatnonzero(headed)
        at = first[mine]
        four = data[at[:, None] + np.arange(1, HEADER)] if mine.size else np.zeros((0, 4), np.uint8)
        number = np.ascontiguousarray(four).view(">i4").ravel().astype(np.int64)
        path, begin = _paths(data, at + HEADER, stop[mine])
        reasons[mine[begin < 0]] = NO_PARSE
        keys, place = np.unique(np.column_stack([number, path]), axis=0, return_inverse=True)
        groups = []
        for n, key in enumerate(keys.tolist()):
            which = key[0]
            if which not in self.schemas and self.fetches_unknown:
                raise UnknownSchemaError.met(self.stream, which)
            own = (place.ravel() == n) & (begin >= 0)
            schema = self.schemas.get(which, _schema_error(which, NOT_THERE))
            if isinstance(schema, str):
                reasons[mine[own]] = schema
                continue
            name = schema.places.get(tuple(index for index in key[1:] if index >= 0))
            if name is None:
                reasons[mine[own]] = _schema_error(which, "has no such message")
            elif self.message not in (None, name):
                reasons[mine[own]] = f"the value is a message {name}"
            else:
                groups.append((which, schema, name, mine[own], _cut(data, begin[own], stop[mine[own]])))
        return groups


def parse_protobuf(
    records: DataFrame, stream: Stream, declared: StructType, options: Mapping[str, str], empty: Column
) -> Parsed:
    """Parse messages into the declared columns; `empty` is the reason why a record without a value is malformed.

    Raises:
        SetupError: a schema is not available.
        SourceError: the registry does not respond.
    """
    to = pa.struct(list(to_arrow_schema(declared, timezone="UTC")))
    library(*_LIBRARY)
    known, fetches_unknown = registered(options) if numbered(options) else ({}, False)
    schemas = {number: _read(number, schema) for number, schema in known.items()}
    file = None if numbered(options) else _of_file(stream, options, to)
    reasons = tuple(misfit_reason(field.name, field.dataType.simpleString()) for field in declared.fields)
    misfits = reasons if is_strict(options) else ()
    messages = Messages(stream.name, file, schemas, options.get("message"), misfits, fetches_unknown, to)
    kinds = [StructField(f"c{n}", field.dataType) for n, field in enumerate(declared.fields)]
    # Otherwise Spark may call the function twice, once for a filter that it pushes down.
    function = UserDefinedFunction(
        _Decoding(messages), StructType([*kinds, StructField(_REASON, StringType())]), stream.name,
        PythonEvalType.SQL_SCALAR_ARROW_UDF, False,
    )  # fmt: skip
    made = records.select("*", function(F.col(VALUE)).alias(_MADE))
    columns = [F.col(_MADE).getField(f"c{n}").alias(field.name) for n, field in enumerate(declared.fields)]
    return Parsed(made, columns, F.coalesce(empty, F.col(_MADE).getField(_REASON)))


class _Decoding:
    """The function that Spark's workers run to decode values."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def __call__(self, values: pa.Array) -> pa.StructArray:
        with worker_task():
            return self._messages(values)


def _decoded(schema: ProtoSchema, message: str, values: pa.BinaryArray, to: pa.StructType) -> Decoded:
    """Decode messages by `formats.protobuf`, which is imported now because its libraries are optional."""
    found: Decoded = library(*_LIBRARY)(schema, message, values, to)
    return found


def _bytes_of(values: pa.BinaryArray) -> tuple[npt.NDArray[np.uint8], Ints, Ints]:
    """The bytes of all values, and where each value begins and ends in them; a NULL has none."""
    offsets, buffer = values.buffers()[1:]
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return np.frombuffer(b"" if buffer is None else buffer, np.uint8), ends[:-1], ends[1:]


def _cut(data: npt.NDArray[np.uint8], first: Ints, stop: Ints) -> pa.BinaryArray:
    """The bytes of each range."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(stop - first)])
    chosen = data[np.repeat(first - offsets[:-1], stop - first) + np.arange(offsets[-1])]
    return pa.Array.from_buffers(
        pa.binary(), len(first), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(chosen)]
    )


def _paths(data: npt.NDArray[np.uint8], at: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """The message of its schema that each value is, as a row of indices ending with -1, and the start of the message.

    The start is -1 if the indices cannot be read. A single zero stands for the first message.
    """
    count, position, bad = _zigzags(data, at, stop)
    bad |= (count < 0) | (count > _DEEPEST)
    deepest = int(count[~bad].max(initial=1))
    path = np.full((len(at), max(deepest, 1)), -1, np.int64)
    path[count == 0, 0] = 0
    for depth in range(deepest):
        more = np.flatnonzero(~bad & (count > depth))
        path[more, depth], position[more], wrong = _zigzags(data, position[more], stop[more])
        bad[more[wrong]] = True
    path[bad] = -1
    return path, np.where(bad, -1, position)


def _zigzags(data: npt.NDArray[np.uint8], at: Ints, stop: Ints) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    raw, here, bad = _varints(data, at, stop)
    return (raw >> 1) ^ -(raw & 1), here, bad


def _varints(data: npt.NDArray[np.uint8], at: Ints, stop: Ints) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Decodes the varint at each position: its value, its end, and whether it is truncated or too long.

    `stop`: the end of the available bytes of each.
    """
    value, position = np.zeros(len(at), np.uint64), at.copy()
    waiting = np.arange(len(at))
    bad = np.zeros(len(at), bool)
    for shift in range(0, 70, 7):
        over = position[waiting] >= stop[waiting]
        bad[waiting[over]] = True
        waiting = waiting[~over]
        if not waiting.size:
            break
        byte = data[position[waiting]]
        value[waiting] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
        position[waiting] += 1
        waiting = waiting[byte > 127]
    bad[waiting] = True
    return value.view(np.int64), position, bad


def _read(number: int, schema: Registered | None) -> ProtoSchema | str:
    """A schema of the registry, or the reason why it is not valid."""
    if schema is None:
        return _schema_error(number, NOT_THERE)
    if schema.kind != "PROTOBUF":
        return _schema_error(number, f"is one of {schema.kind}, not of Protobuf")
    try:
        return proto_schema(schema.text, dict(schema.imports).get)
    except ProtoError as error:
        return _schema_error(number, error)


def _schema_error(number: int | None, what: object) -> str:
    return f"the schema {'of the file' if number is None else number} {what}"


def _of_file(stream: Stream, options: Mapping[str, str], to: pa.StructType) -> ProtoSchema:
    place = local_path(options["schema"], f"The schema of {stream.name}")
    try:
        schema = proto_schema(schema_text(stream, str(place)), partial(imported_text, place.parent))
        _decoded(schema, options["message"], _NO_VALUES, to)
    except (ProtoError, OSError, UnicodeDecodeError) as error:
        raise SetupError(f"The schema {place} of {stream.name} {error}.", "Mend the file or the columns.") from error
    return schema


def imported_text(folder: Path, name: str) -> str | None:
    """The text of a schema that another schema imports; None if there is no such file below the folder of that one."""
    path = (folder / name).resolve()
    return path.read_text() if path.is_relative_to(folder.resolve()) and path.is_file() else None
