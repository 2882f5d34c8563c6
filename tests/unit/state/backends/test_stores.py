"""Every store passes the conformance suite, and LMDB keeps its own promises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import lmdb
import pytest

from millpond.control.wiring.stores_and_followers import open_in_context
from millpond.errors import ForeignPondError, StoreError
from millpond.placement.slots import hash_tags
from millpond.state.backends.kinds import BUILT_IN, StoreContext, store_kind
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.backends.memory import MemoryStore
from millpond.state.ports.store import NEVER, Apply, BucketStore, ReadResult, TableWrite, Verdict
from millpond.testing.conformance import CHECKS, check_bucket_store

TAGS = hash_tags(1024)


@pytest.fixture(params=[*(kind.schemes[0] for kind in BUILT_IN), "lmdb with a tiny map", "redis cluster"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], BucketStore]]:
    """Makes new stores of every kind, as a pond opens them."""
    numbers = count()
    scheme, _, variant = request.param.partition(" ")
    kind = store_kind(f"{scheme}:" if scheme == "redis" else scheme)
    servers = request.getfixturevalue("redis_cluster" if variant else "redis_server") if scheme == "redis" else None

    def make() -> BucketStore:
        path = tmp_path / f"{next(numbers)}-{kind.file}" if kind.takes == "path" else None
        if "tiny" in variant:
            assert path is not None
            return LmdbStore(path, map_bytes=1 << 16)
        if servers is not None:
            servers.flush()
        return open_in_context(StoreContext(scheme if servers is None else servers.url, "", TAGS, path))

    yield make


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.strip("_"))
def test_conforms(check: Callable[[BucketStore], None], make_store: Callable[[], BucketStore]) -> None:
    store = make_store()
    try:
        check(store)
    finally:
        store.close()


def test_whole_suite_closes_what_it_opens(make_store: Callable[[], BucketStore]) -> None:
    check_bucket_store(make_store)


def test_the_highest_bucket(tmp_path: Path) -> None:
    for store in (MemoryStore(), LmdbStore(tmp_path / "v.lmdb")):
        store.apply(65535, 0, NEVER, [TableWrite("t", [b"k"], [b"v"])])
        assert (store.read(65535, "t", [b"k"]).values, store.applied(65534)) == ([b"v"], NEVER)
        store.close()


def test_steps_and_writes_are_checked() -> None:
    with pytest.raises(ValueError, match="cannot go"):
        Apply(0, n=3, previous=3)
    with pytest.raises(ValueError, match="2 keys and 1 values"):
        TableWrite("t", [b"a", b"b"], [b"c"])


def test_reopening_keeps_rows_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "made" / "view.lmdb"
    store = LmdbStore(path, owner="pond")
    store.apply(7, 3, NEVER, [TableWrite("t", [b"k"], [b"v"])])
    store.close()
    again = LmdbStore(path, owner="pond")
    assert again.read(7, "t", [b"k"]) == ReadResult(3, [b"v"])
    again.close()


def test_same_file_is_not_opened_twice_in_a_process(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "v.lmdb")
    (tmp_path / "link.lmdb").symlink_to(tmp_path / "v.lmdb")
    for path in (tmp_path / "v.lmdb", tmp_path / "." / "v.lmdb", tmp_path / "link.lmdb"):
        for read_only in (True, False):
            with pytest.raises(StoreError, match="open in this process"):
                LmdbStore(path, read_only=read_only)
    store.close()
    LmdbStore(tmp_path / "v.lmdb").close()


def test_foreign_and_unknown_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.lmdb"
    LmdbStore(path, owner="mine").close()
    with pytest.raises(ForeignPondError, match="mine"):
        LmdbStore(path, owner="yours")
    LmdbStore(path).close()
    with lmdb.open(str(path), subdir=False, max_dbs=2) as env, env.begin(write=True) as transaction:
        transaction.put(b"v", b"9", db=env.open_db(b"meta", txn=transaction))
    with pytest.raises(StoreError, match="layout b'9'"):
        LmdbStore(path, owner="mine")
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="delete the file"):
        LmdbStore(path)


def test_reading_needs_a_file_and_never_writes(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        LmdbStore(tmp_path / "v.lmdb", read_only=True)
    store = LmdbStore(tmp_path / "v.lmdb")
    store.apply(0, 0, NEVER, [TableWrite("t", [b"k"], [b"v"])])
    store.close()
    reader = LmdbStore(tmp_path / "v.lmdb", read_only=True)
    assert reader.read(0, "t", [b"k"]) == ReadResult(0, [b"v"])
    for write in (lambda: reader.apply(0, 1, 0), lambda: reader.clear(0), lambda: reader.drop_table("t", 9)):
        with pytest.raises(StoreError, match="opened to read"):
            write()
    reader.close()


def test_long_table_names_are_refused(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "v.lmdb")
    with pytest.raises(StoreError, match="shorter"):
        store.apply(0, 0, NEVER, [TableWrite("n" * 401, [b"k"], [b"v"])])
    assert store.applied(0) == NEVER
    store.close()


READER = """
import sys
import threading
from pathlib import Path
from millpond.state.backends.lmdb import LmdbStore
store = LmdbStore(Path(sys.argv[1]), read_only=True, map_bytes=1 << 16)
for line in sys.stdin:
    found = store.read(0, "t", [b"k"])
    print(found.applied, len(found.values[0]), flush=True)
"""


def test_another_process_reads_while_the_map_grows(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "v.lmdb", map_bytes=1 << 16)
    store.apply(0, 0, NEVER, [TableWrite("t", [b"k"], [b"v"])])
    with _python(READER, str(tmp_path / "v.lmdb")) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        for n, size in enumerate((1, 100_000, 2_000_000)):
            if n:
                store.apply(0, n, n - 1, [TableWrite("t", [b"k"], [b"v" * size])])
            reader.stdin.write("\n")
            reader.stdin.flush()
            assert reader.stdout.readline().split() == [str(n), str(size)]
        reader.stdin.close()
        assert reader.wait(120) == 0
    store.close()


WRITER = """
import sys
import threading
from pathlib import Path
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.ports.store import Apply, TableWrite
store = LmdbStore(Path(sys.argv[1]), map_bytes=1 << 20)
keys = [b"%06d" % i for i in range(3000)]
n = store.applied(0)
while True:
    n += 1
    value = b"%d" % n
    store.apply_many([Apply(b, n, n - 1, [TableWrite("t", keys, [value] * len(keys))]) for b in range(4)])
    print(n, flush=True)
"""


@pytest.mark.parametrize("after", [1, 3, 8])
def test_killed_writer_leaves_a_committed_number(tmp_path: Path, after: int) -> None:
    path = tmp_path / "v.lmdb"
    with _python(WRITER, str(path)) as writer:
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(after)]
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait(120)
    store = LmdbStore(path)
    numbers = store.applied_many(range(4))
    assert len(set(numbers)) == 1 and numbers[0] >= said[-1]
    for bucket in range(4):
        rows = store.scan(bucket, "t")
        assert len(rows.values) == 3000 and set(rows.values) == {b"%d" % numbers[0]}
    assert store.apply(0, numbers[0] + 1, numbers[0]).verdict is Verdict.APPLIED
    store.close()


def _python(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


class SlowToWake(threading.Event):
    """An event whose waiting thread wakes up at its time limit, when the other thread has just ended."""

    def wait(self, timeout: float | None = None) -> bool:
        assert super().wait(120)
        for thread in threading.enumerate():
            if thread.name == "millpond-lmdb-open":
                thread.join(120)
        return False


def test_a_lock_that_comes_at_the_time_limit_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SimpleNamespace(**{**vars(threading), "Event": SlowToWake})
    monkeypatch.setattr("millpond.state.backends.lmdb.threading", slow)
    for _ in range(2):
        LmdbStore(tmp_path / "v.lmdb").close()
