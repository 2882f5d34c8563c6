"""Decodes Protocol Buffers messages into Arrow columns, a batch at a time.

The library `ptars` decodes the messages. It is given a schema of only those fields that the columns need, so that it
skips all others, and in which each type is finite. What a value becomes in its column is decided here.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from ptars import HandlerPool, PtarsConfig

from millpond.formats.protobuf_schema import ProtoError, ProtoField, ProtoSchema

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

LARGE = 16 << 10
"""Size in bytes above which a message is checked by the library `protobuf` first, which limits how deep it nests.

ptars needs about 75 bytes of stack per level, and a level may be one byte long."""

TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPER = "google.protobuf."
_PARTS_OF_TIME = pa.struct([("seconds", pa.int64()), ("nanos", pa.int64())])
_MICROS = 1_000_000
_KINDS = {
    kind: getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")
    for kind in (
        "int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "fixed32", "fixed64", "sfixed32", "sfixed64",
        "float", "double", "string", "bytes", "message",
    )
} | {"enum": FieldDescriptorProto.TYPE_INT32}  # fmt: skip
_CONFIG = PtarsConfig(list_value_name="item")


class Decoded(NamedTuple):
    """A struct per message, which messages are broken, and the position of the first column of a message with a misfit.

    A misfit is a value that is NULL because it does not fit its column; -1: the message has none.
    """

    rows: pa.StructArray
    broken: Mask
    misfit: Ints


def decode_messages(schema: ProtoSchema, message: str, values: pa.BinaryArray, to: pa.StructType) -> Decoded:
    """Decodes messages, none of them NULL, into structs, whose fields are found by name.

    Raises:
        ProtoError: a field's kind cannot become its column's type.
    """
    if message not in schema.messages:
        raise ProtoError(f"has no message {message}")
    file = FileDescriptorProto(name="columns.proto", syntax="proto2")
    name = _MessageTypes(schema, file).add(message, to)
    pool = DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName(name)
    handler = HandlerPool([descriptor.file], _CONFIG).get_for_message(descriptor)
    values, broken = _rewritten(descriptor, values, np.asarray(pc.binary_length(values)) > LARGE)
    try:
        batch = handler.array_to_record_batch(values)
    except ValueError:
        broken[_broken(handler, values)] = True
        values = pc.if_else(pa.array(broken), b"", values)
        batch = handler.array_to_record_batch(values)
    columns = _Columns(schema, len(values))
    rows = columns.rows(message, batch, to)
    if columns.twice.any():
        values, unreadable = _rewritten(descriptor, values, columns.twice)
        broken |= unreadable
        columns = _Columns(schema, len(values))
        rows = columns.rows(message, handler.array_to_record_batch(values), to)
    return Decoded(rows, broken, columns.misfit)


class _MessageTypes:
    """Adds to `file` a message type for each message that a column needs."""

    def __init__(self, schema: ProtoSchema, file: FileDescriptorProto) -> None:
        self._schema = schema
        self._file = file

    def add(self, message: str, to: pa.StructType) -> str:
        """Add the type of a message with the fields of the struct `to`, and return its name."""
        name = f"M{len(self._file.message_type)}"
        message_type = self._file.message_type.add(name=name)
        fields = self._schema.messages[message]
        column_types = {field.number: part.type for part in to if (field := named(fields, part.name)) is not None}
        choices = sorted({field.choice for field in fields if field.choice and field.number in column_types})
        for choice in choices:
            message_type.oneof_decl.add(name=f"c{choice}")
        for field in fields:
            if field.number in column_types or field.choice in choices:
                self._add_field(message_type, field, column_types.get(field.number))
                if field.choice:
                    message_type.field[-1].oneof_index = choices.index(field.choice)
        return name

    def _add_field(self, message_type: DescriptorProto, field: ProtoField, to: pa.DataType | None) -> None:
        """Add a field for a column of type `to`; None: the field only decides which one of a oneof is set."""
        label = FieldDescriptorProto.LABEL_REPEATED if field.many else FieldDescriptorProto.LABEL_OPTIONAL
        kind = _KINDS[field.kind]
        field_type = message_type.field.add(name=f"f{field.number}", number=field.number, label=label, type=kind)
        if to is None and field.kind in ("message", "string"):
            field_type.type = FieldDescriptorProto.TYPE_BYTES
        elif field.kind == "message":
            field_type.type_name = self.add(field.type_name, self._struct_of(field, to))

    def _struct_of(self, field: ProtoField, to: pa.DataType) -> pa.StructType:
        """The struct of a message, or of each of them if there are many.

        Raises:
            ProtoError: it does not fit the column's type.
        """
        if field.many:
            to = _element(self._schema, field, to)
        if pa.types.is_struct(to):
            return to
        if field.type_name == TIMESTAMP and pa.types.is_timestamp(to):
            return _PARTS_OF_TIME
        if field.type_name.startswith(_WRAPPER) and field.type_name.endswith("Value"):
            return pa.struct([("value", to)])
        raise ProtoError(f"has the message {field.type_name}, which does not become {to}")


class _Columns:
    """Converts what was decoded into columns; `root` is the message of the batch to which each value belongs.

    `misfit`: see `Decoded`. `twice`: which messages of the batch have several fields of one oneof, of which the last
    counts; ptars does not say which one that is.
    """

    def __init__(self, schema: ProtoSchema, count: int) -> None:
        self._schema = schema
        self.misfit = np.full(count, -1)
        self._column = 0
        self.twice = np.zeros(count, bool)

    def rows(self, message: str, batch: pa.RecordBatch, to: pa.StructType) -> pa.StructArray:
        """The structs of the messages of the batch."""
        return self._struct(message, batch.to_struct_array(), np.arange(batch.num_rows), to, outermost=True)

    def _struct(
        self, message: str, decoded: pa.StructArray, root: Ints, to: pa.StructType, *, outermost: bool = False
    ) -> pa.StructArray:
        """The structs of some messages, with a column for each field of `to`."""
        self._check_choices(message, decoded, root)
        columns = []
        for place, part in enumerate(to):
            self._column = place if outermost else self._column
            field = named(self._schema.messages[message], part.name)
            if field is None:
                columns.append(pa.nulls(len(decoded), part.type))
                continue
            column = decoded.field(f"f{field.number}")
            convert = self._many if field.many else self._single
            columns.append(convert(field, column, root, part.type))
        return pa.StructArray.from_arrays(columns, names=[part.name for part in to], mask=decoded.is_null())

    def _note_misfit(self, messages: Ints) -> None:
        """Note which messages have a misfit in the current column."""
        self.misfit[messages[self.misfit[messages] < 0]] = self._column

    def _check_choices(self, message: str, decoded: pa.StructArray, root: Ints) -> None:
        """Note which messages have several fields of one oneof."""
        present = {f"f{field.number}": field.choice for field in self._schema.messages[message] if field.choice}
        present_fields: dict[int, Mask] = {}
        for part in decoded.type:
            if (choice := present.get(part.name)) is not None:
                valid = np.asarray(decoded.field(part.name).is_valid())
                self.twice[root[present_fields.get(choice, False) & valid]] = True
                present_fields[choice] = present_fields.get(choice, False) | valid

    def _single(self, field: ProtoField, decoded: pa.Array, root: Ints, to: pa.DataType) -> pa.Array:
        if field.implicit and field.kind != "message":
            decoded = decoded.fill_null(_zero(decoded.type))
        return self._values(field, decoded, root, to)

    def _many(self, field: ProtoField, decoded: pa.ListArray, root: Ints, to: pa.DataType) -> pa.Array:
        element = _element(self._schema, field, to)
        sizes = np.asarray(decoded.value_lengths().fill_null(0))
        owner = np.repeat(np.arange(len(decoded)), sizes)
        elements = self._values(field, decoded.flatten(), root[owner], element)
        if not pa.types.is_map(to):
            return pa.ListArray.from_arrays(_offsets(owner, len(decoded)), elements).cast(to)
        keys, values = elements.field(0), elements.field(1)
        # the last entry of a repeated key counts
        code = np.asarray(keys.dictionary_encode().indices.fill_null(-1))
        last = np.zeros(len(code), bool)
        reverse = (owner * (len(code) + 1) + code)[::-1]
        last[len(code) - 1 - np.unique(reverse, return_index=True)[1]] = True
        entries = np.flatnonzero(last & (code >= 0))
        self._note_misfit(root[owner[code < 0]])
        pairs = (column.take(pa.array(entries)) for column in (keys, values))
        return pa.MapArray.from_arrays(_offsets(owner[entries], len(decoded)), *pairs).cast(to)

    def _values(self, field: ProtoField, decoded: pa.Array, root: Ints, to: pa.DataType) -> pa.Array:
        """Convert values of a field into a column's type; missing ones stay NULL.

        Raises:
            ProtoError: the field's kind cannot become this type.
        """
        kind = field.kind
        if kind == "message":
            return self._messages(field, decoded, root, to)
        if kind == "enum" and pa.types.is_string(to):
            return self._names(field.type_name, decoded)
        if pa.types.is_integer(decoded.type) and (pa.types.is_integer(to) or pa.types.is_floating(to)):
            return self._integers(decoded, root, to)
        same = (
            (kind == "bool" and pa.types.is_boolean(to))
            or (kind in ("float", "double") and pa.types.is_floating(to))
            or (kind == "string" and (pa.types.is_string(to) or pa.types.is_binary(to)))
            or (kind == "bytes" and pa.types.is_binary(to))
        )
        if not same:
            raise ProtoError(f"has the field {field.name} of {kind}, which does not become {to}")
        return decoded.cast(to, safe=False)

    def _integers(self, decoded: pa.Array, root: Ints, to: pa.DataType) -> pa.Array:
        """Whole numbers as numbers of another type; those that do not fit become NULL."""
        limits = np.iinfo(to.to_pandas_dtype() if pa.types.is_integer(to) else np.int64)
        numbers = np.asarray(decoded.fill_null(0))
        misfit = (numbers < limits.min) | (numbers > limits.max)
        self._note_misfit(root[misfit])
        return pc.if_else(pa.array(misfit), None, decoded).cast(to, safe=False)

    def _names(self, enum: str, numbers: pa.Array) -> pa.Array:
        """The names of enum numbers; a number without a name becomes its digits, as in JSON."""
        known = self._schema.enums[enum]
        coded = numbers.dictionary_encode()
        names = pa.array([known.get(number, str(number)) for number in coded.dictionary.to_pylist()], pa.string())
        return names.take(coded.indices)

    def _messages(self, field: ProtoField, decoded: pa.StructArray, root: Ints, to: pa.DataType) -> pa.Array:
        if pa.types.is_struct(to):
            return self._struct(field.type_name, decoded, root, to)
        if field.type_name != TIMESTAMP:
            return self._struct(field.type_name, decoded, root, pa.struct([("value", to)])).flatten()[0]
        parts = self._struct(TIMESTAMP, decoded, root, _PARTS_OF_TIME)
        seconds, nanos = (np.asarray(parts.field(place).fill_null(0)) for place in (0, 1))
        fits = (abs(seconds) < 1 << 40) & (nanos >= 0) & (nanos < 1_000_000_000)
        self._note_misfit(root[~fits])
        micros = np.where(fits, seconds, 0) * _MICROS + nanos // 1000
        return pa.array(micros, mask=~fits | np.asarray(decoded.is_null())).cast(to)


def _element(schema: ProtoSchema, field: ProtoField, to: pa.DataType) -> pa.DataType:
    """The type of each value of a repeated field, for a column of type `to`; for a map, that of its entries.

    Raises:
        ProtoError: the column is neither a list nor, for a map, a map.
    """
    entries = field.type_name in schema.entries
    if entries and pa.types.is_map(to):
        return pa.struct([("key", to.key_type), ("value", to.item_type)])
    if entries or not pa.types.is_list(to):
        raise ProtoError(f"has the field {field.name} more than once, which does not become {to}")
    return to.value_type


def _broken(handler: Any, values: pa.BinaryArray, before: int = 0) -> list[int]:
    """The positions of messages that cannot be read, of values with at least one, found by bisection.

    `before`: the position of the first value.
    """
    if len(values) == 1:
        return [before]
    half, found = len(values) // 2, list[int]()
    for part, first in ((values[:half], before), (values[half:], before + half)):
        try:
            handler.array_to_record_batch(part)
        except ValueError:
            found += _broken(handler, part, first)
    return found


def _rewritten(descriptor: Descriptor, values: pa.BinaryArray, chosen: Mask) -> tuple[pa.BinaryArray, Mask]:
    """The messages, the chosen ones as the library `protobuf` writes them, and which of these it cannot read.

    It reads one message at a time; those that it cannot read become empty.
    """
    broken = np.zeros(len(values), bool)
    if not chosen.any():
        return values, broken
    kind, written = GetMessageClass(descriptor), []
    for place in np.flatnonzero(chosen):
        try:
            written.append(kind.FromString(values[place].as_py()).SerializeToString())
        except DecodeError:
            broken[place] = True
            written.append(b"")
    return pc.replace_with_mask(values, pa.array(chosen), pa.array(written, values.type)), broken


def named(fields: tuple[ProtoField, ...], name: str) -> ProtoField | None:
    """The field of a name; without an exact match, the only field whose name differs in case, if there is just one."""
    near = [field for field in fields if field.name == name]
    near = near or [field for field in fields if field.name.lower() == name.lower()]
    return near[0] if len(near) == 1 else None


def _zero(kind: pa.DataType) -> pa.Scalar:
    """The default of a value."""
    if pa.types.is_string(kind):
        return pa.scalar("", kind)
    if pa.types.is_binary(kind):
        return pa.scalar(b"", kind)
    return pa.scalar(False if pa.types.is_boolean(kind) else 0, kind)


def _offsets(owner: Ints, count: int) -> pa.Array:
    sizes = np.bincount(owner, minlength=count)
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
