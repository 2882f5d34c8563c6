"""Records survive the round trip, and no damaged byte goes unnoticed; golden files pin the grammar."""

from __future__ import annotations

import hashlib
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.inputs.log_examples import (
    INLINE_DELTA,
    chain,
    change,
    claim,
    epoch,
    file_receipt,
    inline_receipt,
)
from kit.judges.stored_bytes import FORMATS, stored_bytes
from millpond.errors import CorruptError
from millpond.log.blocks import Packed, pack
from millpond.log.manifest import Manifest, SourceState, decode_manifest, encode_manifest, fold_all
from millpond.log.records import (
    ChangeRecord,
    ClaimRecord,
    Entry,
    EpochRecord,
    FileList,
    Receipt,
    Record,
    Section,
    SourceUpdate,
    decode,
    encode,
    without_body,
)

CLAIM = claim(spec='{"streams":["tx"]}')
CHANGE = change(1, "ab" * 32)
EMPTY_EPOCH = epoch(2, "cd" * 32, {}, {"tx": '{"0":0}'})
EPOCH = EpochRecord(
    n=3,
    writer="writer-b",
    prev="ef" * 32,
    at=1_700_000_000_123_456,
    spark_query="5b1f",
    batch=12,
    start={"tx": '{"tx":{"0":1}}', "tick": "11"},
    end={"tx": '{"tx":{"0":9}}', "tick": "12", "clicks": "4"},
    max_time={"tx": {"0": 1_600_000_000_000_000, "1": -1}, "clicks": {"*": 2**62}},
    watermark_floor={"tx": 5},
    drained=False,
    idle={"tx": ["1"]},
    plan=4,
    map=2,
    receipts=(inline_receipt(supersedes=("2/0/0",)), file_receipt(1, "data/3/1-writer-b-77")),
    counts={"q:spend": {"applied": 3, "late": 1}},
    retired=("1/0/0", "1/1/0"),
    quarantined={"q:broken": "raised: division by zero – ÷0"},
)
SOURCES = msgspec.structs.replace(
    EPOCH,
    sources={
        "ev": SourceUpdate(FileList("file:///in/", "a%20b.json\nc/d.json", [1_700_000_000_000, -1], [3, 4])),
        "tx": SourceUpdate(stored={"0": "\0v1\n{}", "gone": None}),
        "rows": SourceUpdate(),
    },
    receipts=(),
)
SEAL = hashlib.sha256(b"").digest()
GOLDEN_RECORDS: dict[str, tuple[Record, bytes]] = {
    "claim": (CLAIM, b""),
    "change": (CHANGE, b""),
    "epoch_empty": (EMPTY_EPOCH, b""),
    "epoch": (EPOCH, INLINE_DELTA),
}


def golden(name: str, data: bytes, version: str) -> bytes:
    return stored_bytes(FORMATS / version / f"{name}.bin", data)


def body_in(entry: Entry) -> bytes:
    assert entry.body is not None
    return bytes(entry.body.read(0, 1 << 40))


@pytest.mark.parametrize("name", sorted(GOLDEN_RECORDS))
def test_golden_record(name: str) -> None:
    # zstd's own bytes may change with pyarrow, so the values are compared
    record, body = GOLDEN_RECORDS[name]
    first = (FORMATS / "v1" / f"{name}.bin").read_bytes()  # nobody writes it any more
    for stored in (first, golden(name, encode(record, body), "v2")):
        found = decode(stored)
        assert (found.record, body_in(found)) == (record, body)
        assert found.digest == stored[-32:].hex()


def test_golden_record_of_an_epoch_with_sources() -> None:
    stored = golden("epoch-with-sources", encode(SOURCES), "v2")
    assert decode(stored).record == SOURCES
    manifest = fold_all(Manifest(), [decode(data) for data in chain(CLAIM, EMPTY_EPOCH, SOURCES)])
    kept = {"ev": SourceState(4), "tx": SourceState(stored={"0": "\0v1\n{}"}), "rows": SourceState()}
    assert manifest.sources == kept
    found = golden("manifest-with-sources", encode_manifest(manifest), "v2")
    assert decode_manifest(found).sources == kept and found == encode_manifest(manifest)
    later = msgspec.structs.replace(SOURCES, sources={"tx": SourceUpdate(stored={"0": None, "1": "x"})})
    manifest = fold_all(Manifest(), [decode(data) for data in chain(CLAIM, SOURCES, EMPTY_EPOCH, later)])
    assert manifest.known_sources == {**kept, "tx": SourceState(stored={"1": "x"})}


def test_golden_manifest() -> None:
    entries = [decode(data) for data in chain(CLAIM, CHANGE, EMPTY_EPOCH, EPOCH)]
    manifest = fold_all(Manifest(), entries)
    stored = golden("manifest", encode_manifest(manifest), "v2")  # the same but for the digest of its record
    assert decode_manifest(stored) == manifest
    assert encode_manifest(manifest) == stored
    first = decode_manifest((FORMATS / "v1" / "manifest.bin").read_bytes())
    assert first == msgspec.structs.replace(manifest, digest=first.digest)


def test_the_bytes_are_those_of_the_grammar() -> None:
    data = encode(EPOCH, INLINE_DELTA)
    stored, header_bytes, body_bytes = struct.unpack("<III", data[7:19])
    body = 51 + stored
    assert data[:7] == b"MPLOG2\n"
    assert bytes(Packed(memoryview(data)[51:body], header_bytes).read(0, 22)) == b'{"kind":"epoch","n":3,'
    assert bytes(Packed(memoryview(data)[body:-32], body_bytes).read(0, body_bytes)) == INLINE_DELTA
    assert data[19:51] == hashlib.sha256(data[body:-32]).digest()
    assert data[-32:] == hashlib.sha256(data[:body]).digest()
    assert decode(data).digest == data[-32:].hex()


def test_a_record_is_the_same_without_its_body() -> None:
    whole = encode(EPOCH, INLINE_DELTA)
    bare = without_body(whole)
    assert bare is not None and len(bare) < len(whole)
    before, after = decode(whole), decode(bare)
    assert (after.record, after.digest, after.body) == (before.record, before.digest, None)
    assert isinstance(after.record, EpochRecord)
    with pytest.raises(FileNotFoundError, match="record 3 was removed"):
        after.inline(after.record.receipts[0])
    for data in (bare, encode(CLAIM), (FORMATS / "v1" / "epoch.bin").read_bytes()):
        assert without_body(data) is None
    with pytest.raises(CorruptError):
        without_body(whole[:-40] + bytes(40))


def test_a_record_of_a_small_epoch_is_packed() -> None:
    body = INLINE_DELTA * 20
    receipts = tuple(Receipt(i, "writer-b-1", len(INLINE_DELTA), "ab" * 32, None, 0) for i in range(20))
    assert len(encode(epoch(2, "cd" * 32, {}, {}, receipts=receipts), body)) < 600


def test_an_inline_delta_is_cut_from_the_body_and_checked() -> None:
    found = decode(encode(EPOCH, INLINE_DELTA))
    assert isinstance(found.record, EpochRecord)
    inline, in_file = found.record.receipts
    assert bytes(found.inline(inline)) == INLINE_DELTA
    with pytest.raises(ValueError, match="data/3/1-writer-b-77"):
        found.inline(in_file)
    with pytest.raises(CorruptError, match="instance 0 in record 3"):
        decode(encode(EPOCH, INLINE_DELTA[::-1])).inline(inline)


@given(st.data(), st.booleans())
def test_every_changed_byte_is_detected(data: st.DataObject, bare: bool) -> None:
    whole = encode(EPOCH, INLINE_DELTA)
    whole = bytearray((without_body(whole) if bare else None) or whole)
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptError):
        decode(bytes(whole))


@given(st.integers(0, len(encode(EPOCH, INLINE_DELTA)) - 1))
def test_every_missing_tail_is_detected(size: int) -> None:
    with pytest.raises(CorruptError):
        decode(encode(EPOCH, INLINE_DELTA)[:size])


@pytest.mark.parametrize(
    "content",
    [
        b"MPLOG1\n" + struct.pack("<I", 99) + b"{}",
        b"MPLOG1\n" + struct.pack("<I", 2) + b"{}",
        b"MPLOG1\n\0",
        b"MPLOG1\n" + struct.pack("<I", 14) + b'{"kind":"huh"}',
        b"MPLOG2\n" + struct.pack("<III", 99, 2, 0) + SEAL + pack(b"{}"),
        b"MPLOG2\n" + struct.pack("<III", len(pack(b"{}")), 3, 0) + SEAL + pack(b"{}"),
        b"MPLOG2\n" + struct.pack("<III", 2, 2, 0) + SEAL + b"{}",
        b"MPLOG2\n\0",
    ],
)
def test_a_malformed_record_with_a_good_checksum_is_corrupt(content: bytes) -> None:
    with pytest.raises(CorruptError, match="malformed"):
        decode(content + hashlib.sha256(content).digest())


def test_another_version_of_the_grammar_is_recognized() -> None:
    content = b"MPLOG3\n" + encode(CLAIM)[7:-32]
    with pytest.raises(CorruptError, match="another version"):
        decode(content + hashlib.sha256(content).digest())


def test_equal_records_have_equal_bytes_in_whatever_order_their_maps_were_built() -> None:
    one = epoch(0, "", {}, {"a": "1", "b": "2"})
    other = epoch(0, "", {}, {"b": "2", "a": "1"})
    assert encode(one) == encode(other)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers(-(2**63), 2**63 - 1)
sections = st.builds(
    Section,
    kind=st.sampled_from(["segment", "keys", "rows", "dead"]),
    group=texts,
    offset=numbers,
    size=numbers,
    rows=numbers,
    info=st.dictionaries(texts, numbers | texts | st.lists(numbers, max_size=3), max_size=3),
    supersedes=st.lists(texts, max_size=2).map(tuple),
)
receipts = st.builds(
    Receipt,
    instance=numbers,
    attempt=texts,
    size=numbers,
    digest=texts,
    file=st.none() | texts,
    at=numbers,
    sections=st.lists(sections, max_size=2).map(tuple),
    counts=st.dictionaries(texts, numbers, max_size=2),
)
head = {"n": numbers, "writer": texts, "prev": texts, "at": numbers}
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(ClaimRecord, **head, host=texts, pid=numbers, version=texts, spec=texts),
    st.builds(ChangeRecord, **head, change=texts),
    st.builds(
        EpochRecord,
        **head,
        spark_query=texts,
        batch=numbers,
        start=st.dictionaries(texts, texts, max_size=2),
        end=st.dictionaries(texts, texts, max_size=2),
        max_time=st.dictionaries(texts, st.dictionaries(texts, numbers, max_size=2), max_size=2),
        drained=st.booleans(),
        receipts=st.lists(receipts, max_size=2).map(tuple),
        quarantined=st.dictionaries(texts, texts, max_size=2),
    ),
)


@given(records, st.binary(max_size=64))
def test_the_round_trip_is_the_identity(record: Record, body: bytes) -> None:
    found = decode(encode(record, body))
    assert (found.record, body_in(found), found.n) == (record, body, record.n)
