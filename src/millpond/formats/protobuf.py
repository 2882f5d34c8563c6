"""Decodes Protocol Buffers messages into Arrow columns, a batch at a time.

All messages of a batch are read in parallel: the first field of each message, then the second, and so on. So Python's
loops run over the fields of a message, not over messages. The values are then sorted by field number, and each column
is built from its part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.formats.protobuf_schema import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    WIRES,
    ProtoError,
    ProtoField,
    ProtoSchema,
)

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

MAX_FIELDS = 10_000
"""The most field values in one message (a packed list is one value); a message with more counts as broken."""

TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPER = "google.protobuf."
_MICROS = 1_000_000
_DTYPES = {
    "fixed64": "<i8", "sfixed64": "<i8", "double": "<f8", "fixed32": "<u4", "sfixed32": "<i4", "float": "<f4",
}  # fmt: skip
_UNSIGNED = ("uint64", "fixed64")
_WIRE = np.isin(np.arange(8), (VARINT, FIXED64, BYTES, FIXED32))


class Decoded(NamedTuple):
    """A struct per message, which messages are broken, and which have a misfit: a value that is NULL in its column."""

    rows: pa.StructArray
    broken: Mask
    misfit: Mask


class _Parts(NamedTuple):
    """Values of fields: the message (`owner`), the wire type, and the range of bytes, or the number as `first`."""

    owner: Ints
    wire: Ints
    first: Ints
    stop: Ints


class _Found(NamedTuple):
    """All values of some messages, sorted by field number, then by order; `place`: the position in the order of all."""

    number: Ints
    place: Ints
    parts: _Parts

    def of(self, number: int) -> slice:
        """The positions of the values of field `number`."""
        first, stop = np.searchsorted(self.number, [number, number + 1])
        return slice(first, stop)


class _Spans(NamedTuple):
    """Ranges of bytes that contain messages; consecutive ranges of one message (`owner`) are read as one message."""

    owner: Ints
    first: Ints
    stop: Ints


def decode_messages(
    schema: ProtoSchema, message: str, data: bytes | npt.NDArray[np.uint8], first: Ints, stop: Ints, to: pa.StructType
) -> Decoded:
    """Decodes the messages at the ranges [`first`, `stop`) of `data` into structs, whose fields are found by name.

    Raises:
        ProtoError: a field's kind cannot become its column's type.
    """
    if message not in schema.messages:
        raise ProtoError(f"has no message {message}")
    plain = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    decoder = _Decoder(schema, plain, len(first))
    rows = decoder.struct(message, _Spans(np.arange(len(first)), first, stop), np.arange(len(first)), to)
    return Decoded(rows, decoder.broken, decoder.misfit)


class _Decoder:
    """Decodes one batch; `root` is the message of the batch to which each nested message belongs."""

    def __init__(self, schema: ProtoSchema, data: npt.NDArray[np.uint8], count: int) -> None:
        self._schema = schema
        self._data = data
        self.broken = np.zeros(count, bool)
        self.misfit = np.zeros(count, bool)

    def struct(self, message: str, spans: _Spans, root: Ints, to: pa.StructType) -> pa.StructArray:
        """A struct for each of the `len(root)` messages in `spans`."""
        fields = {field.name: field for field in self._schema.messages[message]}
        wanted = {part.name: _named(fields, part.name) for part in to}
        found = self._scan(spans, root, {field.number for field in fields.values()})
        columns = []
        for part in to:
            field = wanted[part.name]
            if field is None:
                columns.append(pa.nulls(len(root), part.type))
                continue
            mine = self._chosen(found, field, fields.values())
            columns.append(self._column(field, mine, root, part.type))
        return pa.StructArray.from_arrays(columns, names=[part.name for part in to])

    def _scan(self, spans: _Spans, root: Ints, numbers: set[int]) -> _Found:
        """Finds the values of the fields `numbers` in `spans`; marks messages that cannot be read as broken."""
        known = np.array([*sorted(numbers), 1 << 62])
        at, kept = spans.first.copy(), []
        for step in range(MAX_FIELDS + 1):
            alive = np.flatnonzero((at < spans.stop) & ~self.broken[root[spans.owner]])
            if not alive.size:
                break
            if step == MAX_FIELDS:
                self.broken[root[spans.owner[alive]]] = True
                break
            stop = spans.stop[alive]
            tag, here, bad = self._varints(at[alive], stop)
            number, wire = tag >> 3, tag & 7
            bad |= (number <= 0) | ~_WIRE[wire]
            value, after, wrong = self._varints(np.where((wire == VARINT) | (wire == BYTES), here, stop), stop)
            first = np.where(wire == VARINT, value, np.where(wire == BYTES, after, here))
            size = np.select([wire == FIXED64, wire == FIXED32, wire == BYTES], [8, 4, value], 0)
            bad |= wrong & ((wire == VARINT) | (wire == BYTES))
            begin = np.where((wire == VARINT) | (wire == BYTES), after, here)
            bad |= (size < 0) | (size > stop - begin)
            at[alive] = np.where(bad, stop, begin + size)
            self.broken[root[spans.owner[alive[bad]]]] = True
            good = ~bad & (known[np.searchsorted(known, number)] == number)
            kept.append((alive[good], number[good], wire[good], first[good], (begin + size)[good]))
        if not kept:
            nothing = np.zeros(0, np.int64)
            return _Found(nothing, nothing, _Parts(nothing, nothing, nothing, nothing))
        span, number, wire, first, stop = (np.concatenate(column) for column in zip(*kept, strict=True))
        order = np.lexsort((span, number))  # stable, so values keep the order of the spans and steps
        place = np.zeros(len(order), np.int64)
        place[np.argsort(span, kind="stable")] = np.arange(len(order))
        parts = _Parts(spans.owner[span], wire, first, stop)
        return _Found(number[order], place[order], _Parts(*(column[order] for column in parts)))

    def _chosen(self, found: _Found, field: ProtoField, fields: Iterable[ProtoField]) -> _Parts:
        """The values of one field, without those that are followed by another field of the same oneof."""
        mine = found.of(field.number)
        parts = _Parts(*(column[mine] for column in found.parts))
        if not field.choice:
            return parts
        last = np.full(int(found.parts.owner.max(initial=-1)) + 1, -1)
        for one in fields:
            if one.choice == field.choice:
                theirs = found.of(one.number)
                np.maximum.at(last, found.parts.owner[theirs], found.place[theirs])
        own = np.full(len(last), -1)
        np.maximum.at(own, parts.owner, found.place[mine])
        return _where(parts, (own == last)[parts.owner])

    def _column(self, field: ProtoField, parts: _Parts, root: Ints, to: pa.DataType) -> pa.Array:
        wire = WIRES[field.kind]
        if not field.many:
            return self._single(field, _where(parts, parts.wire == wire), root, to)
        entry = field.of if field.of in self._schema.entries else None
        if (entry is not None) != pa.types.is_map(to) or not (pa.types.is_map(to) or pa.types.is_list(to)):
            raise ProtoError(f"has the field {field.name} more than once, which does not become {to}")
        if wire != BYTES:
            parts = self._unpacked(parts, wire, root)
        parts = _where(parts, parts.wire == wire)
        within = root[parts.owner]
        if entry is not None:
            return self._map(entry, parts, root, to)
        elements = self._values(field, parts, np.arange(len(within)), within, to.value_type)
        return pa.ListArray.from_arrays(_offsets(parts.owner, len(root)), elements).cast(to)

    def _map(self, entry: str, parts: _Parts, root: Ints, to: pa.MapType) -> pa.Array:
        within = root[parts.owner]
        pair = pa.struct([pa.field("key", to.key_type), pa.field("value", to.item_type)])
        spans = _Spans(np.arange(len(within)), parts.first, parts.stop)
        pairs = self.struct(entry, spans, within, pair)
        keys, values = pairs.field(0), pairs.field(1)
        code = np.asarray(keys.dictionary_encode().indices.fill_null(-1))
        self.broken[within[code < 0]] = True
        # the last entry of a repeated key counts
        order = np.lexsort((code, parts.owner))
        last = np.zeros(len(code), bool)
        last[order[_last(parts.owner[order] * (len(code) + 1) + code[order])]] = True
        last &= code >= 0
        kept = pa.array(np.flatnonzero(last))
        offsets = _offsets(parts.owner[last], len(root))
        return pa.MapArray.from_arrays(offsets, keys.take(kept), values.take(kept)).cast(to)

    def _single(self, field: ProtoField, parts: _Parts, root: Ints, to: pa.DataType) -> pa.Array:
        """One value per message: the last one, or the default if there is none."""
        if field.kind == "message":
            owners, owner = np.unique(parts.owner, return_inverse=True)
            made = self._values(field, parts, owner, root[owners], to)
        else:
            parts = _where(parts, _last(parts.owner))
            owners = parts.owner
            made = self._values(field, parts, np.arange(len(owners)), root[owners], to)
        place = np.full(len(root), -1, np.int64)
        place[owners] = np.arange(len(owners))
        taken = made.take(pa.array(place, mask=place < 0))
        if not field.implicit or field.kind == "message":
            return taken
        return pc.if_else(pa.array(place < 0), self._zero(field, to), taken)

    def _zero(self, field: ProtoField, to: pa.DataType) -> pa.Scalar:
        """The default value of a field with implicit presence."""
        if field.kind == "enum" and pa.types.is_string(to):
            return pa.scalar(self._schema.enums[field.of].get(0, "0"))
        if pa.types.is_boolean(to):
            return pa.scalar(False)
        texts = pa.types.is_string(to) or pa.types.is_binary(to)
        return pa.scalar("" if pa.types.is_string(to) else b"" if texts else 0, to)

    def _values(self, field: ProtoField, parts: _Parts, owner: Ints, root: Ints, to: pa.DataType) -> pa.Array:
        """Converts the values of a field to a type: one per part, or for messages one per owner."""
        kind = field.kind
        if kind == "message":
            return self._message(field.of, _Spans(owner, parts.first, parts.stop), root, to)
        if kind in ("string", "bytes"):
            return self._texts(field, parts, root, to)
        if kind in _DTYPES:
            bits = self._gathered(parts.first, int(_DTYPES[kind][-1])).view(_DTYPES[kind]).ravel()
        else:
            bits = _of_varint(kind, parts.first)
        if kind == "bool" and pa.types.is_boolean(to):
            return pa.array(bits.astype(bool))
        if kind == "enum" and pa.types.is_string(to):
            return self._names(field.of, bits)
        if kind == "bool" or (not pa.types.is_integer(to) and not pa.types.is_floating(to)):
            raise ProtoError(f"has the field {field.name} of {kind}, which does not become {to}")
        if bits.dtype.kind == "f":
            if not pa.types.is_floating(to):
                raise ProtoError(f"has the field {field.name} of {kind}, which does not become {to}")
            return pa.array(bits).cast(to)
        whole = bits.astype(np.int64)
        fits = (whole >= 0) if kind in _UNSIGNED else np.ones(len(whole), bool)
        if pa.types.is_integer(to):
            limits = np.iinfo(to.to_pandas_dtype())
            fits &= (whole >= limits.min) & (whole <= limits.max)
        self.misfit[root[~fits]] = True
        return pa.array(np.where(fits, whole, 0), mask=~fits).cast(to, safe=False)

    def _message(self, of: str, spans: _Spans, root: Ints, to: pa.DataType) -> pa.Array:
        if of == TIMESTAMP and pa.types.is_timestamp(to):
            made = self.struct(of, spans, root, pa.struct([("seconds", pa.int64()), ("nanos", pa.int64())]))
            seconds, nanos = (np.asarray(made.field(place)) for place in (0, 1))
            fits = (abs(seconds) < 1 << 40) & (nanos >= 0) & (nanos < 1_000_000_000)
            self.misfit[root[~fits]] = True
            return pa.array(np.where(fits, seconds, 0) * _MICROS + nanos // 1000, mask=~fits).cast(to)
        if of.startswith(_WRAPPER) and of.endswith("Value") and not pa.types.is_struct(to):
            return self.struct(of, spans, root, pa.struct([("value", to)])).field(0)
        if not pa.types.is_struct(to):
            raise ProtoError(f"has the message {of}, which does not become {to}")
        return self.struct(of, spans, root, to)

    def _texts(self, field: ProtoField, parts: _Parts, root: Ints, to: pa.DataType) -> pa.Array:
        if not (pa.types.is_binary(to) or (field.kind == "string" and pa.types.is_string(to))):
            raise ProtoError(f"has the field {field.name} of {field.kind}, which does not become {to}")
        sizes = parts.stop - parts.first
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        if offsets[-1] >= 1 << 31:
            raise MemoryError("texts of one batch above 2 GiB")
        chars = self._data[np.repeat(parts.first - offsets[:-1], sizes) + np.arange(offsets[-1])]
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(chars)]
        made = pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
        if field.kind == "bytes":
            return made
        wrong = _not_utf8(made, 0)
        self.broken[root[wrong]] = True
        return pc.if_else(pa.array(np.isin(np.arange(len(made)), wrong)), b"", made).cast(to)

    def _names(self, enum: str, numbers: Ints) -> pa.Array:
        """The names of enum numbers; a number without a name becomes its digits, as in JSON."""
        known = self._schema.enums[enum]
        distinct, place = np.unique(numbers, return_inverse=True)
        names = pa.array([known.get(int(number), str(number)) for number in distinct], pa.string())
        return names.take(pa.array(place))

    def _unpacked(self, parts: _Parts, wire: int, root: Ints) -> _Parts:
        """Replaces packed lists by the values in them."""
        packed = np.flatnonzero(parts.wire == BYTES)
        if not packed.size:
            return parts
        first, stop = parts.first[packed], parts.stop[packed]
        if wire == VARINT:
            sizes = stop - first
            of = np.repeat(np.arange(len(packed)), sizes)
            at = np.repeat(first - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
            ends = self._data[at] < 128
            element, of_end = at[ends] + 1, of[ends]
            again = np.concatenate([np.zeros(1, bool), of_end[1:] == of_end[:-1]])[: len(of_end)]
            start = np.where(again, np.roll(element, 1), first[of_end])
            value, _, bad = self._varints(start, element)
            open_ended = (sizes > 0) & (self._data[np.maximum(stop - 1, 0)] >= 128)
            self.broken[root[parts.owner[packed[of_end[bad]]]]] = True
            self.broken[root[parts.owner[packed[open_ended]]]] = True
        else:
            width = 8 if wire == FIXED64 else 4
            counts = (stop - first) // width
            self.broken[root[parts.owner[packed[(stop - first) % width > 0]]]] = True
            of_end = np.repeat(np.arange(len(packed)), counts)
            value = np.repeat(first - (np.cumsum(counts) - counts) * width, counts) + np.arange(counts.sum()) * width
        alone = np.flatnonzero(parts.wire == wire)
        place = np.concatenate([alone, packed[of_end]])
        order = np.argsort(place, kind="stable")
        values = np.concatenate([parts.first[alone], value])[order]
        return _Parts(parts.owner[place[order]], np.full(len(values), wire), values, values)

    def _varints(self, at: Ints, stop: Ints) -> tuple[Ints, Ints, Mask]:
        return varints(self._data, at, stop)

    def _gathered(self, first: Ints, width: int) -> npt.NDArray[np.uint8]:
        if not len(self._data):
            return np.zeros((len(first), width), np.uint8)
        return np.ascontiguousarray(self._data[np.minimum(first[:, None] + np.arange(width), len(self._data) - 1)])


def varints(data: npt.NDArray[np.uint8], at: Ints, stop: Ints) -> tuple[Ints, Ints, Mask]:
    """Decodes the varint at each position: its value, its end, and whether it is truncated or too long.

    `stop`: the end of the available bytes of each.
    """
    value, here = np.zeros(len(at), np.uint64), at.copy()
    waiting = np.arange(len(at))
    bad = np.zeros(len(at), bool)
    for shift in range(0, 70, 7):
        over = here[waiting] >= stop[waiting]
        bad[waiting[over]] = True
        waiting = waiting[~over]
        if not waiting.size:
            break
        byte = data[here[waiting]]
        value[waiting] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
        here[waiting] += 1
        waiting = waiting[byte > 127]
    bad[waiting] = True
    return value.view(np.int64), here, bad


def _named(fields: dict[str, ProtoField], name: str) -> ProtoField | None:
    """The field of a name; without an exact match, the only field whose name differs in case, if there is just one."""
    near = [fields[name]] if name in fields else [one for own, one in fields.items() if own.lower() == name.lower()]
    return near[0] if len(near) == 1 else None


def _where(parts: _Parts, mask: Mask) -> _Parts:
    return parts if mask.all() else _Parts(*(column[mask] for column in parts))


def _last(owner: Ints) -> Mask:
    """Which entries are the last of a run of equal values."""
    return np.concatenate([owner[1:] != owner[:-1], np.ones(min(1, len(owner)), bool)])


def _offsets(owner: Ints, count: int) -> pa.Array:
    sizes = np.bincount(owner, minlength=count)
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())


def _of_varint(kind: str, value: Ints) -> Ints:
    if kind in ("sint32", "sint64"):
        bits = value.view(np.uint64)
        made: Ints = ((bits >> np.uint64(1)) ^ (np.uint64(0) - (bits & np.uint64(1)))).view(np.int64)
        return made
    if kind in ("int32", "enum"):
        return value.astype(np.int32).astype(np.int64)
    if kind == "uint32":
        return value & 0xFFFFFFFF
    return np.not_equal(value, 0).astype(np.int64) if kind == "bool" else value


def _not_utf8(texts: pa.BinaryArray, before: int) -> Ints:
    """The positions of values that are not UTF-8, found by bisection, as there are nearly always none."""
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        half = len(texts) // 2
        if not half:
            return np.array([before])
        return np.concatenate([_not_utf8(texts[:half], before), _not_utf8(texts[half:], before + half)])
    return np.zeros(0, np.int64)
