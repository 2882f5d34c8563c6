"""Every store agrees with that in memory after any sequence of steps, replays, clears, drops and reopenings."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kit.inputs.examples import examples
from kit.servers.redis_servers import RedisCluster, RedisServer
from millpond.control.wiring.stores_and_followers import open_in_context
from millpond.placement.slots import hash_tags
from millpond.state.backends.kinds import BUILT_IN, StoreContext, StoreKind
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.backends.memory import MemoryStore
from millpond.state.backends.redis import RedisStore
from millpond.state.ports.store import NEVER, Apply, BucketStore, ReadRequest, Rows, TableWrite

BUCKETS = range(3)
TAGS = hash_tags(len(BUCKETS))
TABLES = ("a", "b", "é")
KEYS = (b"", b"k", b"k\x00", b"l", b"long" * 200, b"long" * 200 + b"!")

writes = st.lists(
    st.builds(
        lambda table, rows: TableWrite(table, [key for key, _ in rows], [value for _, value in rows]),
        st.sampled_from(TABLES),
        st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=40)), max_size=6),
    ),
    max_size=3,
)


FAR = 1 << 40
"""No bucket stands so high."""


class StoresAgree(RuleBasedStateMachine):
    """Drives all stores with the same calls and compares everything a caller can see."""

    openers: ClassVar[Sequence[Callable[[Path], BucketStore]]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.memory = MemoryStore()
        self.others = self.open()
        for store in self.others:
            store.clear_many(BUCKETS)
            for table in store.tables():
                store.drop_table(table, FAR)
        self.history: dict[int, list[Apply]] = {bucket: [] for bucket in BUCKETS}

    def open(self) -> list[BucketStore]:
        return [opener(Path(self.folder.name)) for opener in self.openers]

    def all(self, steps: Sequence[Apply]) -> None:
        expected = self.memory.apply_many(steps)
        for store in self.others:
            assert store.apply_many(steps) == expected

    @rule(batch=st.lists(st.tuples(st.sampled_from(BUCKETS), st.integers(1, 3), writes), max_size=4))
    def next_numbers(self, batch: list[tuple[int, int, list[TableWrite]]]) -> None:
        steps = []
        standing = {bucket: self.memory.applied(bucket) for bucket in BUCKETS}
        for bucket, stride, some in batch:
            steps.append(Apply(bucket, standing[bucket] + stride, standing[bucket], some))
            standing[bucket] += stride
            self.history[bucket].append(steps[-1])
        self.all(steps)

    @rule(bucket=st.sampled_from(BUCKETS), n=st.integers(0, 12), back=st.integers(1, 3), some=writes)
    def any_numbers(self, bucket: int, n: int, back: int, some: list[TableWrite]) -> None:
        self.all([Apply(bucket, n, max(NEVER, n - back), some)])

    @rule(bucket=st.sampled_from(BUCKETS))
    def replay(self, bucket: int) -> None:
        self.all(self.history[bucket][-3:])

    @rule(buckets=st.lists(st.sampled_from(BUCKETS), max_size=2))
    def clear(self, buckets: list[int]) -> None:
        for store in (self.memory, *self.others):
            store.clear_many(buckets)

    @rule(table=st.sampled_from(TABLES))
    def drop(self, table: str) -> None:
        for store in (self.memory, *self.others):
            store.drop_table(table, FAR)

    @rule()
    def reopen(self) -> None:
        self.close()
        self.others = self.open()

    @invariant()
    def same_to_every_caller(self) -> None:
        expected = _seen(self.memory)
        for store in self.others:
            assert _seen(store) == expected

    def close(self) -> None:
        for store in self.others:
            store.close()

    def teardown(self) -> None:
        self.close()
        self.folder.cleanup()


def _seen(store: BucketStore) -> tuple[object, ...]:
    wanted = [ReadRequest(bucket, table, KEYS) for bucket in BUCKETS for table in TABLES]
    scanned = [_plain(store.scan(bucket, table)) for bucket in BUCKETS for table in TABLES]
    return store.applied_many(BUCKETS), store.tables(), store.statistics().keys, store.read_many(wanted), scanned


def _plain(rows: Rows) -> tuple[int, list[tuple[bytes, bytes]]]:
    return rows.applied, sorted(zip(rows.keys, rows.values, strict=True))


def run_machine(openers: Sequence[Callable[[Path], BucketStore]]) -> None:
    machine = type("Machine", (StoresAgree,), {"openers": openers})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples(8), stateful_step_count=25))


def open_lmdb(folder: Path) -> BucketStore:
    return LmdbStore(folder / "view.lmdb", map_bytes=1 << 16)


@pytest.mark.parametrize("kind", [kind for kind in BUILT_IN if kind.takes == "path"], ids=lambda kind: kind.file)
def test_a_store_in_a_file_agrees(kind: StoreKind) -> None:
    run_machine([lambda folder: open_in_context(StoreContext(kind.schemes[0], "", TAGS, folder / kind.file))])


def test_lmdb_that_grows_agrees() -> None:
    run_machine([open_lmdb])


def test_all_stores_agree(redis_server: RedisServer, redis_cluster: RedisCluster) -> None:
    addresses = [f"{servers.url}?prefix=agree" for servers in (redis_server, redis_cluster)]
    run_machine([open_lmdb, *(lambda _folder, url=url: RedisStore(url, TAGS) for url in addresses)])
