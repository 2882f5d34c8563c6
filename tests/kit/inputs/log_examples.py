"""Small records and chains of records, for tests of the log and of its followers."""

from __future__ import annotations

import hashlib

from msgspec.structs import replace

from millpond.log.records import (
    ChangeRecord,
    ClaimRecord,
    Entry,
    EpochRecord,
    Offsets,
    Receipt,
    Record,
    Section,
    decode,
    encode,
)

INLINE_DELTA = b"segment bytes|rows"


def claim(n: int = 0, prev: str = "", writer: str = "writer-a", spec: str = "{}") -> ClaimRecord:
    """Return a claim."""
    at = 1_700_000_000_000_000
    return ClaimRecord(n=n, writer=writer, prev=prev, at=at, host="h", pid=7, version="0.1", spec=spec)


def change(n: int, prev: str, writer: str = "writer-a") -> ChangeRecord:
    """Return a change."""
    return ChangeRecord(n=n, writer=writer, prev=prev, at=1_700_000_000_000_001, change='{"drop":"spend"}')


def epoch(
    n: int,
    prev: str,
    start: Offsets,
    end: Offsets,
    writer: str = "writer-a",
    batch: int = 0,
    receipts: tuple[Receipt, ...] = (),
    retired: tuple[str, ...] = (),
    drained: bool = False,
) -> EpochRecord:
    """Return an epoch of the stream offsets `start` to `end`."""
    return EpochRecord(
        n=n,
        writer=writer,
        prev=prev,
        at=1_700_000_000_000_002,
        spark_query="query-1",
        batch=batch,
        start=start,
        end=end,
        receipts=receipts,
        retired=retired,
        drained=drained,
    )


def inline_receipt(instance: int = 0, at: int = 0, supersedes: tuple[str, ...] = ()) -> Receipt:
    """Return a receipt of `INLINE_DELTA`: a segment of 13 bytes, then rows of 4."""
    return Receipt(
        instance=instance,
        attempt="0.0",
        at=at,
        size=len(INLINE_DELTA),
        digest=hashlib.sha256(INLINE_DELTA).hexdigest(),
        sections=(
            Section("segment", "g", 0, 13, 2, {"first": 10, "last": 20, "slots": [1, 2]}, supersedes),
            Section("rows", "g", 14, 4, 1),
        ),
        counts={"read": 3},
    )


def file_receipt(instance: int, name: str) -> Receipt:
    """Return a receipt of a delta file with one segment at offset 5."""
    return Receipt(
        instance=instance,
        attempt="0.1",
        file=name,
        size=25,
        digest="00" * 32,
        sections=(Section("segment", "g", 5, 20, 4, {"level": 1}),),
    )


def entry(record: Record, body: bytes = b"") -> Entry:
    """Return the record as the log returns it."""
    return decode(encode(record, body))


def numbered(n: int, digest: str = "") -> Entry:
    """Return an entry with that number and without rows; its default digest is derived from the number."""
    return Entry(replace(claim(), n=n), None, digest or f"{n:064x}")


def chain(*records: Record, body: bytes = INLINE_DELTA) -> list[bytes]:
    """Return the bytes of the records, renumbered from 0 and chained."""
    found: list[bytes] = []
    prev = ""
    for n, record in enumerate(records):
        data = encode(replace(record, n=n, prev=prev), body if isinstance(record, EpochRecord) else b"")
        prev = decode(data).digest
        found.append(data)
    return found
