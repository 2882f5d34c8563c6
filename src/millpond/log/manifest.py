"""The manifest: the state of the log at record n (live sections, offsets, times, spec, writer), folded from records.

A manifest is derived and may be lost: with the file `<pond>/manifest/<n>`, a restart need not read the whole log.

    manifest   = magic json LF checksum
    magic      = "MPMAN1" LF
    json       = JSON object, UTF-8             the struct `Manifest`
    checksum   = 32 bytes                       SHA-256 of everything before
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TypeVar

import msgspec

from millpond.errors import CorruptError
from millpond.log.port import Folder, Log, numbered_name, numbers_in, read_hint, write_hint
from millpond.log.records import (
    ChangeRecord,
    ClaimRecord,
    Entry,
    EpochRecord,
    Offsets,
    Receipt,
    Section,
    SectionKind,
    SourceUpdate,
    decode,
    digest_of,
    section_id,
)

MAGIC = b"MPMAN1\n"
_CHECKSUM_BYTES = 32
_BEFORE_THE_LOG = -1
_FILES = "_files"
T = TypeVar("T")


class LiveSection(msgspec.Struct, frozen=True, omit_defaults=True):
    """A live section, and the location of its bytes.

    `offset` and `size` are a byte range of `file` (relative to the pond), or of the body of record `n` if `file` is
    None. `delta_digest` is the digest of the whole delta that contains the section.
    """

    id: str
    n: int
    instance: int
    kind: SectionKind
    group: str
    offset: int
    size: int
    rows: int
    delta_digest: str
    file: str | None = None
    info: dict[str, int | str | list[int]] = {}


class Change(msgspec.Struct, frozen=True):
    """A change, as the number of its record and its opaque JSON.

    A manifest keeps the changes since the last claim, and the one that epochs name as their `map`.
    """

    n: int
    change: str


class Fed(msgspec.Struct, frozen=True):
    """The value that rows of record `n` fed to a parameter, as opaque JSON."""

    n: int
    value: str


class SourceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the log knows of what Spark stores about a source, besides its offsets.

    The files of all batches up to `batch` are in records (`SourceUpdate.files`); it is -1 for other sources. `stored`:
    see `SourceUpdate`.
    """

    batch: int = -1
    stored: dict[str, str] = {}


class Manifest(msgspec.Struct, frozen=True, dict=True):
    """The fold of records 0..n; n is -1 before the first record. Its maps must not be changed.

    `sections` maps ids to live sections, in the order of the log. `offsets` are the newest end offsets per stream.
    `max_time` (microseconds) never decreases. `quarantined` maps queries to reasons. `batch` is -1 before the first
    epoch. `sources` is unset before the first record that has some.
    """

    n: int = _BEFORE_THE_LOG
    digest: str = ""
    writer: str = ""
    spec: str = ""
    changes: tuple[Change, ...] = ()
    spark_query: str = ""
    batch: int = -1
    epoch_n: int = _BEFORE_THE_LOG
    plan: int = 0
    map: int = 0
    offsets: Offsets = {}
    max_time: dict[str, dict[str, int]] = {}
    watermark_floor: dict[str, int] = {}
    idle: dict[str, list[str]] = {}
    quarantined: dict[str, str] = {}
    sections: dict[str, LiveSection] = {}
    fed: dict[str, Fed] | msgspec.UnsetType = msgspec.UNSET
    sources: dict[str, SourceState] | msgspec.UnsetType = msgspec.UNSET

    @property
    def known_sources(self) -> dict[str, SourceState]:
        """The value of `sources`, empty if it is unset."""
        return {} if isinstance(self.sources, msgspec.UnsetType) else self.sources

    def live(self, instance: int, group: str, kind: SectionKind) -> tuple[LiveSection, ...]:
        """Returns the live sections of one kind that an instance wrote for a group, in the order of the log."""
        return self._by_owner.get((instance, group, kind), ())

    @cached_property
    def _by_owner(self) -> dict[tuple[int, str, str], tuple[LiveSection, ...]]:
        found: dict[tuple[int, str, str], list[LiveSection]] = {}
        for section in self.sections.values():
            found.setdefault((section.instance, section.group, section.kind), []).append(section)
        return {owner: tuple(sections) for owner, sections in found.items()}


def fold(manifest: Manifest, entry: Entry) -> Manifest:
    """Returns the manifest after one more record.

    Raises:
        CorruptError: the record does not follow the previous one.
    """
    return fold_all(manifest, (entry,))


def fold_all(manifest: Manifest, entries: Iterable[Entry]) -> Manifest:
    """Returns the manifest after all `entries`, like repeated calls of `fold`, but with a single copy."""
    draft = _Draft(manifest)
    for entry in entries:
        draft.add(entry)
    return draft.freeze()


class _Draft:
    """The mutable copy on which a fold works; it is used only in this module."""

    def __init__(self, before: Manifest) -> None:
        self._fields = {name: getattr(before, name) for name in before.__struct_fields__}
        self._n = before.n
        self._digest = before.digest
        # Copying a dict of a few thousand references takes about 20 us; its values are never changed.
        for name in ("offsets", "max_time", "watermark_floor", "quarantined", "sections"):
            self._fields[name] = dict(self._fields[name])

    def add(self, entry: Entry) -> None:
        record = entry.record
        if record.n != self._n + 1 or record.prev != self._digest:
            raise CorruptError(
                f"Record {record.n} of the log does not follow record {self._n}.",
                "Restore the pond's folder; records of two ponds may have been mixed.",
            )
        self._n, self._digest = record.n, entry.digest
        match record:
            case ClaimRecord():
                kept = tuple(change for change in self._fields["changes"] if change.n == self._fields["map"])
                self._fields.update(writer=record.writer, spec=record.spec, changes=kept)
            case ChangeRecord():
                self._add_change(record)
            case EpochRecord():
                self._add_epoch(record)

    def freeze(self) -> Manifest:
        return Manifest(**{**self._fields, "n": self._n, "digest": self._digest})

    def _add_change(self, record: ChangeRecord) -> None:
        self._fields["changes"] += (Change(record.n, record.change),)
        for old in () if isinstance(record.retired, msgspec.UnsetType) else record.retired:
            self._fields["sections"].pop(old, None)
        for query in () if isinstance(record.lifted, msgspec.UnsetType) else record.lifted:
            self._fields["quarantined"].pop(query, None)
        self._add_sections(record.n, () if isinstance(record.receipts, msgspec.UnsetType) else record.receipts)

    def _add_epoch(self, record: EpochRecord) -> None:
        fields = self._fields
        fields.update(
            spark_query=record.spark_query,
            batch=record.batch,
            epoch_n=record.n,
            plan=record.plan,
            map=record.map,
            idle=record.idle,
        )
        fields["offsets"].update(record.end)
        for stream, times in record.max_time.items():
            fields["max_time"][stream] = _later(fields["max_time"].get(stream, {}), times)
        fields["watermark_floor"] = _later(fields["watermark_floor"], record.watermark_floor)
        for query, reason in record.quarantined.items():
            fields["quarantined"][query] = reason
            if not reason:
                del fields["quarantined"][query]  # an empty reason ends the quarantine
        if record.fed:
            before = {} if isinstance(fields["fed"], msgspec.UnsetType) else fields["fed"]
            fields["fed"] = before | {name: Fed(record.n, value) for name, value in record.fed.items()}
        if record.sources:
            known = {} if isinstance(fields["sources"], msgspec.UnsetType) else fields["sources"]
            new = {name: _updated(known.get(name), update) for name, update in record.sources.items()}
            fields["sources"] = known | new
        self._add_sections(record.n, record.receipts)
        for old in record.retired:
            fields["sections"].pop(old, None)

    def _add_sections(self, n: int, receipts: Iterable[Receipt]) -> None:
        sections = self._fields["sections"]
        for receipt in receipts:
            for ordinal, section in enumerate(receipt.sections):
                live = _located(n, receipt, ordinal, section)
                sections[live.id] = live
                for old in section.supersedes:
                    sections.pop(old, None)


def _located(n: int, receipt: Receipt, ordinal: int, section: Section) -> LiveSection:
    start = 0 if receipt.file is not None else receipt.at
    return LiveSection(
        id=section_id(n, receipt.instance, ordinal),
        n=n,
        instance=receipt.instance,
        kind=section.kind,
        group=section.group,
        offset=start + section.offset,
        size=section.size,
        rows=section.rows,
        delta_digest=receipt.digest,
        file=receipt.file,
        info=section.info,
    )


def _updated(known: SourceState | None, update: SourceUpdate) -> SourceState:
    before = known or SourceState()
    stored = before.stored | update.stored
    batch = before.batch if update.files is None else max((before.batch, *update.files.batches[-1:]))
    return SourceState(batch, {name: content for name, content in stored.items() if content is not None})


def _later(old: dict[str, int], new: dict[str, int]) -> dict[str, int]:
    return {**old, **{name: max(time, old.get(name, time)) for name, time in new.items()}}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    """Encodes a manifest; equal logs give equal bytes."""
    content = b"".join((MAGIC, _encoder.encode(manifest), b"\n"))
    return content + hashlib.sha256(content).digest()


def decode_manifest(data: bytes) -> Manifest:
    """Decodes a manifest.

    Raises:
        CorruptError: it is damaged.
    """
    content, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if hashlib.sha256(content).digest() != checksum or not content.startswith(MAGIC):
        raise CorruptError("A manifest fails its checksum.", "Delete it; it is derived from the log.")
    try:
        return _decoder.decode(content[len(MAGIC) :])
    except ValueError as error:
        raise CorruptError(f"A manifest is malformed: {error}.", "Delete it; it is derived.") from error


class Manifests:
    """The stored manifests in `<pond>/manifest/`: the newest few, named like records, and a hint."""

    def __init__(self, folder: Folder, keep: int = 16) -> None:
        self._folder = folder
        self._keep = keep
        self._found: list[int] | None = None

    def save(self, manifest: Manifest) -> None:
        """Writes the manifest, sets the hint to it, and removes all but the newest `keep` manifests up to it.

        Later manifests are removed, too: they are of records that the log has lost, or of another driver, which will
        write more. The folder is listed only at the first call, when a driver takes over.
        """
        self._folder.replace(numbered_name(manifest.n), encode_manifest(manifest))
        write_hint(self._folder, manifest.n)
        found = numbers_in(self._folder) if self._found is None else sorted({*self._found, manifest.n})
        self._found = [n for n in found if n <= manifest.n][-self._keep :]
        for n in found:
            if n not in self._found:
                self._folder.remove(numbered_name(n))

    def save_files(self, data: bytes) -> None:
        """Replaces the stored lists of the files that were read; see `file_lists`."""
        self._folder.replace(_FILES, data)

    def files(self) -> bytes | None:
        """The stored lists of the files that were read, if there are any."""
        return self._folder.read(_FILES)

    def newest(self, at_most: int | None = None) -> Iterator[Manifest]:
        """Yields the undamaged manifests up to record `at_most`: that of the hint, then the others, newest first."""
        hint = read_hint(self._folder)
        if hint is not None and (at_most is None or hint <= at_most):
            yield from self._undamaged(hint)
        for n in reversed(numbers_in(self._folder)):
            if n != hint and (at_most is None or n <= at_most):
                yield from self._undamaged(n)

    def _undamaged(self, n: int) -> Iterator[Manifest]:
        data = self._folder.read(numbered_name(n))
        if data is None:
            return
        try:
            yield decode_manifest(data)
        except CorruptError:
            return


def load(log: Log, manifests: Manifests, upto: int | None = None, known: Manifest | None = None) -> Manifest:
    """Returns the manifest at the log's last record, or at record `upto` if that comes first.

    Reads a hint, a manifest, its last record, and all later records. If all manifests are missing, damaged or of
    another log, it reads the whole log. `known` is an earlier manifest; unless it is of another log, no stored manifest
    is read. Only the digest of its last record is compared: with many queries, decoding a record takes milliseconds.

    Raises:
        CorruptError: the log is damaged or has a hole.
    """
    if known is not None and (upto is None or known.n <= upto) and contains_manifest(log, known):
        manifest = known
    else:
        found = (one for one in manifests.newest(upto) if upto is None or one.n <= upto)
        manifest = next((one for one in found if _is_of(one, log)), Manifest())
    manifest = fold_all(manifest, _tail(log, manifest.n + 1, upto))
    if upto is None:
        last = log.last(manifest.n if manifest.n >= 0 else None)
        if last is not None and last > manifest.n:
            _check_exists(log, manifest.n + 1)
    return manifest


def check_no_hole(log: Log, manifest: Manifest) -> None:
    """Checks that no record exists after the last record of a manifest; called once per driver, as it lists names.

    An append into a hole would split the log in two, because the records after the hole follow another record.

    Raises:
        CorruptError: the next record is missing, but later ones exist.
    """
    if log.highest(manifest.n) is not None:
        _check_exists(log, manifest.n + 1)


def read_sections(log: Log, manifests: Manifests, manifest: Manifest, read: Callable[[Manifest], T]) -> T:
    """Calls `read` with `manifest`, or again with the newest manifest if a section is missing.

    A reader that runs concurrently with epochs does not prevent pruning, so superseded sections may no longer exist.

    Raises:
        CorruptError: a section of the newest manifest is missing.
    """
    try:
        return read(manifest)
    except CorruptError:
        newest = load(log, manifests, known=manifest)
        if newest.n == manifest.n:
            raise
        return read(newest)


def _tail(log: Log, first: int, upto: int | None) -> Iterator[Entry]:
    n = first
    while upto is None or n <= upto:
        data = log.read(n)
        if data is None:
            return
        yield decode(data, log.describe(n))
        n += 1


def contains_manifest(log: Log, manifest: Manifest) -> bool:
    """Whether the log has the last record of a manifest, and so, by their digests, all records before it."""
    data = log.read(manifest.n) if manifest.n >= 0 else None
    return data is not None and digest_of(data) == manifest.digest


def _is_of(manifest: Manifest, log: Log) -> bool:
    data = log.read(manifest.n)
    return data is not None and decode(data, log.describe(manifest.n)).digest == manifest.digest


def _check_exists(log: Log, n: int) -> None:
    # Another writer may have appended since the tail was read, so read again before reporting a hole.
    if log.read(n) is None:
        raise CorruptError(
            f"Record {n} is missing in {log.where}, although later ones exist.",
            "Restore the pond's folder.",
        )
