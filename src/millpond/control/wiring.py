"""The one place that names concrete adapters: a folder and a store's address become the parts of a pond."""

from __future__ import annotations

import hashlib
import mmap
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from millpond.errors import CorruptError, ForeignPondError, PlaceError, StoreError
from millpond.ids import writer_token
from millpond.log.local import LocalFolder
from millpond.log.manifest import Manifest, Manifests, load
from millpond.log.port import Log
from millpond.log.protocol import Writer
from millpond.log.race import check_create_if_absent
from millpond.log.records import Receipt, Section
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.windows import length_us
from millpond.runtime.followers.prune import PruneFollower
from millpond.runtime.followers.rows import RowsReader
from millpond.runtime.followers.runner import Runner
from millpond.runtime.followers.sinks import MemoryTables, sink_follower
from millpond.runtime.followers.view import ViewFollower
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.backends.memory import MemoryStore
from millpond.state.store import BucketStore

IDENTITY = "pond.id"
"""File that names the pond; its presence is what makes a folder a pond's."""

GRACE_SECONDS = 3600.0

_REMEMBERED_FILES = 1024


class Truth(NamedTuple):
    """The log of a pond and what was found in it."""

    folder: Path
    pond: str
    log: Log
    manifests: Manifests
    manifest: Manifest


class Followers(NamedTuple):
    """Everything that follows the log in this process."""

    runner: Runner
    tables: MemoryTables
    late_tables: MemoryTables
    store: BucketStore | None
    prune: PruneFollower

    def close(self, timeout: float = 30.0) -> None:
        """Stop the thread and close the store; one that hangs in a store is left behind with it."""
        if self.runner.stop(timeout) and self.store is not None:
            self.store.close()

    def followed(self) -> int:
        """The record that every follower whose rows may not go yet has applied."""
        cursors = [cursor for name, cursor in self.runner.cursors().items() if name != self.prune.name]
        return min(cursors, default=1 << 62)


def open_truth(folder: Path) -> Truth:
    """The pond in `folder`, made if the folder is new or empty.

    Raises:
        ForeignPondError: the folder holds something else.
        PlaceError: it cannot be written, or cannot create-if-absent.
    """
    root = LocalFolder(folder)
    identity = root.read(IDENTITY)
    if identity is None:
        if holds_something(folder):
            raise ForeignPondError(f"{folder} holds files, but no pond.", "Name a new or empty folder.")
        root.create(IDENTITY, writer_token().encode())
        identity = root.read(IDENTITY) or b""
    records = LocalFolder(folder / "log")
    check_create_if_absent(records, writer_token())
    log, manifests = Log(records), Manifests(LocalFolder(folder / "manifest"))
    return Truth(folder, identity.decode(), log, manifests, load(log, manifests))


def holds_something(folder: Path) -> bool:
    """Whether a folder holds more than hidden files; a missing one does not.

    Raises:
        PlaceError: it cannot be read.
    """
    try:
        return any(not entry.name.startswith(".") for entry in folder.iterdir())
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PlaceError(f"{folder} cannot be read: {error}.", "Name a folder that you may write.") from error


def new_writer(truth: Truth) -> Writer:
    """A driver's right to append to the log, not yet claimed."""
    return Writer(writer_token(), truth.manifest)


def section_reader(folder: Path) -> Callable[[int, Receipt, Section], pa.Buffer]:
    """Reads sections of delta files, for followers; a file is compared with its digest when it is first read."""
    checked: OrderedDict[str, None] = OrderedDict()

    def read(_n: int, receipt: Receipt, section: Section) -> pa.Buffer:
        path = folder / str(receipt.file)
        with open(path, "rb") as file:
            mapped = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if path.name not in checked:
            if hashlib.sha256(mapped).hexdigest() != receipt.digest:
                raise CorruptError(f"{path} fails its digest.", "Restore the file from a copy.")
            checked[path.name] = None
            if len(checked) > _REMEMBERED_FILES:
                checked.popitem(last=False)
        return mapped.slice(section.offset, section.size)

    return read


def open_store(address: str, truth: Truth, *, read_only: bool = False) -> BucketStore:
    """The key-value store at `address`: `memory`, `lmdb` (in the pond's folder) or `lmdb:PATH`.

    Raises:
        StoreError: no such store is known, or it cannot be opened.
    """
    if address == "memory":
        return MemoryStore()
    path = store_file(address, truth)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        return LmdbStore(path, owner=truth.pond, read_only=read_only)
    raise StoreError(f"There is no store {address!r}.", "Use `lmdb`, `lmdb:PATH` or `memory`.")


def store_file(address: str, truth: Truth) -> Path | None:
    """The file of the store at `address`, if it is one that is a file."""
    kind, _, place = address.partition(":")
    if kind != "lmdb":
        return None
    return Path(place) if place else truth.folder / "view" / "rows.lmdb"


def follow(
    truth: Truth, queries: Sequence[AnyQuery], buckets: int, store: str, grace_seconds: float = GRACE_SECONDS
) -> Followers:
    """Sinks, view and pruning, not yet started.

    Raises:
        UnsupportedQuery, ForeignPondError, PlaceError, StoreError: a sink or the store does not fit.
    """
    read = section_reader(truth.folder)
    rows, tables = RowsReader(read), MemoryTables()
    late_rows, late_tables = RowsReader(read, "late"), MemoryTables()
    cursors = truth.folder / "cursors"
    runner = Runner(truth.log, truth.manifests)
    for query in queries:
        if query.sink.format != "noop":
            runner.add(sink_follower(query, truth.pond, rows, cursors, memory=tables))
        if query.late_sink is not None:
            runner.add(sink_follower(query, truth.pond, late_rows, cursors, memory=late_tables, late=True))
    served = {query.name: length_us(query.window) for query in queries if isinstance(query, Query) and query.serve}
    opened = None
    if served:
        opened = open_store(store, truth)
        runner.add(
            ViewFollower(opened, rows, buckets, lambda: served, lambda: load(truth.log, truth.manifests))
        )
    prune = PruneFollower(
        truth.folder, lambda: _lowest(runner), grace_seconds, start=truth.manifest.n
    )
    runner.add(prune)
    return Followers(runner, tables, late_tables, opened, prune)


def _lowest(runner: Runner) -> int:
    cursors = [cursor for name, cursor in runner.cursors().items() if name != PruneFollower.name]
    return min(cursors, default=1 << 62)
