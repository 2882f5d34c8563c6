"""Collects the files that sources have read from the records of the log, and stores the collection, so that few records
are read again.

    <pond>/manifest/_files     lists of the files that were read up to record n; derived

    lists      = magic size packed checksum
    magic      = "MPFILES1" LF
    size       = u64, little-endian             bytes of the JSON object
    packed     = *size *block                   as in records, of the struct `_Stored` as JSON
    checksum   = 32 bytes                       SHA-256 of everything before
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from urllib.parse import unquote

import msgspec

from millpond.errors import PlaceError
from millpond.log.blocks import Packed, pack
from millpond.log.manifest import Manifest, Manifests
from millpond.log.port import Log
from millpond.log.records import ChangeRecord, EpochRecord, FileList, Record, decode

MAGIC = b"MPFILES1\n"
_SIZE = struct.Struct("<Q")
_CHECKSUM_BYTES = 32
_RECORDS_PER_SAVE = 256


class ListedFile(msgspec.Struct, frozen=True):
    """A file that a batch of a source was the first to read, as Spark lists it: `path` is encoded as in a URI.

    `timestamp` is the modification time in milliseconds since 1970 UTC.
    """

    path: str
    timestamp: int
    batch: int = msgspec.field(name="batchId")

    @property
    def decoded(self) -> str:
        """The path without the encoding."""
        return unquote(self.path)


class _Stored(msgspec.Struct, frozen=True):
    """The lists by stream up to record `n`, whose digest is `digest`."""

    n: int
    digest: str
    lists: dict[str, FileList]


def file_list(files: Iterable[ListedFile]) -> FileList:
    """Returns files, which must be in the order of their batches, as columns."""
    found = [*files]
    paths = [one.path for one in found]
    folder = _common_folder(paths)
    names = "\n".join(path[len(folder) :] for path in paths)
    return FileList(folder, names, [one.timestamp for one in found], [one.batch for one in found])


def files_in(files: FileList) -> Iterator[ListedFile]:
    """Yields the files of a list in its order."""
    names = files.names.split("\n") if files.batches else []
    for name, time, batch in zip(names, files.times, files.batches, strict=True):
        yield ListedFile(files.folder + name, time, batch)


def joined(lists: Iterable[FileList]) -> FileList:
    """Returns lists one after another as one list.

    Batches up to the last one of the earlier lists are left out of a later list: it repeats them.
    """
    kept: list[tuple[FileList, int]] = []
    newest = -1
    for files in lists:
        first = bisect_right(files.batches, newest)
        if first < len(files.batches):
            kept.append((files, first))
            newest = files.batches[-1]
    folder = _common_folder([files.folder for files, _ in kept])
    names: list[str] = []
    for files, first in kept:
        rest, lines = files.folder[len(folder) :], files.names.split("\n")[first:]
        names += lines if not rest else [rest + line for line in lines]
    times = [time for files, first in kept for time in files.times[first:]]
    batches = [batch for files, first in kept for batch in files.batches[first:]]
    return FileList(folder, "\n".join(names), times, batches)


def _common_folder(paths: Sequence[str]) -> str:
    """The longest beginning that all paths have in common and that ends with a slash."""
    low, high = min(paths, default=""), max(paths, default="")
    same = next((at for at, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]), len(low))
    return low[: low.rfind("/", 0, same) + 1]


def load_lists(
    log: Log, manifests: Manifests, manifest: Manifest, seen: Mapping[int, Mapping[str, FileList]] | None = None
) -> dict[str, FileList]:  # fmt: skip
    """Returns the files that the sources have read up to the manifest's record, by stream.

    Reads the stored lists and the later records; if the stored lists are missing, damaged or of another log, all
    records. Nothing is read if no source is a source of files. `seen`: the lists in records that are not read again.

    Raises:
        CorruptError: a record is damaged.
    """
    if all(state.batch < 0 for state in manifest.known_sources.values()):
        return {}
    stored = _stored(log, manifests, manifest)
    lists = {stream: [files] for stream, files in stored.lists.items()}
    for n in range(stored.n + 1, manifest.n + 1):
        for stream, files in (_lists_in(log, n) if seen is None or n not in seen else seen[n]).items():
            lists.setdefault(stream, []).append(files)
    return {stream: joined(some) for stream, some in lists.items()}


class ListWriter:
    """Stores the lists every few hundred records, for one driver, which gives it each record that it appends.

    `lists` are those at `manifest`, of the driver's claim; they are stored at once.
    """

    def __init__(self, log: Log, manifests: Manifests, manifest: Manifest, lists: Mapping[str, FileList]) -> None:
        self._log, self._manifests = log, manifests
        self._seen: dict[int, dict[str, FileList]] = {}
        self._save(manifest, lists)

    def add(self, record: EpochRecord | ChangeRecord, manifest: Manifest) -> None:
        """Adds the newest record of `manifest`; if the lists cannot be stored now, a later record stores them."""
        self._seen[record.n] = _lists_of(record)
        if record.n - self._saved_n >= _RECORDS_PER_SAVE:
            with suppress(PlaceError):  # the record is in the log, so its epoch must not fail for derived files
                self._save(manifest, load_lists(self._log, self._manifests, manifest, self._seen))

    def _save(self, manifest: Manifest, lists: Mapping[str, FileList]) -> None:
        self._saved_n, self._seen = manifest.n, {}
        text = msgspec.json.encode(_Stored(manifest.n, manifest.digest, dict(lists)))
        content = b"".join((MAGIC, _SIZE.pack(len(text)), pack(text)))
        with suppress(PlaceError):  # the lists are derived: without them, the next start only reads more records
            self._manifests.save_files(content + hashlib.sha256(content).digest())


def _lists_in(log: Log, n: int) -> dict[str, FileList]:
    data = log.read(n)
    return {} if data is None else _lists_of(decode(data, log.describe(n)).record)


def _lists_of(record: Record) -> dict[str, FileList]:
    if not isinstance(record, EpochRecord):
        return {}
    return {stream: update.files for stream, update in record.sources.items() if update.files is not None}


_decoder = msgspec.json.Decoder(_Stored)


def _stored(log: Log, manifests: Manifests, manifest: Manifest) -> _Stored:
    """The stored lists if they are complete, of this log and not of a later record; otherwise lists before record 0."""
    none = _Stored(-1, "", {})
    data = manifests.files()
    content = b"" if data is None else data[:-_CHECKSUM_BYTES]
    if data is None or not content.startswith(MAGIC):
        return none
    if hashlib.sha256(content).digest() != data[-_CHECKSUM_BYTES:]:
        return none
    (size,) = _SIZE.unpack_from(content, len(MAGIC))
    packed = Packed(memoryview(content)[len(MAGIC) + _SIZE.size :], size)
    found = _decoder.decode(packed.read(0, size))
    if found.n > manifest.n:
        return none
    record = log.read(found.n)
    if record is None or decode(record, log.describe(found.n)).digest != found.digest:
        return none
    return found
