"""The records of the log and their bytes.

    record     = magic sizes seal header body checksum
    magic      = "MPLOG2" LF                    7 bytes; the digit is the version of this grammar
    sizes      = 3 u32, little-endian           bytes of the header as it is stored, of the header, of the body
    seal       = 32 bytes                       SHA-256 of the body as it is stored
    header     = JSON object, UTF-8, packed     one of the structs below; "kind" names which
    body       = *OCTET, packed                 inline deltas, one after another; a receipt's `at` and `size`
                                                count from the first byte of the body; empty but for epochs
    checksum   = 32 bytes                       SHA-256 of everything before but the body; also the record's *digest*

The digest covers the body by its seal, so a record is the same, and as sure, when its body is taken back
(`without_body`): then nothing stands between header and checksum. `prev` is the digest of record n - 1, in lower-case
hexadecimal; "" in the first record. So the digest of the newest record vouches for the whole log. Headers are written
with sorted keys of maps: equal records have equal bytes. A reader passes over header fields that it does not know.

Version 1, which is read as well: nothing is packed, the bytes of the header are all that is told before it, and the
checksum is of everything before.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import msgspec

from millpond.errors import CorruptError
from millpond.log.blocks import Packed, pack

MAGIC = b"MPLOG2\n"
FIRST_MAGIC = b"MPLOG1\n"
_ANY_MAGIC = b"MPLOG"
_CURE = "Restore this file, or the pond's folder, from a copy."
_SIZES = struct.Struct("<III")
_LENGTH = struct.Struct("<I")
_DIGEST_BYTES = 32

SectionKind = Literal["segment", "keys", "left", "events", "tallies", "rows", "differing", "late", "dead", "backfill"]

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


class Body(Protocol):
    """The bytes of a record's body, or what is read of them."""

    def read(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes at `offset`, or fewer at the end; ValueError: they do not unpack."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record as it stands in the log: the header's values, the body, the digest in hexadecimal.

    `body` is None where it was taken back.
    """

    record: Record
    body: Body | None
    digest: str

    @property
    def n(self) -> int:
        """The record's number."""
        return self.record.n

    def inline(self, receipt: Receipt) -> memoryview:
        """Return an inline receipt's delta.

        CorruptError: the body does not hold it. FileNotFoundError: it was taken back.
        """
        if receipt.file is not None:
            raise ValueError(f"the delta of instance {receipt.instance} is the file {receipt.file}")
        if self.body is None:
            raise FileNotFoundError(f"the body of record {self.n} was taken back")
        delta = self.body.read(receipt.at, receipt.size)
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
    packed, stored = pack(header), pack(body)
    sizes = _SIZES.pack(len(packed), len(header), len(body))
    told = b"".join((MAGIC, sizes, hashlib.sha256(stored).digest(), packed))
    return b"".join((told, stored, hashlib.sha256(told).digest()))


def decode(data: bytes, what: str = "A record of the log") -> Entry:
    """Read a record back; CorruptError, which calls it `what`, when a byte is damaged, missing or added."""
    view = memoryview(data)
    content, checksum = view[:-_DIGEST_BYTES], view[-_DIGEST_BYTES:]
    try:
        parts = _parts(content, what)
        told = content if parts.seal is None else content[: len(content) - len(parts.stored)]
        if hashlib.sha256(told).digest() != checksum:
            raise CorruptError(f"{what} fails its checksum.", _CURE)
        if parts.seal is not None and parts.stored and hashlib.sha256(parts.stored).digest() != parts.seal:
            raise CorruptError(f"{what} fails the checksum of its body.", _CURE)
        record = _decoder.decode(parts.header.read(0, parts.header_bytes))
        return Entry(record, parts.body(), checksum.hex())
    except (ValueError, struct.error) as error:
        raise CorruptError(f"{what} is malformed: {error}.", _CURE) from error


def body_of(data: memoryview, what: str = "A record of the log") -> Body | None:
    """Return the body in a record's bytes, without checking them; None: it was taken back; `what` as of `decode`.

    CorruptError: they are none.
    """
    try:
        return _parts(data[:-_DIGEST_BYTES], what).body()
    except (ValueError, struct.error) as error:
        raise CorruptError(f"{what} is malformed: {error}.", _CURE) from error


def without_body(data: bytes, what: str = "A record of the log") -> bytes | None:
    """Return the same record without its body; None: it has none, or its digest would not be the same without it;
    `what` as of `decode`.

    CorruptError: it is damaged.
    """
    decode(data, what)
    stored = _parts(memoryview(data)[:-_DIGEST_BYTES], what)
    if stored.seal is None or not stored.stored:
        return None
    return data[: len(data) - _DIGEST_BYTES - len(stored.stored)] + data[-_DIGEST_BYTES:]


class _Plain:
    """Bytes that lie there as they are."""

    def __init__(self, stored: memoryview) -> None:
        self._stored = stored

    def read(self, offset: int, size: int) -> memoryview:
        return self._stored[offset : offset + size]


class _Parts(NamedTuple):
    """What a record's bytes are made of; `seal` None: it is of version 1."""

    header: Body
    header_bytes: int
    stored: memoryview
    body_bytes: int
    seal: bytes | None

    def body(self) -> Body | None:
        if self.seal is None:
            return _Plain(self.stored)
        return Packed(self.stored, self.body_bytes) if self.stored or not self.body_bytes else None


def _parts(content: memoryview, what: str) -> _Parts:
    magic, start = bytes(content[: len(MAGIC)]), len(MAGIC)
    if magic == FIRST_MAGIC:
        (stored_bytes,) = _LENGTH.unpack_from(content, start)
        header_bytes, body_bytes, seal = stored_bytes, 0, None
        start += _LENGTH.size
    elif magic == MAGIC:
        stored_bytes, header_bytes, body_bytes = _SIZES.unpack_from(content, start)
        start += _SIZES.size
        seal = bytes(content[start : start + _DIGEST_BYTES])
        start += _DIGEST_BYTES
    elif magic[: len(_ANY_MAGIC)] == _ANY_MAGIC and len(magic) == len(MAGIC):
        raise CorruptError(f"{what} has another version.", "Use the Millpond that wrote it, or a newer one.")
    elif not content:
        raise CorruptError(f"{what} is empty or ends too early.", _CURE)
    else:
        raise CorruptError(f"{what} does not begin as a record does.", _CURE)
    if start + stored_bytes > len(content):
        raise ValueError(f"a header of {stored_bytes} bytes in a record of {len(content)}")
    stored = content[start : start + stored_bytes]
    header: Body = _Plain(stored) if seal is None else Packed(stored, header_bytes)
    return _Parts(header, header_bytes, content[start + stored_bytes :], body_bytes, seal)


def digest_of(data: bytes) -> str:
    """Return the digest in a record's bytes, in hexadecimal, without checking it."""
    return data[-_DIGEST_BYTES:].hex()
