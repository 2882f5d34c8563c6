"""Adds up the counts of a pond without Spark, epoch by epoch, and reads sections of its deltas."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from millpond.log.cursor import Cursor, cursor_at
from millpond.log.manifest import Manifest
from millpond.log.records import Entry, EpochRecord, Receipt, Section


class Ledger:
    """A follower that adds up the counts of all epochs, and records how many sections were live after each record."""

    name = "ledger"

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}
        self.live: list[dict[str, int]] = []
        self.cell_bytes: list[int] = []
        self._cursor = Cursor()

    def cursor(self) -> Cursor:
        """See `Follower.cursor`."""
        return self._cursor

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`."""
        if n <= self._cursor.n:
            return
        self._cursor = cursor_at(record)
        if isinstance(record.record, EpochRecord):
            for query, found in record.record.counts.items():
                total = self.counts.setdefault(query, {})
                for name, value in found.items():
                    total[name] = total.get(name, 0) + value
        kinds: dict[str, int] = {}
        for section in manifest.sections.values():
            kinds[section.kind] = kinds.get(section.kind, 0) + 1
        self.live.append(kinds)
        self.cell_bytes.append(sum(s.size for s in manifest.sections.values() if s.kind == "segment"))


def read_section(folder: Path, receipt: Receipt, section: Section) -> pa.Buffer:
    """The bytes of a section whose delta is a file of the pond in `folder`."""
    data = (folder / (receipt.file or "")).read_bytes()
    return pa.py_buffer(data).slice(section.offset, section.size)
