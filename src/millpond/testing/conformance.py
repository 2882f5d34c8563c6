"""Conformance suites for bucket stores and file stores: a new back-end is complete if it passes its suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread

import pyarrow as pa

from millpond.errors import StoreError
from millpond.state.ports.file_store import FileStore
from millpond.state.ports.store import (
    NEVER,
    Apply,
    BucketStore,
    Outcome,
    ReadRequest,
    ReadResult,
    Rows,
    Stand,
    TableWrite,
    Verdict,
)


def check_bucket_store(make_store: Callable[[], BucketStore]) -> None:
    """Runs every check of `state.ports.store` on new stores; an AssertionError names a violated guarantee.

    `make_store` must return a new, empty store with 1024 buckets at each call; this function closes the stores.
    """
    for check in CHECKS:
        store = make_store()
        try:
            check(store)
        finally:
            store.close()
    _closed_store_refuses(make_store())


def _write(**rows: str | None) -> list[TableWrite]:
    keys = [key.encode() for key in rows]
    return [TableWrite("t", keys, [None if value is None else value.encode() for value in rows.values()])]


def _values(store: BucketStore, bucket: int, *keys: str) -> list[bytes | None]:
    return store.read(bucket, "t", [key.encode() for key in keys]).values


def _fresh_store_is_empty(store: BucketStore) -> None:
    assert store.applied_many([0, 1, 1023]) == [NEVER, NEVER, NEVER]
    assert store.read(0, "t", [b"a"]) == ReadResult(NEVER, [None])
    assert store.scan(0, "t").keys == []
    assert store.tables() == frozenset()
    assert store.statistics().keys == 0
    assert len(store.shards(range(1024))) == 1024 and all(store.shards([0, 1023]))


def _applies_in_order(store: BucketStore) -> None:
    assert store.apply(3, 0, NEVER, _write(a="1", b="2")) == Outcome(3, Verdict.APPLIED, 0)
    assert store.apply(3, 1, 0, _write(a="3")) == Outcome(3, Verdict.APPLIED, 1)
    assert store.read(3, "t", [b"b", b"a", b"c", b"a"]) == ReadResult(1, [b"2", b"3", None, b"3"])
    assert store.applied(3) == 1
    assert store.applied(4) == NEVER, "another bucket must not move"


def _same_number_again_changes_nothing(store: BucketStore) -> None:
    store.apply(0, 5, NEVER, _write(a="first"))
    assert store.apply(0, 5, 4, _write(a="again")) == Outcome(0, Verdict.ALREADY, 5)
    assert store.apply(0, 3, 2, _write(a="zombie", z="z")) == Outcome(0, Verdict.ALREADY, 5)
    assert _values(store, 0, "a", "z") == [b"first", None]


def _gap_changes_nothing(store: BucketStore) -> None:
    store.apply(0, 0, NEVER, _write(a="1"))
    assert store.apply(0, 2, 1, _write(a="2")) == Outcome(0, Verdict.BEHIND, 0)
    assert store.apply(9, 2, 1, _write(a="2")) == Outcome(9, Verdict.BEHIND, NEVER)
    # A bucket that has data must not be treated as new either.
    assert store.apply(0, 2, NEVER, _write(a="2")) == Outcome(0, Verdict.BEHIND, 0)
    assert (_values(store, 0, "a"), _values(store, 9, "a")) == ([b"1"], [None])


def _empty_step_moves_the_number(store: BucketStore) -> None:
    assert store.apply(0, 7, NEVER).applied == 7
    assert store.applied(0) == 7
    assert store.statistics().keys == 0
    assert len(store.shards(range(1024))) == 1024 and all(store.shards([0, 1023]))


def _mark_goes_with_the_number(store: BucketStore) -> None:
    assert store.stands_many([0, 7]) == [Stand(NEVER), Stand(NEVER)]
    store.apply_many([Apply(0, 4, NEVER, _write(a="1"), "first"), Apply(7, 4, NEVER, (), "first")])
    more = [Apply(0, 5, 4, _write(a="2"), "0123456789abcdef"), Apply(7, 4, 3, (), "late"), Apply(9, 8, 7, (), "x")]
    store.apply_many(more)
    assert store.stands_many([7, 0, 9]) == [Stand(4, "first"), Stand(5, "0123456789abcdef"), Stand(NEVER)]
    store.apply_many([Apply(0, 6, 5, (), "sixth"), Apply(0, 7, 6)])
    assert store.stands_many([0]) == [Stand(7)], "of several steps the last one counts; one may have no mark"
    store.clear_many([7])
    assert store.stands_many([7]) == [Stand(NEVER)]
    store.drop_table("t", 9)
    assert store.stands_many([0]) == [Stand(7)]


def _deletes(store: BucketStore) -> None:
    store.apply(0, 0, NEVER, _write(a="1", b="2"))
    store.apply(0, 1, 0, _write(a=None, never_there=None))
    assert _values(store, 0, "a", "b") == [None, b"2"]
    assert store.statistics().keys == 1


def _last_of_equal_keys_counts(store: BucketStore) -> None:
    store.apply(0, 0, NEVER, [TableWrite("t", [b"a", b"a", b"b", b"b"], [b"1", b"2", b"3", None])])
    assert _values(store, 0, "a", "b") == [b"2", None]
    store.apply(0, 1, 0, [TableWrite("t", [b"a"], [b"5"]), TableWrite("t", [b"a"], [b"6"])])
    assert _values(store, 0, "a") == [b"6"]


def _batch_reports_each_bucket(store: BucketStore) -> None:
    store.apply(1, 0, NEVER, _write(a="old"))
    steps = [Apply(bucket, 1, 0, _write(a="new")) for bucket in range(3)] + [Apply(1, 2, 1, _write(b="newer"))]
    outcomes = store.apply_many(steps)
    assert [(outcome.bucket, outcome.verdict, outcome.applied) for outcome in outcomes] == [
        (0, Verdict.BEHIND, NEVER),
        (1, Verdict.APPLIED, 1),
        (2, Verdict.BEHIND, NEVER),
        (1, Verdict.APPLIED, 2),
    ]
    found = store.read_many([ReadRequest(bucket, "t", [b"a", b"b"]) for bucket in range(3)])
    none = ReadResult(NEVER, [None, None])
    assert found == [none, ReadResult(2, [b"new", b"newer"]), none]
    assert store.apply_many([]) == [] and store.read_many([]) == [] and store.applied_many([]) == []


def _tables_and_buckets_are_apart(store: BucketStore) -> None:
    names = ["t", "tt", "t 2", "Straße/→", "t\x00"]
    for bucket in (0, 1, 255, 256, 1023):
        writes = [TableWrite(name, [b"k"], [f"{name}@{bucket}".encode()]) for name in names]
        store.apply(bucket, 0, NEVER, writes)
    for bucket in (0, 1, 255, 256, 1023):
        for name in names:
            rows = store.scan(bucket, name)
            assert (rows.applied, rows.keys, rows.values) == (0, [b"k"], [f"{name}@{bucket}".encode()])
            assert store.scan_many([bucket, 7], name) == [rows, Rows(NEVER)]
    assert store.scan_many([], "t") == []
    assert store.tables() == frozenset(names)
    assert store.statistics().keys == 25


def _any_bytes(store: BucketStore) -> None:
    keys = [b"", b"\x00", b"\xff" * 3, *(b"k" * length for length in (300, 503, 504, 505, 5000, 5001))]
    values = [b"", b"\x00\xff", b"v" * 100_000, b"x", b"", b"z", b"1", b"", b"u" * 9000]
    store.apply(0, 0, NEVER, [TableWrite("t", keys, values)])
    assert store.read(0, "t", keys).values == values
    rows = store.scan(0, "t")
    assert dict(zip(rows.keys, rows.values, strict=True)) == dict(zip(keys, values, strict=True))
    store.apply(0, 1, 0, [TableWrite("t", keys[::-1], [None] * len(keys))])
    assert store.statistics().keys == 0
    assert len(store.shards(range(1024))) == 1024 and all(store.shards([0, 1023]))


def _clear_forgets_a_bucket(store: BucketStore) -> None:
    for bucket in (0, 1, 2):
        store.apply(bucket, 9, NEVER, [*_write(a="1"), TableWrite("u", [b"k"], [b"v"])])
    store.clear_many([0, 2, 77])
    assert store.applied_many([0, 1, 2]) == [NEVER, 9, NEVER]
    assert [len(store.scan(bucket, table).keys) for bucket in (0, 1, 2) for table in "tu"] == [0, 0, 1, 1, 0, 0]
    assert store.apply(0, 4, NEVER, _write(a="rebuilt")).verdict is Verdict.APPLIED
    assert store.read(0, "t", [b"a"]) == ReadResult(4, [b"rebuilt"])


def _drop_keeps_the_numbers(store: BucketStore) -> None:
    store.apply(0, 3, NEVER, [*_write(a="1"), TableWrite("u", [b"k"], [b"v"])])
    store.drop_table("t", 3)
    store.drop_table("t", 3)
    store.drop_table("never there", 3)
    assert store.tables() == {"u"}
    assert (store.applied(0), store.statistics().keys) == (3, 1)
    assert store.read(0, "u", [b"k"]).values == [b"v"]
    store.apply(0, 4, 3, _write(b="2"))
    assert _values(store, 0, "a", "b") == [None, b"2"], "a table of an old name starts empty"
    store.apply(1, 9, NEVER, _write(c="3"))
    store.drop_table("t", 3)
    assert (_values(store, 0, "b"), _values(store, 1, "c")) == ([b"2"], [b"3"]), "another publisher has gone on"
    store.drop_table("t", 4)
    assert (_values(store, 0, "b"), store.read(1, "t", [b"c"]).values) == ([None], [b"3"])


def _many_rows_grow_the_store(store: BucketStore) -> None:
    keys = [b"key %07d" % i for i in range(20_000)]
    for n in range(3):
        value = bytes([n]) * 100
        steps = [Apply(b, n, n - 1, [TableWrite("t", keys[b::8], [value] * len(keys[b::8]))]) for b in range(8)]
        assert {outcome.verdict for outcome in store.apply_many(steps)} == {Verdict.APPLIED}
    statistics = store.statistics()
    assert statistics.keys == 20_000
    assert statistics.stored_bytes >= 20_000 * 100
    assert set(store.read(5, "t", keys[5::8]).values) == {b"\x02" * 100}


def _reader_never_sees_half_a_step(store: BucketStore) -> None:
    keys = [b"%d" % i for i in range(50)]
    last = 60
    torn: list[str] = []

    def read() -> None:
        applied = NEVER
        while applied < last:
            found = store.read(0, "t", keys)
            applied = found.applied
            expected: Sequence[bytes | None] = [None if applied == NEVER else b"%d" % applied] * len(keys)
            rows = store.scan(0, "t")
            if found.values != expected:
                torn.append(f"read at {applied}")
                return
            if not rows.torn and rows.applied >= 0 and set(rows.values) != {b"%d" % rows.applied}:
                torn.append(f"scan at {rows.applied}")
                return

    reader = Thread(target=read)
    reader.start()
    for n in range(last + 1):
        # Growing values make an LMDB map grow under the reader as well.
        padding = TableWrite("padding", [b"%d" % n], [b"p" * 20_000])
        store.apply(0, n, n - 1, [TableWrite("t", keys, [b"%d" % n] * len(keys)), padding])
    reader.join(30)
    assert not reader.is_alive() and not torn, torn


def _closed_store_refuses(store: BucketStore) -> None:
    store.close()
    store.close()
    try:
        store.applied(0)
    except StoreError:
        return
    raise AssertionError("a closed store must raise StoreError")


CHECKS: tuple[Callable[[BucketStore], None], ...] = (
    _fresh_store_is_empty,
    _applies_in_order,
    _same_number_again_changes_nothing,
    _gap_changes_nothing,
    _empty_step_moves_the_number,
    _mark_goes_with_the_number,
    _deletes,
    _last_of_equal_keys_counts,
    _batch_reports_each_bucket,
    _tables_and_buckets_are_apart,
    _any_bytes,
    _clear_forgets_a_bucket,
    _drop_keeps_the_numbers,
    _many_rows_grow_the_store,
    _reader_never_sees_half_a_step,
)
"""The checks of `check_bucket_store`, each on a store of its own."""


def check_file_store(store: FileStore) -> None:
    """Runs every check of `state.ports.file_store` on an empty store; an AssertionError names a violated guarantee."""
    first, second = "delta/00000000000000000012/3-a-7.1.arrow", "log/00000000000000000012"
    large = bytes(range(256)) * 200_000
    assert store.names() == set() and store.get_many([first]) == [None] and store.get_many([]) == []
    store.put(first, [large[:1000], pa.py_buffer(large[1000:])])
    store.put(second, [b""], kept=True)
    store.put(first, [large])
    assert store.names() == {first, second}
    assert store.get_many([second, "delta/00000000000000000013/0-a-8.0.arrow", first]) == [b"", None, large]
    assert store.take_many([first, "none"]) == [large, None]
    assert store.lacking([first, "none", second]) == ["none"]
    store.remove_many([first, "none"])
    assert store.names() == {second} and store.lacking([first, second]) == [first]
    store.remove_many([])
