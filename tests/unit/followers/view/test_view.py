"""The view: the latest row per key, in step with the log after any loss of the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millpond.errors import CorruptError, StoreError
from millpond.followers.view.view import Served, ViewFollower, latest_documents, lookup, lookup_many, scan
from millpond.placement.slots import hash_tags
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.backends.memory import MemoryStore
from millpond.state.backends.redis import RedisStore
from millpond.state.ports.store import NEVER, BucketStore

MINUTE = 60_000_000


@pytest.fixture(params=["memory", "lmdb", "redis_server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BucketStore]:
    made: BucketStore
    if request.param == "redis_server":
        server = request.getfixturevalue(request.param)
        server.flush()
        made = RedisStore(server.url, hash_tags(10))
    else:
        made = MemoryStore() if request.param == "memory" else LmdbStore(tmp_path / "view.lmdb")
    yield made
    made.close()


def view_of(pond: Any, store: BucketStore, served: Mapping[str, int] | None = None) -> ViewFollower:
    serving = {"q": MINUTE} if served is None else served
    return ViewFollower(store, pond.rows, 4, lambda: serving, pond.head, pond.log.read)


@pytest.fixture
def filled(pond: Any, make_row: Any) -> Any:
    """Records: 0 claim, 1 a b, 2 none, 3 b again in two windows, c; `other` is not served."""
    pond.claim()
    pond.epoch({"q": [make_row("a", 1.5, MINUTE, 1), make_row("b", None, MINUTE, 2)]})
    pond.epoch()
    rows = [make_row("b", 3.0, 3 * MINUTE, 2), make_row("b", 2.0, 2 * MINUTE, 2), make_row("c", 4.0, 2 * MINUTE, 1)]
    pond.epoch({"q": rows, "other": [make_row("x", 1.0)]})
    return pond


def contents(store: BucketStore) -> dict[str, bytes]:
    return {
        key: document
        for bucket in scan(store, "q", 4)
        for key, document in zip(bucket.keys, bucket.documents, strict=True)
    }


def test_latest_row_per_key(filled: Any, store: BucketStore) -> None:
    view = view_of(filled, store)
    assert view.cursor().n == 0, "nothing to replay before the oldest rows"
    filled.feed(view)
    assert view.cursor().n == 3
    window = {"start": "1970-01-01T00:02:00.000Z", "end": "1970-01-01T00:03:00.000Z"}
    assert lookup(store, "q", '["b"]', 2) == Served(
        3,
        {
            "epoch": 3,
            "window": [2 * MINUTE, 3 * MINUTE],
            "row": {"customer": "b", "w": window, "total": 3.0},
        },
    )
    assert lookup(store, "q", '["nobody"]', 0) == Served(3, None)
    many = lookup_many(store, "q", [('["c"]', 1), ('["b"]', 2), ('["a"]', 1), ('["c"]', 0)])
    assert [served.document and served.document["row"]["total"] for served in many] == [4.0, 3.0, 1.5, None]
    assert {served.n for served in many} == {3}
    assert [(bucket.bucket, bucket.n, sorted(bucket.keys)) for bucket in scan(store, "q", 4)] == [
        (0, 3, []),
        (1, 3, ['["a"]', '["c"]']),
        (2, 3, ['["b"]']),
        (3, 3, []),
    ]
    assert store.tables() == {"q"}


def test_document_bytes(filled: Any, store: BucketStore) -> None:
    filled.feed(view_of(filled, store), last=1)
    assert contents(store)['["b"]'] == (
        b'{"epoch":1,"window":[0,60000000],"row":{"customer":"b",'
        b'"w":{"start":"1970-01-01T00:00:00.000Z","end":"1970-01-01T00:01:00.000Z"},"total":null}}'
    )


def test_replays_and_zombies_change_nothing(filled: Any, store: BucketStore) -> None:
    filled.feed(view_of(filled, store))
    before = contents(store)
    filled.feed(view_of(filled, store), 1)
    filled.feed(view_of(filled, store, served={}), 1)
    assert contents(store) == before, "a driver that was overtaken must not drop tables either"


def test_gap_is_refused(filled: Any, store: BucketStore) -> None:
    view = view_of(filled, store)
    view.cursor()
    with pytest.raises(StoreError, match="4 buckets of the view are behind"):
        filled.feed(view, 3)
    filled.feed(view)
    assert view.cursor().n == 3


def test_lost_buckets_are_replayed(filled: Any, store: BucketStore) -> None:
    filled.feed(view_of(filled, store))
    before = contents(store)
    store.clear_many([1, 3])
    view = view_of(filled, store)
    assert view.cursor().n == 0
    filled.feed(view)
    assert contents(store) == before
    assert store.applied_many(range(4)) == [3] * 4


def test_store_that_is_ahead_of_the_log_is_rebuilt(filled: Any, store: BucketStore) -> None:
    filled.feed(view_of(filled, store))
    before = contents(store)
    store.apply(2, 9, 3)
    view = view_of(filled, store)
    assert view.cursor().n == 0
    filled.feed(view)
    assert contents(store) == before
    assert store.applied(2) == 3


def test_rebuild_takes_what_is_retained(filled: Any, store: BucketStore) -> None:
    filled.epoch(retired=["1/0/0"])
    next(filled.path.glob(f"delta/{1:020d}/*")).unlink()
    view = view_of(filled, store)
    assert view.cursor().n == 2
    filled.feed(view)
    assert sorted(contents(store)) == ['["b"]', '["c"]']
    assert store.applied_many(range(4)) == [4] * 4


def test_outdated_rows_do_not_outlive_pruned_ones(filled: Any, make_row: Any, store: BucketStore) -> None:
    filled.feed(view_of(filled, store), last=2)
    next(filled.path.glob(f"delta/{3:020d}/*")).unlink()
    filled.epoch({"q": [make_row("d", 1.0, 4 * MINUTE, 3)]})
    filled.feed(view_of(filled, store))
    assert sorted(contents(store)) == ['["d"]'], "b of record 1 would be an old row shown as the latest"
    assert store.applied_many(range(4)) == [4] * 4


def test_tables_of_dropped_queries_are_deleted(filled: Any, make_row: Any, store: BucketStore) -> None:
    served = {"q": MINUTE, "other": MINUTE}
    view = view_of(filled, store, served)
    filled.feed(view)
    assert store.tables() == {"q", "other"}
    del served["other"]
    filled.epoch()
    filled.feed(view)
    assert store.tables() == {"q"}


def test_bucket_that_is_none_is_refused(pond: Any, make_row: Any, store: BucketStore) -> None:
    pond.epoch({"q": [make_row("a", 1.0, bucket=4)]})
    with pytest.raises(CorruptError, match="bucket 4"):
        pond.feed(view_of(pond, store))
    assert store.applied(0) == NEVER


def test_latest_of_many_rows_against_a_loop() -> None:
    random = np.random.default_rng(7)
    keys, ends = random.integers(0, 200, 5000), random.integers(0, 50, 5000)
    table = pa.table(
        {
            "v": np.arange(5000),
            "__key": [f"[{key}]" for key in keys],
            "__bucket": pa.array(keys % 7, pa.int32()),
            "__end": ends,
        }
    )
    expected: dict[bytes, tuple[int, int]] = {}
    for position, (key, end) in enumerate(zip(keys.tolist(), ends.tolist(), strict=True)):
        old = expected.get(b"[%d]" % key)
        if old is None or end >= old[1]:
            expected[b"[%d]" % key] = (position, end)
    found = {
        key: document
        for bucket, some, documents in latest_documents(pa.concat_tables([table[:1000], table[1000:]]), 8, 10)
        for key, document in zip(some, documents, strict=True)
        if int(key[1:-1]) % 7 == bucket
    }
    assert found == {
        key: b'{"epoch":8,"window":[%d,%d],"row":{"v":%d}}' % (end - 10, end, position)
        for key, (position, end) in expected.items()
    }
