"""The records of the log and their bytes.

    record     = magic length header body checksum
    magic      = "MPLOG1" LF                    7 bytes; the digit is the version of this grammar
    length     = u32, little-endian             bytes of the header
    header     = JSON object, UTF-8             one of the structs below; "kind" names which
    body       = *OCTET                         inline deltas, one after another; a receipt's `at` and `size`
                                                count from the first byte of the body; empty but for epochs
    checksum   = 32 bytes                       SHA-256 of everything before; also the record's *digest*

`prev` is the digest of record n - 1, in lower-case hexadecimal; "" in the first record. So the digest of
the newest record vouches for the whole log. Headers are written with sorted keys of maps: equal records
have equal bytes. A reader passes over header fields that it does not know.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Literal

import msgspec

from millpond.errors import CorruptError

MAGIC = b"MPLOG1\n"
_LENGTH = struct.Struct("<I")
_HEADER_START = len(MAGIC) + _LENGTH.size
_CHECKSUM_BYTES = 32

SectionKind = Literal["segment", "keys", "left", "events", "tallies", "rows", "late", "dead", "backfill"]

STATE: tuple[SectionKind, ...] = ("keys", "left", "segment", "events", "tallies")
"""The kinds of sections that state is made of; rows stay where they were written."""

Offsets = dict[str, str]
"""Stream name -> the JSON text of its Spark offset."""

Fates = dict[str, dict[str, list[int]]]
"""Query -> source partition -> how many events were read, applied, late, dead, filtered."""


class Section(msgspec.Struct, frozen=True, omit_defaults=True):
    """A byte range of one delta that is remembered as a whole; its id is `section_id(n, instance, ordinal)`.

    `offset` counts bytes from the start of the delta; `supersedes` lists ids that are not live from here on.
    """

    kind: SectionKind
    group: str
    offset: int
    size: int
    rows: int
    info: dict[str, int | str | list[int]] = {}
    supersedes: tuple[str, ...] = ()


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one instance's counted attempt left: one delta, in a file or inline in the record's body.

    `file` is relative to the pond's folder; None: the delta is body[at : at + size]. `digest` is the SHA-256
    of the delta in hexadecimal. Only attempts that are named by a receipt of the log ever count.
    `reasons`: by query, why it is to be quarantined, where that is more than what its count says. `fed`: what rows say
    of parameters, until the record is made.
    """

    instance: int
    attempt: str
    size: int
    digest: str
    file: str | None = None
    at: int = 0
    sections: tuple[Section, ...] = ()
    counts: dict[str, int] = {}
    fates: Fates = {}
    reasons: dict[str, str] = {}
    fed: dict[str, tuple[int, list[str] | None]] = {}


class ClaimRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="claim", kw_only=True):
    """A driver takes over: every later append by an earlier writer fails; `spec` is opaque canonical JSON."""

    n: int
    writer: str
    prev: str
    at: int
    host: str
    pid: int
    version: str
    spec: str


class ChangeRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="change", kw_only=True):
    """A change of what is asked, in force for every epoch after it; `change` is opaque JSON.

    `retired`: sections that are not live from here on; `lifted`: queries whose quarantine ends; `receipts`: what was
    made for the change beforehand. All are left out where there are none.
    """

    n: int
    writer: str
    prev: str
    at: int
    change: str
    retired: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    lifted: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    receipts: tuple[Receipt, ...] | msgspec.UnsetType = msgspec.UNSET


class EpochRecord(
    msgspec.Struct, frozen=True, tag_field="kind", tag="epoch", kw_only=True, omit_defaults=True
):
    """One Spark batch, made true.

    All times are event times in microseconds since 1970 UTC, except `at`: the writer's clock, informational.
    `max_time` maps stream -> source partition -> largest event time ("*" for unordered sources). `fed`: parameters to
    which rows of this epoch give another value from the next one on; opaque JSON.
    """

    n: int
    writer: str
    prev: str
    at: int
    spark_query: str
    batch: int
    start: Offsets
    end: Offsets
    max_time: dict[str, dict[str, int]] = {}
    watermark_floor: dict[str, int] = {}
    drained: bool = False
    idle: dict[str, list[str]] = {}
    plan: int = 0
    map: int = 0
    receipts: tuple[Receipt, ...] = ()
    counts: dict[str, dict[str, int]] = {}
    fates: Fates = {}
    retired: tuple[str, ...] = ()
    quarantined: dict[str, str] = {}
    fed: dict[str, str] = {}


Record = ClaimRecord | ChangeRecord | EpochRecord


@dataclass(frozen=True, slots=True)
class Entry:
    """A record as it stands in the log: the header's values, the body's bytes, the digest in hexadecimal."""

    record: Record
    body: memoryview
    digest: str

    @property
    def n(self) -> int:
        """The record's number."""
        return self.record.n

    def inline(self, receipt: Receipt) -> memoryview:
        """Return an inline receipt's delta; CorruptError when the body does not hold it."""
        if receipt.file is not None:
            raise ValueError(f"the delta of instance {receipt.instance} is the file {receipt.file}")
        delta = self.body[receipt.at : receipt.at + receipt.size]
        if hashlib.sha256(delta).hexdigest() != receipt.digest:
            raise CorruptError(
                f"The delta of instance {receipt.instance} in record {self.n} fails its digest.",
                "Restore the pond's folder.",
            )
        return delta


def section_id(n: int, instance: int, ordinal: int) -> str:
    """Return the id of the section that is number `ordinal` in the receipt of `instance` in record `n`.

    >>> section_id(57, 3, 0)
    '57/3/0'
    """
    return f"{n}/{instance}/{ordinal}"


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode(record: Record, body: bytes = b"") -> bytes:
    """Return the record's bytes; equal records and bodies give equal bytes."""
    header = _encoder.encode(record)
    framed = b"".join((MAGIC, _LENGTH.pack(len(header)), header, body))
    return framed + hashlib.sha256(framed).digest()


def decode(data: bytes) -> Entry:
    """Read a record back; CorruptError when a byte is damaged, missing or added."""
    view = memoryview(data)
    content, checksum = view[:-_CHECKSUM_BYTES], view[-_CHECKSUM_BYTES:]
    if hashlib.sha256(content).digest() != checksum:
        raise CorruptError("A record of the log fails its checksum.", "Restore the pond's folder.")
    if content[: len(MAGIC)] != MAGIC:
        raise CorruptError(
            "A record of the log has another version.", "Use the Millpond that wrote it, or a newer."
        )
    try:
        (header_bytes,) = _LENGTH.unpack_from(content, len(MAGIC))
        body_start = _HEADER_START + header_bytes
        if body_start > len(content):
            raise ValueError(f"a header of {header_bytes} bytes in a record of {len(data)}")
        record = _decoder.decode(content[_HEADER_START:body_start])
    except (ValueError, struct.error) as error:
        raise CorruptError(
            f"A record of the log is malformed: {error}.", "Restore the pond's folder."
        ) from error
    return Entry(record, content[body_start:], checksum.hex())


def digest_of(data: bytes) -> str:
    """Return the digest in a record's bytes, in hexadecimal, without checking it."""
    return data[-_CHECKSUM_BYTES:].hex()
