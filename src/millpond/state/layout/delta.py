"""Deltas: everything that one instance adds in one epoch, as one file or, if small, as bytes in the epoch's record.

A delta is a sequence of sections, each aligned to 64 bytes so that it can be mapped in place. Its name contains the
token of the writer and Spark's task attempt id. So attempts never overwrite each other; the record names the valid one.
`check_deltas` compares the stored deltas with their digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from millpond.errors import CorruptError, unreadable
from millpond.log.manifest import Manifest, Manifests, load
from millpond.log.port import Log
from millpond.log.records import Receipt, Section, SectionKind, decode
from millpond.state.ports.files import Files

CheckFile: TypeAlias = Callable[[str, str], None]
"""Checks the file of a delta, given its name and its digest; CorruptError: it is missing or damaged."""

_ALIGNMENT = 64
_CHUNK_BYTES = 1 << 20


class DeltaWriter:
    """Collects the sections of one instance's delta, and the values that rows feed to parameters (`Receipt.fed`)."""

    def __init__(self) -> None:
        self._parts: list[bytes | pa.Buffer] = []
        self._sections: list[Section] = []
        self._size = 0
        self.fed: dict[str, tuple[int, list[str] | None]] = {}

    def add(
        self, kind: SectionKind, group: str, data: bytes | pa.Buffer, rows: int,
        info: Mapping[str, int | str | list[int]], supersedes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Appends a section of `rows` rows."""
        size = len(data) if isinstance(data, bytes) else data.size
        self._sections.append(Section(kind, group, self._size, size, rows, dict(info), supersedes))
        padding = -size % _ALIGNMENT
        self._parts += [data, b"\0" * padding]
        self._size += size + padding

    @property
    def sections(self) -> int:
        """The number of sections, which is the ordinal of the next one."""
        return len(self._sections)

    def finish(
        self, files: Files, number: int, instance: int, attempt: str, counts: dict[str, int]
    ) -> tuple[Receipt, bytes]:
        """Writes the delta to a file unless it is small; returns its receipt, and the bytes to store in the record."""
        digest = hashlib.sha256()
        for part in self._parts:
            digest.update(part)
        sections = tuple(self._sections)
        if self._size <= files.inline_bytes:
            body = b"".join(bytes(part) for part in self._parts)
            receipt = Receipt(instance, attempt, len(body), digest.hexdigest(), None, 0, sections, counts, fed=self.fed)
            return receipt, body
        name = f"delta/{number:020d}/{instance}-{attempt}.arrow"
        files.write(name, self._parts)
        return Receipt(instance, attempt, self._size, digest.hexdigest(), name, 0, sections, counts, fed=self.fed), b""


def check_deltas(check_file: CheckFile, log: Log, manifests: Manifests, manifest: Manifest) -> None:
    """Checks all deltas that `manifest` names; called once per driver. `check_file` is `check_delta`, at about 1 GB a
    second, or `check_listed`.

    The previous driver may still run and prune deltas that its epochs supersede; their absence is not an error.

    Raises:
        CorruptError: a file is missing or damaged.
    """
    files = {section.file: section.delta_digest for section in manifest.sections.values() if section.file is not None}
    records = sorted({section.n for section in manifest.sections.values() if section.file is None})
    with ThreadPoolExecutor(max_workers=4) as pool:
        found = [*pool.map(lambda named: _failure(check_file, *named), files.items())]
    found += [_failure(_check_body, log, n) for n in records]
    failed = {place: error for place, error in zip((*files, *records), found, strict=True) if error is not None}
    if not failed:
        return
    now = load(log, manifests, known=manifest).sections.values()
    for place in (section.n if section.file is None else section.file for section in now):
        if place in failed:
            raise failed[place]


def _failure(check: Callable[..., None], *of: object) -> CorruptError | None:
    try:
        check(*of)
    except CorruptError as error:
        return error
    return None


def _check_body(log: Log, n: int) -> None:
    if decode(log.read(n) or b"", log.describe(n)).body is None:
        raise CorruptError(f"{log.describe(n)} has no body any more.", "Restore the file from a copy.")


def check_delta(folder: Path, file: str, digest: str) -> None:
    """Compares the file of a delta in a pond's folder with its digest.

    Raises:
        CorruptError: the file is missing or damaged.
    """
    found, path = hashlib.sha256(), folder / file
    try:
        with path.open("rb") as handle:
            while chunk := handle.read(_CHUNK_BYTES):
                found.update(chunk)
    except OSError as error:
        raise unreadable(path, error) from error
    if found.hexdigest() != digest:
        raise CorruptError(f"{path} fails its digest.", "Restore the file from a copy.")


def check_listed(listed: Collection[str], where: str, file: str, digest: str) -> None:
    """Checks that a delta is among the `listed` objects; its digest is compared by each host that copies it.

    Raises:
        CorruptError: it is not.
    """
    if file not in listed:
        raise CorruptError(f"{where}/{file} does not exist; its digest was {digest}.", "Restore it from a copy.")
