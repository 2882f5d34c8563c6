"""The naive twin of `formats.protobuf`: decodes message by message and field by field, as the specification says."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from millpond.formats.protobuf import TIMESTAMP
from millpond.formats.protobuf_schema import BYTES, FIXED32, FIXED64, VARINT, WIRES, ProtoField, ProtoSchema

_FORMATS = {"fixed64": "<Q", "sfixed64": "<q", "double": "<d", "fixed32": "<I", "sfixed32": "<i", "float": "<f"}
_BITS = 64
GROUP, END_GROUP = 3, 4


class Broken(Exception):
    """The bytes are not a message."""


class Loose(Exception):
    """The bytes are not a message by the specification, but decoders may read them as one."""


def varint(value: int) -> bytes:
    """A number in wire format, negative ones in two's complement."""
    value &= (1 << _BITS) - 1
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def tagged(number: int, wire: int, value: bytes) -> bytes:
    """A field with its tag and its encoded `value`; for bytes, the length is added."""
    return varint(number << 3 | wire) + (varint(len(value)) if wire == BYTES else b"") + value


class Naive:
    """Decodes single messages of a schema; `misfit`: whether a value of the last message did not fit its type."""

    def __init__(self, schema: ProtoSchema) -> None:
        self._schema = schema
        self.misfit = False

    def decode(self, message: str, data: bytes, to: pa.StructType) -> dict[str, Any]:
        """The fields of a struct; raises `Broken` and `Loose`."""
        self.misfit = False
        return self._struct(message, data, to)

    def _struct(self, message: str, data: bytes, to: pa.StructType) -> dict[str, Any]:
        fields = self._schema.messages[message]
        found = list(_fields(data))
        by_number = {field.number: field for field in fields}
        last_other: dict[int, int] = {}
        for place, (number, wire, _) in enumerate(found):
            field = by_number.get(number)
            if field is not None and field.choice and wire == WIRES[field.kind]:
                others = [one.number for one in fields if one.choice == field.choice and one.number != number]
                last_other |= dict.fromkeys(others, place)
        row: dict[str, Any] = {}
        for part in to:
            field = next((one for one in fields if one.name.lower() == part.name.lower()), None)
            if field is None:
                row[part.name] = None
                continue
            after = last_other.get(field.number, -1)  # another field of the same oneof clears what was before it
            mine = [(place, wire, value) for place, (number, wire, value) in enumerate(found) if number == field.number]
            before = self.misfit
            self._field(field, [(wire, value) for _, wire, value in mine], part.type)  # each must be readable
            self.misfit = before
            kept = [(wire, value) for place, wire, value in mine if place > after]
            row[part.name] = self._field(field, kept, part.type)
        return row

    def _field(self, field: ProtoField, mine: list[tuple[int, Any]], to: pa.DataType) -> Any:
        own = WIRES[field.kind]
        if not field.many:
            values = [value for wire, value in mine if wire == own]
            if field.kind == "string":
                for value in values:
                    self._value(field, value, to)  # each must be a text, not only the last
            if field.kind == "message":
                for value in values:
                    list(_fields(value))  # each must be a message, not only their concatenation
                return self._value(field, b"".join(values), to) if values else None
            if values:
                return self._value(field, values[-1], to)
            return self._zero(field, to) if field.implicit else None
        values = []
        for wire, value in mine:
            if wire == own:
                values.append(value)
            elif wire == BYTES and own != BYTES:
                at = 0
                while at < len(value):
                    one, at = _read(own, value, at)
                    values.append(one)
        if field.type_name in self._schema.entries:
            pair = pa.struct([("key", to.key_type), ("value", to.item_type)])
            entries = [self._struct(field.type_name, value, pair) for value in values]
            return {entry["key"]: entry["value"] for entry in entries}
        return [self._value(field, value, to.value_type) for value in values]

    def _zero(self, field: ProtoField, to: pa.DataType) -> Any:
        return self._value(field, b"" if WIRES[field.kind] != VARINT else 0, to) if field.kind not in _FORMATS else 0

    def _value(self, field: ProtoField, value: Any, to: pa.DataType) -> Any:
        kind = field.kind
        if kind == "message":
            return self._message(field, value, to)
        if kind == "string":
            try:
                return value.decode() if pa.types.is_string(to) else value.decode().encode()
            except UnicodeDecodeError as error:
                raise Broken from error
        if kind == "bytes":
            return value
        if kind in _FORMATS:
            number = struct.unpack(_FORMATS[kind], value)[0]
        elif kind in ("sint32", "sint64"):
            value &= 0xFFFFFFFF if kind == "sint32" else (1 << _BITS) - 1
            number = (value >> 1) ^ -(value & 1)
        elif kind in ("int32", "enum"):
            number = _signed(value & 0xFFFFFFFF, 32)
        elif kind == "int64":
            number = _signed(value, 64)
        else:
            number = value & 0xFFFFFFFF if kind == "uint32" else value
        if kind == "bool":
            return value != 0
        if kind == "enum" and pa.types.is_string(to):
            return self._schema.enums[field.type_name].get(number, str(number))
        bits = to.bit_width if pa.types.is_integer(to) else 64
        if isinstance(number, int) and not -(1 << bits - 1) <= number < 1 << bits - 1:
            self.misfit = True
            return None
        return float(number) if pa.types.is_floating(to) else number

    def _message(self, field: ProtoField, value: bytes, to: pa.DataType) -> Any:
        if field.type_name == TIMESTAMP and pa.types.is_timestamp(to):
            time = self._struct(field.type_name, value, pa.struct([("seconds", pa.int64()), ("nanos", pa.int64())]))
            if not (abs(time["seconds"]) < 1 << 40 and 0 <= time["nanos"] < 1_000_000_000):
                self.misfit = True
                return None
            return time["seconds"] * 1_000_000 + time["nanos"] // 1000
        if field.type_name.startswith("google.protobuf.") and not pa.types.is_struct(to):
            return self._struct(field.type_name, value, pa.struct([("value", to)]))["value"]
        return self._struct(field.type_name, value, to)


def _fields(data: bytes) -> Any:
    """The fields of a message, without groups."""
    at, loose = 0, False
    groups: list[int] = []
    while at < len(data):
        tag, at = _read(VARINT, data, at)
        number, wire = tag >> 3, tag & 7
        if number & 0xFFFFFFFF == 0 or wire not in (VARINT, FIXED64, BYTES, FIXED32, GROUP, END_GROUP):
            raise Broken
        loose |= number >= 1 << 29
        if wire == GROUP:
            groups.append(number)
        elif wire == END_GROUP:
            if not groups:
                raise Broken
            loose |= groups.pop() != number
        else:
            value, at = _read(wire, data, at)
            if not groups:
                yield number, wire, value
    if groups:
        raise Broken
    if loose:
        raise Loose


def _read(wire: int, data: bytes, at: int) -> tuple[Any, int]:
    if wire in (FIXED64, FIXED32):
        stop = at + (8 if wire == FIXED64 else 4)
        if stop > len(data):
            raise Broken
        return data[at:stop], stop
    value = 0
    for place in range(10):
        if at + place >= len(data):
            raise Broken
        value |= (data[at + place] & 127) << 7 * place
        if data[at + place] < 128:
            break
    else:
        raise Broken
    at, value = at + place + 1, value & (1 << _BITS) - 1
    if wire == VARINT:
        return value, at
    if at + value > len(data):
        raise Broken
    return data[at : at + value], at + value


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value
