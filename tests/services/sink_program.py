"""Brings a sink to the head of a log, as a program to be killed: `FOLDER FORMAT PATH OPTIONS`, or stopped: it tries
again after an error, as a pond does, where a fifth word says for how many seconds.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from millpond.errors import MillpondError
from millpond.followers.record_rows import RowsReader, section_reader
from millpond.followers.sinks.make_sink import sink_follower
from millpond.log.local import LocalFolder
from millpond.log.manifest import Manifest, fold
from millpond.log.port import Log
from millpond.log.records import ClaimRecord, Entry, EpochRecord, Receipt, Section, decode, encode
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.runtime.packets.row_batches import rows_stream

EPOCHS, COUNT = 6, 50
"""Records with rows, and rows of each; every second record has none."""

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("w", pa.struct([("start", UTC), ("end", UTC)])), ("k", pa.string()), ("n", pa.int64()), ("__key", pa.string())]
)


def query(sink: Sink) -> Query:
    output = (
        Named("w", Column("window", WINDOW)), Named("k", Column("key:0", "string")),
        Named("n", Column("agg:0", "bigint")),
    )  # fmt: skip
    return Query("q", "s", "ts", 0, Sliding(60_000_000, 60_000_000), (Column("k", "string"),), (), output, sink=sink)


def rows(epoch: int) -> pa.RecordBatch:
    window = {"start": epoch * 60_000_000, "end": (epoch + 1) * 60_000_000}
    return pa.RecordBatch.from_pylist(
        [{"w": window, "k": f"k{n % 7}" if n else "k0", "n": epoch * COUNT + n, "__key": ""} for n in range(COUNT)],
        SCHEMA,
    )


def make_pond(folder: Path) -> Iterator[tuple[int, Entry, Manifest]]:
    """The records of the log, written if they are not there: a claim, then epochs."""
    log = Log(LocalFolder(folder / "log"))
    if log.read(0) is None:
        _write(log)
    return _records(log)


def _write(log: Log) -> None:
    data = encode(ClaimRecord(n=0, writer="w", prev="", at=0, host="h", pid=1, version="1", spec="{}"))
    log.append(0, data)
    for n in range(1, 2 * EPOCHS):
        body = rows_stream([rows((n - 1) // 2)]) if n % 2 else b""
        sections = (Section("rows", "q", 0, len(body), COUNT),) if body else ()
        receipt = Receipt(0, "a", len(body), hashlib.sha256(body).hexdigest(), None, 0, sections)
        record = EpochRecord(
            n=n, writer="w", prev=decode(data).digest, at=0, spark_query="q", batch=n, start={}, end={},
            receipts=(receipt,),
        )  # fmt: skip
        data = encode(record, body)
        log.append(n, data)


def _records(log: Log) -> Iterator[tuple[int, Entry, Manifest]]:
    manifest = Manifest()
    for n in range(2 * EPOCHS):
        entry = decode(log.read(n) or b"")
        manifest = fold(manifest, entry)
        yield n, entry, manifest


def entries(folder: Path) -> list[tuple[int, pa.Table]]:
    """The rows of each record that has some."""
    reader = RowsReader(section_reader(folder))
    found = ((n, reader.table(entry, "q")) for n, entry, _ in make_pond(folder))
    return [(n, table) for n, table in found if table is not None]


def sink_of(folder: Path, form: str, path: str | None = None, **options: str) -> Any:
    asked = query(Sink(form, path, tuple(sorted(options.items()))))
    return sink_follower(asked, "p", RowsReader(section_reader(folder)), folder / "cursors")


def bring(folder: Path, follower: Any) -> None:
    """Apply what the follower has not."""
    cursor = follower.cursor().n
    for n, entry, manifest in make_pond(folder):
        if n > cursor:
            follower.apply(n, entry, manifest)


def main(folder: str, form: str, path: str, options: str, patience: str = "0") -> None:
    follower = sink_of(Path(folder), form, path or None, **json.loads(options))
    end = time.monotonic() + float(patience)
    while True:
        try:
            bring(Path(folder), follower)
            break
        except MillpondError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    if hasattr(follower, "close"):
        follower.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
