"""Values that name their schema and message: by which schema each is decoded, and why some are malformed."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from millpond.errors import UnknownSchemaError
from millpond.runtime.proto_schema import BYTES, VARINT, proto_schema
from millpond.spark.protobuf import Messages
from millpond.testing.naive_protobuf import said

SCHEMA = proto_schema("message A { message B { int32 x = 1; } int32 y = 1; } message C { string v = 1; int64 x = 2; }")
TO = pa.struct([("x", pa.int32()), ("v", pa.string())])


def named(schema: int, path: bytes, value: bytes) -> bytes:
    return b"\0" + struct.pack(">i", schema) + path + value


def messages(message: str | None = None, strict: bool = True, patient: bool = True) -> Messages:
    return Messages("tx", None, {1: SCHEMA, 2: "the schema 2 is bad"}, message, strict, patient, TO)


VALUES = [
    named(1, b"\4\0\0", said(1, VARINT, b"\5")),
    named(1, b"\2\2", said(1, BYTES, b"hi")),
    named(1, b"\0", said(1, VARINT, b"\5")),
    named(2, b"\0", b"x"),
    None,
    b"ab",
    named(1, b"", b""),
    named(1, b"\2\x08", b""),
    named(1, b"\xff", b""),
    named(1, b"\2\2", b"\xff"),
    named(1, b"\2\2", said(2, VARINT, b"\xff\xff\xff\xff\x7f")),
]


def test_each_value_is_decoded_by_its_own_schema_and_message() -> None:
    for values in (pa.array(VALUES), pa.array([b"before", *VALUES])[1:]):
        made = [tuple(row.values()) for row in messages()(values).to_pylist()]
        assert made == [
            (5, None, None),
            (None, "hi", None),
            (None, None, None),
            (None, None, "the schema 2 is bad"),
            (None, None, None),
            (None, None, "the value does not begin with the number of a schema"),
            (None, None, "the value does not begin with the number of a schema"),
            (None, None, "the schema 1 has no such message"),
            (None, None, "the value does not parse"),
            (None, None, "the value does not parse"),
            (None, None, "a value does not fit its column"),
        ]
    assert messages(strict=False)(pa.array(VALUES)).to_pylist()[-1] == {"c0": None, "c1": None, "r": None}


def test_one_message_may_be_the_only_one() -> None:
    made = messages("C")(pa.array(VALUES[:2])).to_pylist()
    assert [row["r"] for row in made] == ["the value is a message A.B", None]
    alone = Messages("tx", SCHEMA, {}, "C", True, False, TO)
    assert alone(pa.array([said(1, BYTES, b"hi"), b"\xff"])).to_pylist() == [
        {"c0": None, "c1": "hi", "r": None}, {"c0": None, "c1": None, "r": "the value does not parse"},
    ]  # fmt: skip


def test_a_schema_that_is_not_known_is_asked_for_until_patience_ends() -> None:
    unknown = pa.array([VALUES[0], named(7, b"\0", b"")])
    with pytest.raises(UnknownSchemaError) as told:
        messages()(unknown)
    assert told.value.schema_id == ("tx", 7)
    assert messages(patient=False)(unknown).to_pylist()[1]["r"] == "the schema 7 is not in the registry"
