"""Bytes written by version 1 of packets, segments, keys and specs, and 2 of segments, are read as they were meant.

`MILLPOND_GOLDEN=write` writes the files that do not exist yet: those of a new version, under a new folder. Arrow's own
framing and lz4 may change with pyarrow, so the values are compared, and of the bytes only those that are ours.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from kit.judges.stored_bytes import FORMATS, stored_bytes
from millpond.arrays import Ints
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink, Source
from millpond.model.expressions import Column, Foreign, call, literal
from millpond.model.join import Join, Side, Within
from millpond.model.query import Named, Query
from millpond.model.spec import PondSpec, from_json, to_json
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Session, Sliding
from millpond.placement.alignment import owners_in, with_owners
from millpond.runtime.packets.packet import GroupPart, Header, decode_packet, encode_packet
from millpond.runtime.packets.raw_columns import RawRows
from millpond.runtime.task.counters import Counts
from millpond.state.keys.filter_signatures import numbered
from millpond.state.keys.key_dictionary import BUCKET, KeyDictionary, with_buckets
from millpond.state.keys.keys import KeyColumns, canonical, hashes_of
from millpond.state.layout.cells import Cells, Piece, Signed, Slices, piece_of
from millpond.state.layout.event_log import Events, decode_events, encode_events
from millpond.state.layout.segments import decode_cells, encode_cells, from_bytes, to_bytes
from millpond.state.layout.session_atoms import FIRST, LAST, merge_atoms
from millpond.state.layout.tallies import as_stored


def golden(name: str, data: bytes, version: str = "v1") -> bytes:
    return stored_bytes(FORMATS / version / f"{name}.bin", data)


def listed(value: Any) -> Any:
    """Arrays as lists, to be compared."""
    if isinstance(value, np.ndarray | pa.Array):
        return value.tolist()
    if isinstance(value, dict):
        return {name: listed(part) for name, part in value.items()}
    return [listed(part) for part in value] if isinstance(value, tuple | list) else value


COUNT = np.array([1, 2, 300])
SLICES = Slices(np.array([-10_000_000, 0]), np.array([0, 10_000_000]), np.array([0, 1]))
COLUMNS = {
    "5e6b10ee6ee4:n": COUNT, "c26f7aea72e0:n": COUNT, "0d873a54eab9:w-1": np.array([-(2**51), 2**51 - 1, 0]),
    "0d873a54eab9:w0": np.array([0, 0, -1]), "0d873a54eab9:nan": np.array([0, 1, 0]),
    "ab21b95ae233:min": np.array([2**63 - 1, -(2**63), 0]),
}  # fmt: skip
CELLS = Cells(SLICES, np.array([0, 1, 3]), np.array([5, 0, 70_000]), COLUMNS)

NAMES = ["ä", None, "", "a long customer name"]
NUMBERS = [float("nan"), 0.0, None, -1.5]
KEYS = [pa.array(NAMES), canonical(pa.array(NUMBERS))]


def stored_segments(name: str, cells: Cells) -> list[Cells]:
    """What is read of the cells as each version wrote them; the newest writes the same bytes of ours again."""
    written = encode_cells(cells)
    first = FORMATS / "v1" / f"{name}.bin"  # nobody writes it any more
    newest = golden(name, to_bytes(written).to_pybytes(), "v2")
    batches = [from_bytes(pa.py_buffer(stored)) for stored in (first.read_bytes(), newest)]
    assert batches[1].schema == written.schema
    assert batches[1].schema.metadata == written.schema.metadata
    return [decode_cells(batch) for batch in batches]


def test_segment() -> None:
    assert [listed(cells) for cells in stored_segments("segment", CELLS)] == [listed(CELLS)] * 2


def test_segment_by_signature() -> None:
    table, ids = numbered(["0d873a54eab9", "5e6b10ee6ee4", "ab21b95ae233"], np.array([[1, 0, 1], [0, 1, 1]], bool))
    cells = CELLS._replace(slices=SLICES._replace(signed=Signed(ids, table)))
    for found in stored_segments("segment-by-signature", cells):
        assert listed(found) == listed(cells)
        assert found.slices.signed is not None
        assert found.slices.signed.table.passing(["ab21b95ae233", "5e6b10ee6ee4", "unknown"], ids).tolist() == [
            [True, False, False], [True, True, False],
        ]  # fmt: skip


def test_segment_by_rank_in_ladders() -> None:
    names = ["0d873a54eab9", "5e6b10ee6ee4", "ab21b95ae233", "c26f7aea72e0"]
    table, ids = numbered(names, np.array([[2, 0], [3, 1]], np.uint8), [3, 1])
    cells = CELLS._replace(slices=SLICES._replace(signed=Signed(ids, table)))
    for found in stored_segments("segment-by-rank", cells):
        assert listed(found) == listed(cells)
        assert found.slices.signed is not None
        assert found.slices.signed.table.passing(names, ids).tolist() == [
            [True, True, False, False], [True, True, True, True],
        ]  # fmt: skip


def test_segment_of_atoms() -> None:
    # two atoms of one slot, and one of another class
    slices = Slices(np.array([-10, 0]), np.array([41, 6]), np.array([0, 1]))
    columns = {FIRST: np.array([-10, 40, 0]), LAST: np.array([-3, 40, 5]), "5e6b10ee6ee4:n": np.array([2, 1, 3])}
    atoms = Cells(slices, np.array([0, 2, 3]), np.array([5, 5, 0]), columns)
    for found in stored_segments("segment-of-atoms", atoms):
        assert listed(found) == listed(atoms)
        # they are what merging them again gives
        assert listed(merge_atoms([piece_of(found)], 10).cells) == listed(atoms)


EVENTS = Events(
    np.array([5, 0, 70_000]), np.array([-10_000_000, 0, 2**50]), np.array([0, 1, 0]),
    {
        "v:5e6b10ee6ee4": pa.array([1.5, None, float("inf")]), "v:c26f7aea72e0": pa.array(["ä", None, ""]),
        "f:0d873a54eab9": pa.array([True, False, True]), "partition": pa.array(["p", "p", "q"]),
        "offset": pa.array([7, 8, 0]),
    },
)  # fmt: skip


def test_events() -> None:
    stored = golden("events", to_bytes(encode_events(EVENTS)).to_pybytes())
    batch = from_bytes(pa.py_buffer(stored))
    assert listed(decode_events(batch)) == listed(EVENTS)
    assert batch.schema == encode_events(EVENTS).schema


def test_a_packet_with_events() -> None:
    header = Header("tx", 3, 7, {"0": -5}, {})
    body = EVENTS._replace(slots=np.array([1, 0, 3]))
    stored = golden("packet-with-events", encode_packet(header, [GroupPart("g1", KEYS, 4, body)]))
    found, [part] = decode_packet(pa.py_buffer(stored))
    assert found == msgspec.structs.replace(header, groups=found.groups)
    assert (part.group, part.key_count, part.keys[0].to_pylist()) == ("g1", 4, NAMES)
    assert listed(part.body) == listed(body)


def test_keys_of_cells_and_events_travel_once() -> None:
    body = EVENTS._replace(slots=np.array([1, 0, 3]))
    piece = Piece(SLICES, np.array([0, 1, 1]), np.array([1, 0, 3]), COLUMNS)
    parts = [GroupPart("g1", KEYS, 4, body), *(GroupPart(group, list(KEYS), 4, piece) for group in ("g1", "g2"))]
    header = Header("tx", 3, 7, {}, {})
    found, read = decode_packet(pa.py_buffer(encode_packet(header, parts)))
    assert [(part.keys_size > 0, part.keys_before) for part in found.groups] == [
        (True, False), (False, True), (True, False),
    ]  # fmt: skip
    assert read[1].keys is read[0].keys
    assert [part.keys[0].to_pylist() for part in read] == [NAMES] * 3


def buckets(keys: KeyColumns, count: int) -> Ints:
    return np.arange(count)


@pytest.mark.parametrize("stored_buckets", [False, True])
def test_keys(stored_buckets: bool) -> None:
    """`stored_buckets`: with their buckets, which early sections did not contain."""
    keys = KeyDictionary([pa.string(), pa.float64()], [], None, buckets)
    keys.number(KEYS)
    made = keys.batch(0) if stored_buckets else keys.batch(0).drop_columns([BUCKET])
    stored = golden("keys-buckets" if stored_buckets else "keys", to_bytes(made).to_pybytes())
    batch = from_bytes(pa.py_buffer(stored))
    assert batch.schema == made.schema
    assert batch.column("k0").to_pylist() == NAMES
    assert batch.column("hash").to_pylist() == hashes_of(KEYS, 4).tolist()
    assert with_buckets(batch, 2, buckets).column("bucket").to_pylist() == [0, 1, 2, 3]
    again = KeyDictionary([pa.string(), pa.float64()], [batch], None, buckets)
    assert again.number(KEYS).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("stored_buckets", [False, True])
def test_keys_that_open_a_generation(stored_buckets: bool) -> None:
    keys = KeyDictionary([pa.string(), pa.float64()], [], None, buckets)
    keys.number(KEYS)
    kept = np.array([1, 3])
    made = keys.opening(kept) if stored_buckets else keys.opening(kept).drop_columns([BUCKET])
    stored = golden("keys-opening-buckets" if stored_buckets else "keys-opening", to_bytes(made).to_pybytes())
    batch = from_bytes(pa.py_buffer(stored))
    assert batch.schema == made.schema
    assert batch.column("was").to_pylist() == [1, 3]
    again = KeyDictionary([pa.string(), pa.float64()], [batch], None, buckets)
    assert again.number([column.take(pa.array(kept)) for column in KEYS]).tolist() == [0, 1]


def test_packet() -> None:
    piece = Piece(SLICES, np.array([0, 1, 1]), np.array([1, 0, 3]), COLUMNS)
    raw = RawRows(
        SLICES, np.array([0, 1, 1]), np.array([1, 0, 1]), [np.array([1.5, -0.0, 5e-324]), np.array([1, -300, 2**40])],
        [np.array([True, False, True])], [-1, 0, 0],
    )  # fmt: skip
    parts = [GroupPart("g1", KEYS, 4, piece), GroupPart("g2", [], 1, raw._replace(key_rows=np.zeros(3, np.int64)))]
    header = Header("tx", 3, 7, {"0": -5, "1": 2**62}, {"spend": Counts(read=4, late=1)})
    # today's header leaves out empty fields, and has new ones
    written = encode_packet(header, parts)
    for stored in (golden("packet", written), written):
        assert stored[:4] == b"MPK1"
        found, (cells, rows) = decode_packet(pa.py_buffer(stored))
        assert found == msgspec.structs.replace(header, groups=found.groups)
        assert (cells.group, cells.key_count, rows.group, rows.key_count) == ("g1", 4, "g2", 1)
        assert [key.type for key in cells.keys] == [pa.string(), pa.float64()]
        assert cells.keys[0].to_pylist() == NAMES
        assert isinstance(cells.body, Piece)
        assert isinstance(rows.body, RawRows)
        assert listed(cells.body) == listed(piece)
        assert listed(rows.body) == listed(parts[1].body)


def test_spec_of_sessions() -> None:
    ts = Column("ts", "timestamp")
    end = Foreign("abc", "ts + CAST('1 day' AS INTERVAL)", "timestamp", ("ts",))
    output = (Named("n", Column("agg:0", "bigint")),)
    fixed = Query("fixed", "tx", "ts", 0, Session(300_000_000), (), (Aggregate("count", None, None, "bigint"),), output)
    own = msgspec.structs.replace(fixed, name="own", window=Session(0, end), where=call("lt", (ts, end), "boolean"))
    spec = PondSpec((Stream("tx", (Field("ts", "timestamp"),)),), (fixed, own), 1)
    stored = golden("spec-of-sessions", to_json(spec).encode())
    assert from_json(stored.decode()) == spec
    assert to_json(spec).encode() == stored


def test_spec_of_joins() -> None:
    k, ts = Column("k", "string"), Column("ts", "timestamp")
    side = Side("tx", "ts", 5_000_000, (k,), (k, ts), call("isnotnull", (k,), "boolean"))
    output = (Named("k", Column("left:0", "string")), Named("w", Column("right:window", WINDOW)))
    windows = Join("windows", side, side, "full", Sliding(60_000_000, 20_000_000), output, text="SELECT …")
    bounds = Join(
        "bounds", side, msgspec.structs.replace(side, stream="pay", where=None), "inner", Within(-1, 2), output[:1],
        call("lt", (Column("left:1", "timestamp"), Column("right:1", "timestamp")), "boolean"), most_pairs=7,
    )  # fmt: skip
    columns = (Field("k", "string"), Field("ts", "timestamp"))
    spec = PondSpec.of((Stream("tx", columns), Stream("pay", columns)), (windows, bounds), 1)
    stored = golden("spec-of-joins", to_json(spec).encode())
    assert from_json(stored.decode()) == spec
    assert to_json(spec).encode() == stored


def test_events_of_a_join() -> None:
    columns = {"v:5e6b10ee6ee4": pa.array(["ä", None, ""]), "f:0d873a54eab9": pa.array([True, False, True])}
    hashes = np.array([-(2**63), 5, 2**62])
    events = Events(hashes, np.array([-1, 0, 2**40]), np.array([0, 1, 0]), columns)
    stored = golden("events-of-a-join", to_bytes(encode_events(events)).to_pybytes())
    assert listed(decode_events(from_bytes(pa.py_buffer(stored)))) == listed(events)


def test_spec() -> None:
    amount, k = Column("amount", "double"), Column("k", "string")
    large = call("gt", (amount, literal(0.1, "double")), "boolean")
    query = Query(
        name="spend", stream="tx", event_time="ts", delay_us=5_000_000, window=Sliding(60_000_000, 20_000_000, 1),
        keys=(k, Foreign("abc", "soundex(k)", "string", ("k",))),
        aggregates=(Aggregate("sum", amount, large, "double"), Aggregate("count", None, None, "bigint")),
        output=(Named("w", Column("window", WINDOW)), Named("total", Column("agg:0", "double"))),
        where=large, having=call("gt", (Column("agg:1", "bigint"), literal(3, "bigint")), "boolean"),
        sink=Sink("parquet", "/out", (("compression", "zstd"),)), serve=True, text="SELECT …",
    )  # fmt: skip
    stream = Stream("tx", (Field("k", "string"), Field("amount", "double"), Field("ts", "timestamp")),
                    Source("json", (("path", "/in"),)))  # fmt: skip
    spec = PondSpec((stream,), (query,), 3, 1024)
    stored = golden("spec", to_json(spec).encode())
    assert from_json(stored.decode()) == spec
    assert to_json(spec).encode() == stored


def test_spec_with_owners() -> None:
    spec = with_owners(PondSpec((), (), 3, 6), (0, 0, 1, 0, 2, 2))
    stored = golden("spec-with-owners", to_json(spec).encode())
    assert owners_in(from_json(stored.decode())) == (0, 0, 1, 0, 2, 2)
    assert to_json(spec).encode() == stored


def test_tallies() -> None:
    columns = {
        "v:5e6b10ee6ee4": pa.array([523_837, None, -1], pa.int32()),
        "v:c26f7aea72e0": pa.array([None, 7, None], pa.int32()),
        "f:5e6b10ee6ee4": pa.array([True, None, False]), "count": pa.array([1, 70_000, 2], pa.int64()),
    }  # fmt: skip
    tallies = Events(np.array([1, 0, 300]), np.array([-1, 0, 2**40]), np.array([0, 1, 0]), columns)
    stored = golden("tallies", to_bytes(encode_events(as_stored(tallies))).to_pybytes())
    found = decode_events(from_bytes(pa.py_buffer(stored)))
    assert listed(found) == listed(tallies)
    assert found.columns["count"].type == pa.int32()
