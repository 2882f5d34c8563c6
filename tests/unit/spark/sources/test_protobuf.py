"""Values that name their schema and message: the schema that decodes each, and why some are malformed."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from kit.naive.protobuf import tagged
from millpond.errors import SetupError, UnknownSchemaError
from millpond.formats.protobuf_schema import BYTES, VARINT, proto_schema
from millpond.spark.sources.protobuf import Messages, imported_text
from millpond.version import install

SCHEMA = proto_schema("message A { message B { int32 x = 1; } int32 y = 1; } message C { string v = 1; int64 x = 2; }")
TO = pa.struct([("x", pa.int32()), ("v", pa.string())])


def named(schema: int, path: bytes, value: bytes) -> bytes:
    return b"\0" + struct.pack(">i", schema) + path + value


def messages(message: str | None = None, strict: bool = True, fetches_unknown: bool = True) -> Messages:
    misfits = ("x is not an INT", "v is not a STRING") if strict else ()
    return Messages("tx", None, {1: SCHEMA, 2: "the schema 2 is bad"}, message, misfits, fetches_unknown, TO)


VALUES = [
    named(1, b"\4\0\0", tagged(1, VARINT, b"\5")),
    named(1, b"\2\2", tagged(1, BYTES, b"hi")),
    named(1, b"\0", tagged(1, VARINT, b"\5")),
    named(2, b"\0", b"x"),
    None,
    b"ab",
    named(1, b"", b""),
    named(1, b"\2\x08", b""),
    named(1, b"\xff", b""),
    named(1, b"\2\2", b"\xff"),
    named(1, b"\2\2", tagged(2, VARINT, b"\xff\xff\xff\xff\x7f")),
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
            (None, None, "x is not an INT"),
        ]
    assert messages(strict=False)(pa.array(VALUES)).to_pylist()[-1] == {"c0": None, "c1": None, "r": None}


def test_one_message_may_be_the_only_one() -> None:
    made = messages("C")(pa.array(VALUES[:2])).to_pylist()
    assert [row["r"] for row in made] == ["the value is a message A.B", None]
    alone = Messages("tx", SCHEMA, {}, "C", (), False, TO)
    assert alone(pa.array([tagged(1, BYTES, b"hi"), b"\xff"])).to_pylist() == [
        {"c0": None, "c1": "hi", "r": None}, {"c0": None, "c1": None, "r": "the value does not parse"},
    ]  # fmt: skip


def test_an_unknown_schema_is_requested_again_until_a_timeout() -> None:
    unknown = pa.array([VALUES[0], named(7, b"\0", b"")])
    with pytest.raises(UnknownSchemaError) as error:
        messages()(unknown)
    assert error.value.schema_id == ("tx", 7)
    assert messages(fetches_unknown=False)(unknown).to_pylist()[1]["r"] == "the schema 7 is not in the registry"


SCALARS = ["double", "float", *(sign + kind for kind in ("int32", "int64") for sign in ("", "u", "s"))]
SCALARS += ["fixed32", "fixed64", "sfixed32", "sfixed64"]


@pytest.mark.parametrize(
    ("kind", "to", "value"),
    [
        *((kind, to, 0) for kind in SCALARS for to in (pa.float64(), pa.float32())),
        *((kind, to, 0) for kind in SCALARS[2:] for to in (pa.int64(), pa.int32(), pa.int16(), pa.int8())),
        ("bool", pa.bool_(), False),
        ("string", pa.string(), ""), ("string", pa.binary(), b""), ("bytes", pa.binary(), b""),
        ("E", pa.string(), "NONE"), ("E", pa.int32(), 0),
    ],
)  # fmt: skip
def test_a_value_that_is_not_said_is_its_default(kind: str, to: pa.DataType, value: object) -> None:
    schema = proto_schema(
        f'syntax = "proto3"; enum E {{ NONE = 0; }} message In {{ {kind} v = 1; }}'
        f"message Ev {{ {kind} v = 1; optional {kind} o = 2; In i = 3; }}"
    )
    fields = pa.struct([("v", to), ("o", to), ("i", pa.struct([("v", to)]))])
    read = Messages("ev", schema, {}, "Ev", (), False, fields)
    inside = tagged(3, BYTES, b"")
    found = read(pa.array([b"", inside], pa.binary())).to_pylist()
    names = [*found[0]]
    assert [found[0][name] for name in names[:3]] == [value, None, None]
    assert found[1][names[2]] == {"v": value}
    assert read(pa.array([], pa.binary())).to_pylist() == []


def test_a_bool_is_read_whether_it_is_said_or_not() -> None:
    schema = proto_schema('syntax = "proto3"; message Ev { int64 id = 1; bool ok = 2; map<string, bool> m = 3; }')
    fields = pa.struct([("id", pa.int64()), ("ok", pa.bool_()), ("m", pa.map_(pa.string(), pa.bool_()))])
    read = Messages("ev", schema, {}, "Ev", (), False, fields)
    entry = tagged(3, BYTES, tagged(1, BYTES, b"k"))
    found = read(pa.array([b"\x08\x07\x10\x01", b"\x08\x08", entry], pa.binary())).to_pylist()
    assert [[*row.values()][:3] for row in found] == [[7, True, []], [8, False, []], [0, False, [("k", False)]]]


def test_a_missing_library_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "millpond.formats.protobuf", raising=False)
    monkeypatch.setitem(sys.modules, "ptars", None)
    with pytest.raises(SetupError, match="The library for protobuf is missing") as caught:
        messages()(pa.array(VALUES))
    assert caught.value.cure == f"Run `{install('protobuf')}`."


def test_an_import_reads_only_files_below_the_folder_of_the_schema(tmp_path: Path) -> None:
    (tmp_path / "schemas" / "more").mkdir(parents=True)
    for place in ("outside.proto", "schemas/a.proto", "schemas/more/b.proto"):
        (tmp_path / place).write_text(place)
    outside = "../outside.proto", str(tmp_path / "outside.proto"), "no.proto"
    names = "a.proto", "more/b.proto", "more/../a.proto", *outside
    found = [imported_text(tmp_path / "schemas", name) for name in names]
    assert found == ["schemas/a.proto", "schemas/more/b.proto", "schemas/a.proto", None, None, None]
