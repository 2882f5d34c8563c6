"""A pond of a few records, made by hand, for the tests of followers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millpond.followers.record_rows import RowsReader
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.manifest import Manifest, Manifests, fold, load
from millpond.log.port import Log
from millpond.log.records import ClaimRecord, Entry, EpochRecord, Receipt, Section, SectionKind, decode, encode

UTC = pa.timestamp("us", "UTC")
Rows = Sequence[Mapping[str, Any]]


class HandMadePond:
    """Appends records to a real log; deltas with rows are files, or inline on request."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = Log(LocalFolder(path / "log"))
        self.manifests = Manifests(LocalFolder(path / "manifest"))
        self.entries: list[Entry] = []
        self.at: list[Manifest] = []
        self.reads, self.writer = 0, "w"
        self.rows = RowsReader(self.read_section)

    def read_section(self, n: int, receipt: Receipt, section: Section) -> pa.Buffer:
        self.reads += 1
        assert receipt.file is not None
        data = (self.path / receipt.file).read_bytes()
        return pa.py_buffer(data[section.offset : section.offset + section.size])

    def head(self) -> Manifest:
        return load(self.log, self.manifests)

    def claim(self) -> int:
        last = self._last()
        record = ClaimRecord(
            n=last.n + 1, writer=self.writer, prev=last.digest, at=0, host="h", pid=1, version="1", spec="{}"
        )
        return self._append(encode(record))

    def epoch(
        self,
        rows: Mapping[str, Rows] | None = None,
        *,
        instances: int = 1,
        inline: bool = False,
        quarantined: Mapping[str, str] | None = None,
        retired: Sequence[str] = (),
        late: Mapping[str, Rows] | None = None,
    ) -> int:
        """Append an epoch; the rows, and late rows, of each query are dealt to the instances in contiguous runs."""
        last = self._last()
        receipts, body = [], b""
        for instance in range(instances):
            delta, sections = b"", []
            of_kinds: list[tuple[SectionKind, tuple[str, Rows]]] = [("rows", one) for one in (rows or {}).items()]
            of_kinds += [("late", one) for one in (late or {}).items()]
            for kind, (query, some) in of_kinds:
                share = -(-len(some) // instances)
                part = some[instance * share : (instance + 1) * share]
                data = stream(table_of(part)) if part else b""
                sections.append(Section(kind, query, len(delta), len(data), len(part)))
                delta += data
            file = f"delta/{last.n + 1:020d}/{instance}-w-0.arrow"
            if not inline:
                (self.path / file).parent.mkdir(parents=True, exist_ok=True)
                (self.path / file).write_bytes(delta)
            receipts.append(
                Receipt(
                    instance=instance,
                    attempt="w-0",
                    size=len(delta),
                    digest=hashlib.sha256(delta).hexdigest(),
                    file=None if inline else file,
                    at=len(body),
                    sections=tuple(sections),
                )
            )
            body += delta if inline else b""
        record = EpochRecord(
            n=last.n + 1,
            writer=self.writer,
            prev=last.digest,
            at=0,
            spark_query="q",
            batch=last.batch + 1,
            start={},
            end={},
            # Receipts may be collected in any order; followers go by instance.
            receipts=tuple(reversed(receipts)),
            quarantined=dict(quarantined or {}),
            retired=tuple(retired),
        )
        return self._append(encode(record, body))

    def lose(self, first: int) -> None:
        """The newest records, from `first` on, are no longer in the log; manifests that are newer stay."""
        for n in range(first, len(self.entries)):
            (self.path / "log" / f"{n:020d}").unlink()
        del self.entries[first:], self.at[first:]

    def _append(self, data: bytes) -> int:
        entry = decode(data)
        self.log.append(entry.n, data)
        self.at.append(fold(self._last(), entry))
        self.entries.append(entry)
        return entry.n

    def _last(self) -> Manifest:
        return self.at[-1] if self.at else Manifest()

    def feed(self, follower: Any, first: int | None = None, last: int | None = None) -> None:
        """Apply records to a follower from its cursor, or from `first`, to the head, or to `last`."""
        start = follower.cursor().n + 1 if first is None else first
        for n in range(start, len(self.entries) if last is None else last + 1):
            follower.apply(n, self.entries[n], self.at[n])


def row_of(
    customer: str, total: float | None, end_us: int = 60_000_000, bucket: int = 0, size_us: int = 60_000_000
) -> dict[str, Any]:
    return {
        "customer": customer,
        "w": {"start": end_us - size_us, "end": end_us},
        "total": total,
        "__key": f'["{customer}"]',
        "__bucket": bucket,
        "__end": end_us,
    }


SCHEMA = pa.schema(
    [
        ("customer", pa.string()),
        ("w", pa.struct([("start", UTC), ("end", UTC)])),
        ("total", pa.float64()),
        ("__key", pa.string()),
        ("__bucket", pa.int32()),
        ("__end", pa.int64()),
    ]
)


def table_of(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist([dict(one) for one in rows], SCHEMA)


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data
