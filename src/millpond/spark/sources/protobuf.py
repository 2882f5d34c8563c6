"""Parses Kafka values in Protocol Buffers, with a stream's `.proto` file or a schema from a registry.

`formats.protobuf` decodes them in Spark's Python workers, before anything else is evaluated. Spark's own decoder is
not available for every version of Scala.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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
from millpond.formats.protobuf import Ints, decode_messages, varints
from millpond.formats.protobuf_schema import ProtoError, ProtoSchema, proto_schema
from millpond.formats.schema_registry import HEADER, Registered
from millpond.local_path import local_path
from millpond.model.stream import Stream
from millpond.spark.session.worker import with_code
from millpond.spark.sources.parsed_values import (
    NO_FIT,
    NO_NUMBER,
    NO_PARSE,
    NOT_THERE,
    VALUE,
    Parsed,
    is_strict,
    numbered,
    registered,
    schema_text,
)

_MADE = "__made"
_REASON = "r"
_DEEPEST = 16


class Messages(NamedTuple):
    """Decodes values into columns with the stream's own schema, or with schemas by number (a text says why one is
    invalid).

    `message` is the full name of the only expected message; None means the message that each value names. With
    `patient`, an unknown schema raises an error by which it is requested; otherwise a value that names one is
    malformed.
    """

    stream: str
    file: ProtoSchema | None
    schemas: dict[int, ProtoSchema | str]
    message: str | None
    strict: bool
    patient: bool
    to: pa.StructType

    def __call__(self, values: pa.Array) -> pa.StructArray:
        """The columns, and the reason why a value is malformed (NULL if it is not), as one struct.

        Raises:
            UnknownSchemaError: a value names an unknown schema.
        """
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        bytes_ = values.fill_null(b"").cast(pa.large_binary())
        ends = np.frombuffer(bytes_.buffers()[1], np.int64)[bytes_.offset : bytes_.offset + len(bytes_) + 1]
        buffer = bytes_.buffers()[2]
        data = np.frombuffer(b"" if buffer is None else buffer, np.uint8)
        first, stop, given = ends[:-1], ends[1:], np.asarray(values.is_valid())
        reasons = np.full(len(values), None, object)
        parts: list[pa.StructArray] = []
        places: list[Ints] = []
        for which, schema, name, mine, begin in self._sorted(data, first, stop, given, reasons):
            try:
                found = decode_messages(schema, name, data, begin, stop[mine], self.to)
            except ProtoError as error:
                reasons[mine] = _told(which, error)
                continue
            if self.strict:
                reasons[mine[found.misfit]] = NO_FIT
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
        self, data: npt.NDArray[np.uint8], first: Ints, stop: Ints, given: npt.NDArray[np.bool_],
        reasons: npt.NDArray[np.object_],
    ) -> list[tuple[int | None, ProtoSchema, str, Ints, Ints]]:  # fmt: skip
        """Group values by schema and message, with the start of each message; write the reasons for malformed values.
        """
        if self.file is not None:
            mine = np.flatnonzero(given)
            return [(None, self.file, self.message or "", mine, first[mine])]
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
        found = []
        for n, key in enumerate(keys.tolist()):
            which = key[0]
            if which not in self.schemas and self.patient:
                raise UnknownSchemaError.met(self.stream, which)
            own = (place.ravel() == n) & (begin >= 0)
            schema = self.schemas.get(which, _told(which, NOT_THERE))
            if isinstance(schema, str):
                reasons[mine[own]] = schema
                continue
            name = schema.places.get(tuple(index for index in key[1:] if index >= 0))
            if name is None:
                reasons[mine[own]] = _told(which, "has no such message")
            elif self.message not in (None, name):
                reasons[mine[own]] = f"the value is a message {name}"
            else:
                found.append((which, schema, name, mine[own], begin[own]))
        return found


def of_protobuf(
    records: DataFrame, stream: Stream, declared: StructType, options: Mapping[str, str], empty: Column
) -> Parsed:
    """Parse messages into the declared columns; `empty` is the reason why a record without a value is malformed.

    Raises:
        SetupError: a schema is not available.
        SourceError: the registry does not respond.
    """
    to = pa.struct(list(to_arrow_schema(declared, timezone="UTC")))
    known, patient = registered(options) if numbered(options) else ({}, False)
    schemas = {number: _read(number, schema) for number, schema in known.items()}
    file = None if numbered(options) else _of_file(stream, options, to)
    messages = Messages(stream.name, file, schemas, options.get("message"), is_strict(options), patient, to)
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
        with with_code():
            return self._messages(values)


def _paths(data: npt.NDArray[np.uint8], at: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """The message of its schema that each value is, as a row of indices ending with -1, and the start of the message.

    The start is -1 if the indices cannot be read. A single zero stands for the first message.
    """
    count, here, bad = _zigzags(data, at, stop)
    bad |= (count < 0) | (count > _DEEPEST)
    deepest = int(count[~bad].max(initial=1))
    path = np.full((len(at), max(deepest, 1)), -1, np.int64)
    path[count == 0, 0] = 0
    for depth in range(deepest):
        more = np.flatnonzero(~bad & (count > depth))
        path[more, depth], here[more], wrong = _zigzags(data, here[more], stop[more])
        bad[more[wrong]] = True
    path[bad] = -1
    return path, np.where(bad, -1, here)


def _zigzags(data: npt.NDArray[np.uint8], at: Ints, stop: Ints) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    raw, here, bad = varints(data, at, stop)
    return (raw >> 1) ^ -(raw & 1), here, bad


def _read(number: int, schema: Registered | None) -> ProtoSchema | str:
    """A schema of the registry, or the reason why it is not valid."""
    if schema is None:
        return _told(number, NOT_THERE)
    if schema.kind != "PROTOBUF":
        return _told(number, f"is one of {schema.kind}, not of Protobuf")
    try:
        return proto_schema(schema.text, dict(schema.imports).get)
    except ProtoError as error:
        return _told(number, error)


def _told(number: int | None, what: object) -> str:
    return f"the schema {'of the file' if number is None else number} {what}"


def _of_file(stream: Stream, options: Mapping[str, str], to: pa.StructType) -> ProtoSchema:
    place = local_path(options["schema"], f"The schema of {stream.name}")

    def imported(name: str) -> str | None:
        path = place.parent / name
        return path.read_text() if path.is_file() else None

    nothing = np.zeros(0, np.int64)
    try:
        schema = proto_schema(schema_text(stream, str(place)), imported)
        decode_messages(schema, options["message"], b"", nothing, nothing, to)
    except (ProtoError, OSError, UnicodeDecodeError) as error:
        raise SetupError(f"The schema {place} of {stream.name} {error}.", "Mend the file or the columns.") from error
    return schema
