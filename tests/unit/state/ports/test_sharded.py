"""Several stores as one: it behaves like any store, routes may change, and readers of an empty bucket learn of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from millpond.errors import StoreError
from millpond.followers.view.move_rows import copy, copy_buckets, forget
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.backends.memory import MemoryStore
from millpond.state.ports.sharded import Places, ShardedStore
from millpond.state.ports.store import NEVER, Apply, BucketStore, Outcome, ReadResult, Rows, TableWrite
from millpond.testing.conformance import check_bucket_store

SPLIT: Places = tuple("ab"[bucket % 3 == 0] for bucket in range(1024))


def made(places: Places = SPLIT) -> ShardedStore:
    return ShardedStore(lambda _place: MemoryStore(), places)


def written(text: bytes, table: str = "t") -> list[TableWrite]:
    return [TableWrite(table, [b"k"], [text])]


def test_several_stores_are_a_store() -> None:
    check_bucket_store(made)
    check_bucket_store(lambda: made(("a",) * 1024))


def test_a_bucket_is_where_its_place_says(tmp_path: Path) -> None:
    stores: dict[str, BucketStore] = {"a": MemoryStore(), "b": LmdbStore(tmp_path / "rows.lmdb")}
    store = ShardedStore(stores.__getitem__, ("a", "a", "b", "b"))
    for bucket in range(4):
        store.apply(bucket, 7, NEVER, written(b"%d" % bucket))
    assert [stores["a"].applied(bucket) for bucket in range(4)] == [7, 7, NEVER, NEVER]
    assert store.shards(range(4)) == ["memory", "memory", *[str(tmp_path / "rows.lmdb")] * 2]
    assert store.statistics().keys == 4 and store.tables() == {"t"}
    found = store.scan_many([3, 0, 2], "t")
    assert [rows.values for rows in found] == [[b"3"], [b"0"], [b"2"]]
    store.route(("a", "b", "b", "b"))
    assert store.applied_many([1, 2, 0]) == [NEVER, 7, 7]
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.applied_many([0])


def test_a_reader_of_an_empty_bucket_looks_where_it_is_now() -> None:
    stores: dict[str, BucketStore] = {"a": MemoryStore(), "b": MemoryStore()}
    refreshes, now = [], [("a", "a")]

    def fresh() -> Places:
        refreshes.append(1)
        return now[0]

    stores["a"].apply(0, 3, NEVER, written(b"x"))
    reader = ShardedStore(stores.__getitem__, ("a", "a"), fresh)
    assert reader.read(0, "t", [b"k"]) == ReadResult(3, [b"x"]) and not refreshes
    assert reader.read(1, "t", [b"k"]) == ReadResult(NEVER, [None]) and refreshes, "it is nowhere else"
    copy_buckets(stores["a"], stores["b"], [0])
    now[0] = ("b", "a")
    assert forget(stores["a"], [0, 1]) == 1
    assert reader.read(0, "t", [b"k"]) == ReadResult(3, [b"x"])
    stale = ShardedStore(stores.__getitem__, ("a", "a"), fresh)
    assert stale.scan(0, "t") == Rows(3, [b"k"], [b"x"])


class Moves(MemoryStore):
    """Advances after each read of a table, a given number of times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def scan(self, bucket: int, table: str) -> Rows:
        found = super().scan(bucket, table)
        if self.times:
            self.times -= 1
            self.apply(bucket, found.applied + 1, found.applied, written(b"%d" % found.applied, table))
        return found


def test_a_copy_is_of_one_moment_and_takes_the_place_of_an_older_one() -> None:
    source, target = Moves(3), MemoryStore()
    source.apply(0, 1, NEVER, [*written(b"a", "s"), *written(b"b", "t")])
    target.apply(0, 9, NEVER, written(b"old", "u"))
    assert copy(source, target, [0, 1], lambda _done: True) == 2
    number = source.applied(0)
    assert target.applied_many([0, 1]) == [number, NEVER]
    assert [target.scan(0, table) for table in "stu"] == [*(source.scan(0, table) for table in "st"), Rows(number)]
    restless = Moves(1000)
    restless.apply(0, 1, NEVER, [*written(b"a", "s"), *written(b"b", "t")])
    with pytest.raises(StoreError, match="faster than it can be read"):
        copy_buckets(restless, target, [0])
    with pytest.raises(StoreError, match="another driver"):
        copy(source, target, [0], lambda _done: False)


class Grows(MemoryStore):
    """Gets one more table as soon as its tables were listed."""

    def tables(self) -> frozenset[str]:
        found = super().tables()
        if "new" not in found:
            self.apply(0, 2, 1, written(b"first", "new"))
        return found


def test_a_table_that_comes_while_a_bucket_is_copied_comes_along() -> None:
    source, target = Grows(), MemoryStore()
    source.apply(0, 1, NEVER, written(b"a", "s"))
    assert copy_buckets(source, target, [0]) == 2
    assert [target.scan(0, table) for table in ("s", "new")] == [source.scan(0, table) for table in ("s", "new")]
    assert target.applied(0) == 2


class Noting(MemoryStore):
    """Notes how many rows each write brings."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def apply_many(self, steps: Sequence[Apply]) -> list[Outcome]:
        self.rows.append(sum(len(write.keys) for step in steps for write in step.writes))
        return super().apply_many(steps)


def test_buckets_of_few_rows_are_copied_together_and_those_of_many_one_by_one() -> None:
    source, target = MemoryStore(), Noting()
    source.apply_many([Apply(bucket, 5, NEVER, written(b"x")) for bucket in range(512)])
    assert copy(source, target, range(512), lambda _done: True) == 512
    assert len(target.rows) <= 10, "each is a write to disk"
    assert target.applied_many(range(512)) == [5] * 512
    large, target = MemoryStore(), Noting()
    many = [TableWrite("t", [b"%d" % i for i in range(4_000)], [b""] * 4_000)]
    large.apply_many([Apply(bucket, 5, NEVER, many) for bucket in range(20)])
    assert copy(large, target, range(20), lambda _done: True) == 80_000
    assert max(target.rows) <= 10_000
