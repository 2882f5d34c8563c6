"""Every kind of stored file, missing, empty, cut in half or with one bit flipped: what happens, and that the file is named.

Spark's checkpoint is in `tests/spark/test_repair.py`, cursors of sinks in `tests/unit/runtime/followers/test_ahead.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from millpond.control.dead_letters import parts
from millpond.control.function_file import VARIABLE, declared_functions
from millpond.control.wiring import open_truth
from millpond.errors import MillpondError
from millpond.ids import writer_token
from millpond.log.local import LocalFolder
from millpond.log.manifest import Manifests, load
from millpond.log.port import Log
from millpond.model.aggregates import Aggregate
from millpond.model.compiled import read_if_of
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.runtime.dead_letters import group_of
from millpond.runtime.followers.folder import FolderSink
from millpond.runtime.followers.formats import format_of
from millpond.runtime.followers.rows import RowsReader, section_reader
from millpond.runtime.followers.view import ViewFollower, lookup
from millpond.service.places import Places
from millpond.state import files
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.delta import check_deltas
from millpond.testing.local_pond import LocalPond

S = 1_000_000
STREAM = Stream("tx", (Field("ts", "timestamp"), Field("k", "string"), Field("v", "bigint")), "ts")
KEYS = 5000
"""So many that their table is cached."""


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x80
    path.write_bytes(data)


DAMAGE = (missing, empty, halved, one_bit)
Damage = Callable[[Path], None]


def asked() -> Query:
    keys = (Column("k", "string"),)
    output = (
        Named("k", Column("key:0", "string")), Named("w", Column("window", WINDOW)), Named("n", Column("agg:0", "bigint")),
    )  # fmt: skip
    return Query("q", "tx", "ts", 0, Sliding(10 * S, 10 * S), keys, (Aggregate("count", None),), output, serve=True)


def events(first_s: int, end_s: int) -> pa.Table:
    rows = [(second * S, f"key-{(second * 7919 + n) % KEYS}", n) for second in range(first_s, end_s) for n in range(900)]
    ts, k, v = zip(*rows, strict=True)
    return pa.table({"ts": pa.array(ts, pa.int64()), "k": pa.array(k), "v": pa.array(v, pa.int64())})


class Made(NamedTuple):
    """A pond in a folder, with a name, and the rows of its queries."""

    folder: Path
    pond: LocalPond
    rows: list[Any]


def read_rows(pond: LocalPond, folder: Path) -> list[Any]:
    reader, found = RowsReader(section_reader(folder)), list[Any]()
    for n in range(pond.manifest.n + 1):
        from millpond.log.records import decode

        table = reader.table(decode(pond.log.read(n) or b""), "q")
        found += [] if table is None else [tuple(map(str, row.values())) for row in table.to_pylist()]
    return sorted(found)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A pond of a claim and three epochs, whose deltas are files."""
    monkeypatch.setattr(files.Files, "inline_bytes", 0)
    folder = tmp_path / "pond"
    pond = LocalPond(folder, [STREAM], [asked()], token=writer_token())
    LocalFolder(folder).create("pond.id", writer_token().encode())
    for number in range(3):
        pond.epoch({"tx": [events(10 * number, 10 * number + 10)]})
    return Made(folder, pond, read_rows(pond, folder))


def goes_on(made: Made) -> list[Any]:
    """The rows after another driver has taken over, and has closed all windows."""
    pond = LocalPond(made.folder, [STREAM], None, token=writer_token())
    pond.drain()
    return read_rows(pond, made.folder)
