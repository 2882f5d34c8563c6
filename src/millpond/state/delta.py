"""Deltas: all that one instance adds in one epoch, as one file (or, when small, bytes in the epoch's record).

A delta is a row of sections, each at a multiple of 64 bytes so that it can be mapped in place. Its name carries
the writer's token and Spark's task attempt id: attempts never overwrite each other, the record says which one counts.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from millpond.errors import CorruptError
from millpond.log.manifest import Manifest
from millpond.log.port import Log
from millpond.log.records import MAGIC, Receipt, Section, SectionKind, decode

INLINE_BYTES = 256 * 1024
"""A delta below this size travels in its receipt, so that a tiny epoch is one file in all."""

_ALIGNMENT = 64
_CHUNK_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")


class DeltaWriter:
    """Collects the sections of one instance's delta."""

    def __init__(self) -> None:
        self._parts: list[bytes | pa.Buffer] = []
        self._sections: list[Section] = []
        self._size = 0

    def add(
        self, kind: SectionKind, group: str, data: bytes | pa.Buffer, rows: int,
        info: Mapping[str, int | str | list[int]], supersedes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Append a section of `rows` rows."""
        size = len(data) if isinstance(data, bytes) else data.size
        self._sections.append(Section(kind, group, self._size, size, rows, dict(info), supersedes))
        padding = -size % _ALIGNMENT
        self._parts += [data, b"\0" * padding]
        self._size += size + padding

    @property
    def sections(self) -> int:
        """How many sections there are: the ordinal of the next one."""
        return len(self._sections)

    def finish(
        self, folder: Path, number: int, instance: int, attempt: str, counts: dict[str, int]
    ) -> tuple[Receipt, bytes]:
        """Write the delta (unless it is small) and return its receipt and the bytes to travel inside the record."""
        digest = hashlib.sha256()
        for part in self._parts:
            digest.update(part)
        sections = tuple(self._sections)
        if self._size <= INLINE_BYTES:
            body = b"".join(bytes(part) for part in self._parts)
            return Receipt(instance, attempt, len(body), digest.hexdigest(), None, 0, sections, counts), body
        name = f"delta/{number:020d}/{instance}-{attempt}.arrow"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            for part in self._parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        return Receipt(instance, attempt, self._size, digest.hexdigest(), name, 0, sections, counts), b""


def check_deltas(folder: Path, log: Log, manifest: Manifest) -> None:
    """Compare everything that `manifest` still names with its digests: once per driver, at about 1 GB a second.

    Raises:
        CorruptError: a file is missing or damaged.
    """
    files = {section.file: section.delta_digest for section in manifest.sections.values() if section.file is not None}
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(lambda named: check_delta(folder / named[0], named[1]), files.items()))
    for n in sorted({section.n for section in manifest.sections.values() if section.file is None}):
        decode(log.read(n) or b"")


def check_delta(path: Path, digest: str) -> None:
    """Compare a delta's file with its digest.

    Raises:
        CorruptError: it is missing or damaged.
    """
    found = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                found.update(chunk)
    except OSError as error:
        raise CorruptError(f"{path} cannot be read: {error}.", "Restore the file from a copy.") from error
    if found.hexdigest() != digest:
        raise CorruptError(f"{path} fails its digest.", "Restore the file from a copy.")


class Files:
    """Files of a pond's folder mapped into memory, each once; sections are read in place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mapped: dict[str, pa.Buffer] = {}

    def hold(self, file: str, data: pa.Buffer) -> None:
        """Let a file that is not written yet be read."""
        self._mapped[file] = data

    def read(self, file: str, offset: int, size: int) -> pa.Buffer:
        """`size` bytes at `offset`.

        Raises:
            CorruptError: the file is missing or too short.
        """
        if not size:
            return pa.py_buffer(b"")
        buffer = self._mapped.get(file)
        if buffer is None:
            buffer = self._mapped[file] = self._map(file)
        if offset + size > buffer.size:
            raise CorruptError(f"{file} ends before byte {offset + size}.", "Restore the file from a copy.")
        return buffer.slice(offset, size)

    def read_inline(self, record: str, offset: int, size: int) -> pa.Buffer:
        """`size` bytes at `offset` of the body of a record's file, copied so that they are aligned.

        Raises:
            CorruptError: the file is missing or too short.
        """
        start = len(MAGIC) + _LENGTH.size
        (header_bytes,) = _LENGTH.unpack(self.read(record, len(MAGIC), _LENGTH.size))
        aligned = pa.allocate_buffer(size)
        memoryview(aligned)[:] = memoryview(self.read(record, start + header_bytes + offset, size))
        return aligned

    def _map(self, file: str) -> pa.Buffer:
        path = self._folder / file
        try:
            with open(path, "rb") as handle:
                return pa.py_buffer(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise CorruptError(f"{path} cannot be read: {error}.", "Restore the file from a copy.") from error
