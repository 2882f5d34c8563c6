"""Protocol Buffers decoded by batch and message by message are equal, for complete and damaged messages."""

from __future__ import annotations

import math
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.inputs.examples import examples
from kit.naive.protobuf import END_GROUP, GROUP, Broken, Loose, Naive, tagged, varint
from millpond.formats.protobuf import LARGE, Decoded, decode_messages
from millpond.formats.protobuf_schema import BYTES, FIXED32, FIXED64, VARINT, ProtoError, proto_schema

TEXT = """
    syntax = "proto3";  // one of each
    package shop.v1;
    import "google/protobuf/timestamp.proto";
    import "google/protobuf/wrappers.proto";
    option java_package = "x";
    enum Kind { NONE = 0; OPEN = 1; SHUT = 2; reserved 5 to 7; }
    message Other { string only = 1; }
    message Order {
      reserved 100, 200 to 210;
      message Line { string sku = 1; sint32 count = 2; repeated int32 sizes = 3; Line inner = 4; }
      int64 id = 1 [deprecated = true];
      optional int32 maybe = 2;
      string name = 3;
      Kind kind = 4;
      repeated Line lines = 5;
      map<string, int64> tags = 6;
      oneof choice { bool yes = 7; uint64 big = 8; Line line = 9; }
      google.protobuf.Timestamp at = 10;
      repeated double prices = 11 [packed = true];
      repeated sint64 deltas = 12;
      fixed32 hash = 13;
      bytes raw = 14;
      google.protobuf.Int32Value wrapped = 15;
      Line first = 16;
      map<int32, Line> parts = 17;
      float ratio = 18;
      sfixed64 far = 19;
      uint32 small = 20;
    }
    service Shop { rpc Get (Order) returns (Other) { option (x) = { get: "/" }; } }
"""
LINE = pa.struct([("sku", pa.string()), ("count", pa.int32()), ("sizes", pa.list_(pa.int32()))])
TO = pa.struct(
    [
        ("id", pa.int64()), ("maybe", pa.int8()), ("NAME", pa.string()), ("kind", pa.string()),
        ("lines", pa.list_(LINE)), ("tags", pa.map_(pa.string(), pa.int64())), ("yes", pa.bool_()), ("big", pa.int64()),
        ("line", LINE),
        ("at", pa.timestamp("us", "UTC")), ("prices", pa.list_(pa.float64())), ("deltas", pa.list_(pa.int64())),
        ("hash", pa.int64()), ("raw", pa.binary()), ("wrapped", pa.int32()), ("first", LINE), ("none", pa.string()),
        ("parts", pa.map_(pa.int32(), LINE)), ("ratio", pa.float32()), ("far", pa.float64()), ("small", pa.int16()),
    ]
)  # fmt: skip
SCHEMA = proto_schema(TEXT)
ORDER = "shop.v1.Order"

numbers = st.one_of(st.integers(0, 3), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-200, 70000)).map(varint)
doubles = st.floats(width=32).map(lambda value: struct.pack("<d", value))
longs, shorts = st.binary(min_size=8, max_size=8), st.binary(min_size=4, max_size=4)
texts = st.text("aé", max_size=3).map(str.encode)


def packed(one: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(one, max_size=3).map(b"".join)


def fields_of(kinds: dict[int, tuple[int, st.SearchStrategy[bytes]]]) -> st.SearchStrategy[bytes]:
    def field(n: int) -> st.SearchStrategy[bytes]:
        return kinds[n][1].map(lambda value: tagged(n % 1000, kinds[n][0], value))

    one = st.sampled_from(sorted(kinds)).flatmap(field)
    return st.lists(one, max_size=8).map(b"".join)


# numbers above 1000 say a field in another way
lines = fields_of({1: (BYTES, texts), 2: (VARINT, numbers), 3: (VARINT, numbers), 1003: (BYTES, packed(numbers))})
time = fields_of({1: (VARINT, numbers), 2: (VARINT, numbers)})
groups = st.lists(st.sampled_from([b"\x0b", b"\x0c", b"\x33", b"\x34", b"\x08\5"]), max_size=4).map(b"".join)
orders = fields_of(
    {
        1: (VARINT, numbers), 2: (VARINT, numbers), 3: (BYTES, texts), 4: (VARINT, numbers), 5: (BYTES, lines),
        6: (BYTES, fields_of({1: (BYTES, texts), 2: (VARINT, numbers)})), 7: (VARINT, numbers), 8: (VARINT, numbers),
        9: (BYTES, lines), 10: (BYTES, time), 11: (BYTES, packed(doubles)), 1011: (FIXED64, doubles),
        12: (BYTES, packed(numbers)), 1012: (VARINT, numbers), 13: (FIXED32, shorts),
        14: (BYTES, st.binary(max_size=3)), 15: (BYTES, fields_of({1: (VARINT, numbers)})), 16: (BYTES, lines),
        999: (BYTES, texts), 1001: (BYTES, texts),
        17: (BYTES, fields_of({1: (VARINT, numbers), 2: (BYTES, lines)})), 18: (FIXED32, shorts), 19: (FIXED64, longs),
        20: (VARINT, numbers),
    }
)  # fmt: skip
damaged = st.tuples(orders, st.integers(0, 60), st.integers(0, 255)).map(
    lambda of: of[0][: of[1]] + bytes([of[2]]) + of[0][of[1] + 1 :]
)


def decoded(messages: list[bytes], to: pa.StructType = TO, message: str = ORDER) -> Decoded:
    return decode_messages(SCHEMA, message, pa.array(messages, pa.binary()), to)


def plain(value: Any) -> Any:
    """As values that compare: NaN is itself, pairs of maps are sorted."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


FAR = tagged(10, BYTES, tagged(1, VARINT, b"\xff\xff\xff\xff\xff\x9f\x00"))
"""An order at a time of which Python has no word."""


CUT = tagged(16, BYTES, varint(999 << 3 | FIXED32) + b"ab") + tagged(16, BYTES, tagged(1, BYTES, b""))
"""A line in two parts, the first without its end; in a row they could be read."""


def misfit_in(naive: Naive, message: bytes, column: int) -> bool:
    """Whether the value of one column of a message does not fit."""
    naive.decode(ORDER, message, pa.struct([TO.field(column)]))
    return naive.misfit


@settings(max_examples=examples(25))
@given(st.lists(st.one_of(orders, orders, damaged, st.tuples(orders, groups, orders).map(b"".join)), max_size=6))
@example([FAR])
@example([CUT])
def test_a_batch_is_what_its_messages_are(messages: list[bytes]) -> None:
    found, naive = decoded(messages), Naive(SCHEMA)
    others = pa.RecordBatch.from_struct_array(found.rows).drop_columns(["at"])  # Python's years end at 9999
    rows = [dict(row) for row in others.to_pylist(maps_as_pydicts="strict")] if messages else []
    times = pa.array(found.rows.field(TO.get_field_index("at"))).cast(pa.int64()).to_pylist()
    for place, message in enumerate(messages):
        try:
            expected = naive.decode(ORDER, message, TO)
        except Broken:
            assert found.broken[place]
            continue
        except Loose:
            continue
        assert not found.broken[place]
        misfits = [column for column in range(TO.num_fields) if misfit_in(naive, message, column)]
        assert found.misfit[place] == next(iter(misfits), -1)
        assert plain(rows[place] | {"at": times[place]}) == plain(expected)


def test_bytes_of_the_specification() -> None:
    schema = proto_schema("message T { optional int32 a = 1; optional string b = 2; repeated int32 f = 6; }")
    to = pa.struct([("a", pa.int64()), ("b", pa.string()), ("f", pa.list_(pa.int64()))])
    messages = [bytes.fromhex(text) for text in ("089601", "120774657374696e67", "3206038e029ea705")]
    made = decode_messages(schema, "T", pa.array(messages, pa.binary()), to)
    assert made.rows.to_pylist() == [
        {"a": 150, "b": None, "f": []},
        {"a": None, "b": "testing", "f": []},
        {"a": None, "b": None, "f": [3, 270, 86942]},
    ]  # fmt: skip
    assert not made.broken.any()


def test_a_message_may_have_very_many_fields() -> None:
    made = decoded([tagged(12, VARINT, b"\2") * 100_001, tagged(12, BYTES, b"\2" * 10_001)])
    assert not made.broken.any()
    assert [len(row["deltas"]) for row in made.rows.to_pylist()] == [100_001, 10_001]


@pytest.mark.parametrize("field", [None, 9, 16], ids=["message", "choice", "nested"])
def test_a_message_that_nests_too_deep_is_broken(field: int | None) -> None:
    deep = b"\x0b" * 1_000_000  # a level of nested groups per byte
    made = decoded([deep if field is None else tagged(field, BYTES, deep), tagged(1, VARINT, b"\5")])
    assert made.broken.tolist() == [True, False]
    assert made.rows.to_pylist()[1]["id"] == 5


@pytest.mark.parametrize("size", [LARGE - 20, LARGE + 20])
def test_groups_are_skipped_in_messages_of_all_sizes(size: int) -> None:
    group = varint(50 << 3 | GROUP) + tagged(1, VARINT, b"\7") + varint(50 << 3 | END_GROUP)
    made = decoded([group + tagged(1, VARINT, b"\5") + tagged(14, BYTES, b"x" * size)])
    (row,) = made.rows.to_pylist()
    assert (row["id"], len(row["raw"])) == (5, size)


def test_messages_are_known_by_their_places() -> None:
    assert SCHEMA.places == {(0,): "shop.v1.Other", (1,): ORDER, (1, 0): f"{ORDER}.Line"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('syntax = "proto3"; message A { B b = 1; }', "has the type B, which is not there"),
        ('import "x.proto";', "imports x.proto, which is not there"),
        ("message A { int32 a 1; }", "has 1 where = should be"),
        ("message A { optional group G = 1 { } }", "has a group"),
        ("message A {", "ends too early"),
        ("massage A {}", "the word massage"),
    ],
)
def test_a_text_that_is_no_schema_is_reported(text: str, words: str) -> None:
    with pytest.raises(ProtoError, match=words):
        proto_schema(text)


def test_a_column_of_an_unsuitable_type_is_reported() -> None:
    wrong = {"id": pa.string(), "lines": LINE, "name": pa.int64(), "first": pa.int32(), "ratio": pa.int64()}
    for name, to in wrong.items():
        with pytest.raises(ProtoError, match="does not become"):
            decoded([b""], pa.struct([(name, to)]))
