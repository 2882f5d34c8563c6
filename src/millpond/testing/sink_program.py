"""A small log with the rows of one query, and a program that applies it to a sink, so that a test can kill or stop it.

    python -m millpond.testing.sink_program FOLDER FORMAT PATH OPTIONS [SECONDS [ARGUMENTS]]

`OPTIONS` is a JSON object. After an error the program tries again for `SECONDS` seconds, as a pond does. `ARGUMENTS`
names a function, `module:function`, that returns further arguments of `sink_follower`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from millpond.errors import MillpondError
from millpond.followers.record_rows import RowsReader, section_reader
from millpond.followers.sinks.make_sink import sink_follower
from millpond.log.follower import Follower, close_follower
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.manifest import Manifest, fold
from millpond.log.port import Log
from millpond.log.records import ClaimRecord, Entry, EpochRecord, Receipt, Section, decode, encode
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.runtime.packets.row_batches import rows_stream
from millpond.state.ports.files import Files

EPOCHS, COUNT = 6, 50
"""Number of records with rows, and of rows in each; the records between them have no rows."""

LAST = 2 * EPOCHS - 1
"""The number of the newest record."""

COLUMNS = ("w", "k", "n")
"""The columns of a row: a window, a key that several rows have, and a number that no other row has."""

KEY = "__key"
"""The private column with the key of a row in the view."""

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("w", pa.struct([("start", UTC), ("end", UTC)])), ("k", pa.string()), ("n", pa.int64()), (KEY, pa.string())]
)


def query(sink: Sink, columns: Sequence[str] = COLUMNS) -> Query:
    """The query `q`, with a window, a key and a number per row."""
    output = tuple(one for one in (
        Named("w", Column("window", WINDOW)), Named("k", Column("key:0", "string")),
        Named("n", Column("agg:0", "bigint")),
    ) if one.name in columns)  # fmt: skip
    return Query("q", "s", "ts", 0, Sliding(60_000_000, 60_000_000), (Column("k", "string"),), (), output, sink=sink)


def rows(epoch: int) -> pa.RecordBatch:
    """The rows of an epoch; the column `n` counts all rows of the log from 0."""
    window = {"start": epoch * 60_000_000, "end": (epoch + 1) * 60_000_000}
    return pa.RecordBatch.from_pylist(
        [{"w": window, "k": f"k{n % 7}" if n else "k0", "n": epoch * COUNT + n, KEY: ""} for n in range(COUNT)],
        SCHEMA,
    )


def make_pond(folder: Path, columns: Sequence[str] = COLUMNS) -> Iterator[tuple[int, Entry, Manifest]]:
    """The records of the log in a folder: a claim, then epochs; they are written if they do not exist.

    `columns`: the columns of rows in a new log.
    """
    log = Log(LocalFolder(folder / "log"))
    if log.read(0) is None:
        _write(log, columns)
    return _records(log)


def _write(log: Log, columns: Sequence[str]) -> None:
    data = encode(ClaimRecord(n=0, writer="w", prev="", at=0, host="h", pid=1, version="1", spec="{}"))
    log.append(0, data)
    for n in range(1, LAST + 1):
        body = rows_stream([rows((n - 1) // 2).select([*columns, KEY])]) if n % 2 else b""
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
    for n in range(LAST + 1):
        entry = decode(log.read(n) or b"")
        manifest = fold(manifest, entry)
        yield n, entry, manifest


def entries(folder: Path) -> list[tuple[int, pa.Table]]:
    """The rows of each record that has rows."""
    reader = RowsReader(section_reader(Files(folder)))
    found = ((n, reader.table(entry, "q")) for n, entry, _ in make_pond(folder))
    return [(n, table) for n, table in found if table is not None]


def open_sink(folder: Path, sink: Sink, arguments: str = "") -> Follower:
    """The follower that writes the rows of the log in a folder to a sink."""
    more: dict[str, Any] = {}
    if arguments:
        module, _, function = arguments.partition(":")
        more = getattr(import_module(module), function)()
    columns = entries(folder)[0][1].column_names
    rows = RowsReader(section_reader(Files(folder)))
    return sink_follower(query(sink, columns), "p", rows, folder / "cursors", **more)


def sink_of(folder: Path, form: str, path: str | None = None, **options: str) -> Any:
    """Like `open_sink`, with the parts of a sink."""
    return open_sink(folder, Sink(form, path, tuple(sorted(options.items()))))


def bring(folder: Path, follower: Follower) -> None:
    """Apply the records that the follower does not have."""
    cursor = follower.cursor().n
    for n, entry, manifest in make_pond(folder):
        if n > cursor:
            follower.apply(n, entry, manifest)


def main(folder: str, form: str, path: str, options: str, patience: str = "0", arguments: str = "") -> None:
    """Apply the log to a sink; see the top of this module."""
    sink = Sink(form, path or None, tuple(sorted(json.loads(options).items())))
    follower = open_sink(Path(folder), sink, arguments)
    end = time.monotonic() + float(patience)
    while True:
        try:
            bring(Path(folder), follower)
            break
        except MillpondError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    close_follower(follower)


if __name__ == "__main__":
    main(*sys.argv[1:])
