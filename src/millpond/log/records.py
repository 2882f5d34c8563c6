"""Encodes and decodes the records of the log.

    record     = magic sizes seal header body checksum
    magic      = "MPLOG2" LF                    7 bytes; the digit is the version of this grammar
    sizes      = 3 u32, little-endian           bytes of the stored (packed) header, of the header, of the body
    seal       = 32 bytes                       SHA-256 of the stored (packed) body
    header     = JSON object, UTF-8, packed     one of the structs below, named by "kind"
    body       = *OCTET, packed                 inline deltas, one after another; a receipt's `at` and `size`
                                                count from the first byte of the body; empty except for epochs
    checksum   = 32 bytes                       SHA-256 of everything before except the body; also the record's *digest*

The digest covers the body through the seal. So a record keeps its identity and its protection when its body is removed
(`without_body`): then nothing is between header and checksum. `prev` is the digest of record n - 1, in lower-case
hexadecimal; "" in the first record. So the digest of the newest record covers the whole log. Headers are written with
sorted keys of maps, so equal records have equal bytes. A reader ignores header fields that it does not know.

Version 1 can also be read: nothing is packed, the only size is that of the header, there is no seal, and the checksum
is of everything before it.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import msgspec

from millpond.errors import CorruptError
from millpond.log.blocks import Packed, pack
from millpond.spans import Span

MAGIC = b"MPLOG2\n"
FIRST_MAGIC = b"MPLOG1\n"
_ANY_MAGIC = b"MPLOG"
_CURE = "Restore this file, or the pond's folder, from a copy."
_SIZES = struct.Struct("<III")
_LENGTH = struct.Struct("<I")
_DIGEST_BYTES = 32

SectionKind = Literal["segment", "keys", "left", "events", "tallies", "rows", "differing", "late", "dead", "backfill"]

STATE: tuple[SectionKind, ...] = ("keys", "left", "segment", "events", "tallies")
"""The kinds of sections that contain state; rows are not migrated."""

Offsets = dict[str, str]
"""The JSON text of the Spark offset, by name of stream."""

Fates = dict[str, dict[str, list[int]]]
"""The numbers of events that were read, applied, late, dead and filtered, by query and source partition."""


class Section(msgspec.Struct, frozen=True, omit_defaults=True):
    """A byte range of one delta, which is live or superseded as a unit; its id is `section_id(n, instance, ordinal)`.

    `offset` is in bytes from the start of the delta. `supersedes` lists the ids of sections that are no longer live
    from this record on.
    """

    kind: SectionKind
    group: str
    offset: int
    size: int
    rows: int
    info: dict[str, int | str | list[int]] = {}
    supersedes: tuple[str, ...] = ()


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The delta of an instance's valid attempt, in a file or inline in the record's body.

    `file` is relative to the pond's folder; None: the delta is body[at : at + size]. `digest` is the SHA-256 of the
    delta in hexadecimal. Only attempts that are named by a receipt in the log are valid. `reasons`: why queries are to
    be quarantined, where `counts` does not say it. `fed`: the values that rows feed to parameters, `spans`: of the
    timeline of the epoch, and `host`: where the instance was folded; they are only used until the record is created.
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
    spans: tuple[Span, ...] = ()
    host: str = ""


class FileList(msgspec.Struct, frozen=True, omit_defaults=True):
    """Files that batches of a source of files were the first to read, as columns, in the order of the batches.

    A path is `folder` and the line of `names`, as Spark encodes it, so it contains no line feed. `times` are the
    modification times in milliseconds since 1970 UTC, and `batches` the numbers of the source's batches.
    """

    folder: str = ""
    names: str = ""
    times: list[int] = []
    batches: list[int] = []


class SourceUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What Spark has stored about a source since the previous epoch, besides its offsets.

    `files`: the files that it was the first to read. `stored`: the content of other files in the source's folder, by
    name, each byte as the character of that number; None: the file was removed. The first epoch that reads the source
    has an update, even if it is empty.
    """

    files: FileList | None = None
    stored: dict[str, str | None] = {}


class ClaimRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="claim", kw_only=True):
    """The takeover by a driver: every later append by an earlier writer fails; `spec` is opaque canonical JSON."""

    n: int
    writer: str
    prev: str
    at: int
    host: str
    pid: int
    version: str
    spec: str


class ChangeRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="change", kw_only=True):
    """A change of the registered queries or the pond, in force for every later epoch; `change` is opaque JSON.

    `retired`: sections that are no longer live from this record on. `lifted`: queries whose quarantine ends.
    `receipts`: deltas that were computed for the change beforehand. Empty fields are left out.
    """

    n: int
    writer: str
    prev: str
    at: int
    change: str
    retired: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    lifted: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    receipts: tuple[Receipt, ...] | msgspec.UnsetType = msgspec.UNSET


class EpochRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="epoch", kw_only=True, omit_defaults=True):
    """One committed Spark batch.

    All times are event times in microseconds since 1970 UTC, except `at`, which is of the writer's clock and never
    less than in the record before it. `max_time` is the largest event time by stream and source partition ("*" for
    unordered sources). `fed`: the new values (opaque JSON) that rows of this epoch give to parameters, from the next
    epoch on. `sources`: by stream. `instant`: the time of `current_timestamp()` in this epoch, if a query uses it.
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
    sources: dict[str, SourceUpdate] = {}
    instant: int = 0


Record = ClaimRecord | ChangeRecord | EpochRecord


class Body(Protocol):
    """The body of a record, which can be read in parts."""

    def read(self, offset: int, size: int) -> memoryview:
        """Returns `size` bytes at `offset`, or fewer at the end.

        Raises:
            ValueError: the bytes cannot be unpacked.
        """


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of the log: the values of the header, the body, and the digest in hexadecimal.

    `body` is None if it was removed.
    """

    record: Record
    body: Body | None
    digest: str

    @property
    def n(self) -> int:
        """The number of the record."""
        return self.record.n

    def inline(self, receipt: Receipt) -> memoryview:
        """Returns the delta of an inline receipt.

        Raises:
            CorruptError: the delta in the body is damaged.
            FileNotFoundError: the body was removed.
        """
        if receipt.file is not None:
            raise ValueError(f"the delta of instance {receipt.instance} is the file {receipt.file}")
        if self.body is None:
            raise FileNotFoundError(f"the body of record {self.n} was removed")
        delta = self.body.read(receipt.at, receipt.size)
        if hashlib.sha256(delta).hexdigest() != receipt.digest:
            raise CorruptError(
                f"The delta of instance {receipt.instance} in record {self.n} fails its digest.",
                "Restore the pond's folder.",
            )
        return delta


def section_id(n: int, instance: int, ordinal: int) -> str:
    """Returns the id of section `ordinal` in the receipt of `instance` in record `n`.

    >>> section_id(57, 3, 0)
    '57/3/0'
    """
    return f"{n}/{instance}/{ordinal}"


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode(record: Record, body: bytes = b"") -> bytes:
    """Encodes a record; equal records and bodies give equal bytes."""
    header = _encoder.encode(record)
    packed, stored = pack(header), pack(body)
    sizes = _SIZES.pack(len(packed), len(header), len(body))
    content = b"".join((MAGIC, sizes, hashlib.sha256(stored).digest(), packed))
    return b"".join((content, stored, hashlib.sha256(content).digest()))


def decode(data: bytes, what: str = "A record of the log") -> Entry:
    """Decodes a record; errors call it `what`.

    Raises:
        CorruptError: a byte is damaged, missing or added.
    """
    view = memoryview(data)
    content, checksum = view[:-_DIGEST_BYTES], view[-_DIGEST_BYTES:]
    try:
        parts = _parts(content, what)
        checked = content if parts.seal is None else content[: len(content) - len(parts.stored)]
        if hashlib.sha256(checked).digest() != checksum:
            raise CorruptError(f"{what} fails its checksum.", _CURE)
        if parts.seal is not None and parts.stored and hashlib.sha256(parts.stored).digest() != parts.seal:
            raise CorruptError(f"{what} fails the checksum of its body.", _CURE)
        record = _decoder.decode(parts.header.read(0, parts.header_bytes))
        return Entry(record, parts.body(), checksum.hex())
    except (ValueError, struct.error) as error:
        raise CorruptError(f"{what} is malformed: {error}.", _CURE) from error


def body_of(data: memoryview, what: str = "A record of the log") -> Body | None:
    """Returns the body in a record's bytes, without checking them; None if it was removed. `what`: see `decode`.

    Raises:
        CorruptError: the bytes are not a record.
    """
    try:
        return _parts(data[:-_DIGEST_BYTES], what).body()
    except (ValueError, struct.error) as error:
        raise CorruptError(f"{what} is malformed: {error}.", _CURE) from error


def without_body(data: bytes, what: str = "A record of the log") -> bytes | None:
    """Returns the bytes of a record without its body; `what`: see `decode`.

    None if the record has no body, or is of version 1, whose digest covers the body itself.

    Raises:
        CorruptError: the record is damaged.
    """
    decode(data, what)
    stored = _parts(memoryview(data)[:-_DIGEST_BYTES], what)
    if stored.seal is None or not stored.stored:
        return None
    return data[: len(data) - _DIGEST_BYTES - len(stored.stored)] + data[-_DIGEST_BYTES:]


class _Plain:
    """Bytes that are not packed."""

    def __init__(self, stored: memoryview) -> None:
        self._stored = stored

    def read(self, offset: int, size: int) -> memoryview:
        return self._stored[offset : offset + size]


class _Parts(NamedTuple):
    """The parts of a record's bytes; `seal` is None for version 1."""

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
    """Returns the digest in a record's bytes, in hexadecimal, without checking it."""
    return data[-_DIGEST_BYTES:].hex()
