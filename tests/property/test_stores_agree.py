"""The memory and the LMDB store agree after any sequence of steps, replays, clears, drops and reopenings."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millpond.state.backends.lmdb import LmdbStore
from millpond.state.backends.memory import MemoryStore
from millpond.state.store import NEVER, Apply, Rows, TableWrite, Wanted

BUCKETS = range(3)
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


class StoresAgree(RuleBasedStateMachine):
    """Drives both stores with the same calls and compares everything a caller can see."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "view.lmdb"
        self.memory = MemoryStore()
        self.lmdb = LmdbStore(self.path, map_bytes=1 << 16)
        self.history: dict[int, list[Apply]] = {bucket: [] for bucket in BUCKETS}

    def both(self, steps: Sequence[Apply]) -> None:
        assert self.memory.apply_many(steps) == self.lmdb.apply_many(steps)

    @rule(batch=st.lists(st.tuples(st.sampled_from(BUCKETS), st.integers(1, 3), writes), max_size=4))
    def next_numbers(self, batch: list[tuple[int, int, list[TableWrite]]]) -> None:
        steps = []
        standing = {bucket: self.memory.applied(bucket) for bucket in BUCKETS}
        for bucket, stride, some in batch:
            steps.append(Apply(bucket, standing[bucket] + stride, standing[bucket], some))
            standing[bucket] += stride
            self.history[bucket].append(steps[-1])
        self.both(steps)

    @rule(bucket=st.sampled_from(BUCKETS), n=st.integers(0, 12), back=st.integers(1, 3), some=writes)
    def any_numbers(self, bucket: int, n: int, back: int, some: list[TableWrite]) -> None:
        self.both([Apply(bucket, n, max(NEVER, n - back), some)])

    @rule(bucket=st.sampled_from(BUCKETS))
    def replay(self, bucket: int) -> None:
        self.both(self.history[bucket][-3:])

    @rule(buckets=st.lists(st.sampled_from(BUCKETS), max_size=2))
    def clear(self, buckets: list[int]) -> None:
        self.memory.clear_many(buckets)
        self.lmdb.clear_many(buckets)

    @rule(table=st.sampled_from(TABLES))
    def drop(self, table: str) -> None:
        self.memory.drop_table(table)
        self.lmdb.drop_table(table)

    @rule()
    def reopen(self) -> None:
        self.lmdb.close()
        self.lmdb = LmdbStore(self.path, map_bytes=1 << 16)

    @invariant()
    def same_to_every_caller(self) -> None:
        assert self.memory.applied_many(BUCKETS) == self.lmdb.applied_many(BUCKETS)
        assert self.memory.tables() == self.lmdb.tables()
        assert self.memory.statistics().keys == self.lmdb.statistics().keys
        wanted = [Wanted(bucket, table, KEYS) for bucket in BUCKETS for table in TABLES]
        assert self.memory.read_many(wanted) == self.lmdb.read_many(wanted)
        for bucket in BUCKETS:
            for table in TABLES:
                assert _plain(self.memory.scan(bucket, table)) == _plain(self.lmdb.scan(bucket, table))

    def teardown(self) -> None:
        self.lmdb.close()
        self.folder.cleanup()


def _plain(rows: Rows) -> tuple[int, list[tuple[bytes, bytes]]]:
    return rows.applied, sorted(zip(rows.keys, rows.values, strict=True))


TestStoresAgree = StoresAgree.TestCase
TestStoresAgree.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
