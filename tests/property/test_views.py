"""Both views hold, for each key of a served query, the last row the naive twin emits for it, as of the same epoch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kit.inputs.cases import SECOND, STREAM, WITH_SESSIONS, Menu, aggregate_of, random_case
from kit.inputs.examples import seeds
from kit.judges.answers import Run, dealt, table_of
from kit.naive.queries.windows import answer
from kit.simulator.changing_pond import ChangingPond
from millpond.followers.record_rows import RowsReader
from millpond.followers.view.view import ViewFollower, scan
from millpond.log.manifest import load
from millpond.model.expressions import Column
from millpond.model.query import Named, Query, length_us
from millpond.model.windows import Sliding
from millpond.reconfigure import validate
from millpond.reconfigure.validate import KnownPond
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.backends.memory import MemoryStore
from millpond.state.ports.store import BucketStore

BUCKETS = 16


def served(queries: list[Query]) -> list[Query]:
    """The queries whose rows contain their complete key, so that rows of one key can be found."""
    return [
        msgspec.structs.replace(query, serve=True)
        for query in queries
        if {f"key:{i}" for i in range(len(query.keys))} <= {getattr(o.expression, "name", "") for o in query.output}
    ]


def expected(query: Query, epochs: list[list[dict[str, Any]]]) -> dict[str, list[int]]:
    """For each key, as text, the last window that the naive twin emits."""
    shown = [o.name for o in query.output if getattr(o.expression, "name", "").startswith("key:")]
    windows = [o.name for o in query.output if getattr(o.expression, "name", "") == "window"]
    last: dict[str, list[int]] = {}
    for row in answer(query, epochs, drained=True):
        window: Any = row[windows[0]]
        key = str([row[name] for name in shown])
        bounds = [window["start"], window["end"]]
        last[key] = max(bounds, last.get(key, bounds), key=lambda one: one[1])
    return last


@pytest.mark.parametrize("seed", seeds(6, 4))
def test_both_views_hold_the_last_row_of_every_key(seed: int, tmp_path: Path) -> None:
    menu = Menu(raising=False) if seed < 8 else WITH_SESSIONS._replace(raising=False)
    case = random_case(seed, 150, 4, menu=menu)
    queries = served(list(case.queries))
    folder = tmp_path / "pond"
    reader = RowsReader(lambda n, receipt, section: _unreachable())
    stores: list[BucketStore] = [MemoryStore(), LmdbStore(tmp_path / "view.lmdb")]
    sizes = {query.name: length_us(query.window) for query in queries}
    run = Run(folder, queries, random.Random(seed).randint(1, 4), BUCKETS)
    views, log = [], run.pond.log
    for number, store in enumerate(stores):
        view = ViewFollower(store, reader, BUCKETS, lambda: sizes, lambda: load(log, run.pond.manifests), log.read)
        view.name = f"view-{number}"  # type: ignore[misc]
        views.append(view)
        run.pond.follow(view)
    deal = dealt(seed)
    for epoch in case.epochs:
        run.epoch(deal(epoch))
    run.pond.drain()
    for query in queries:
        found = [
            {key: document for bucket in scan(store, query.name, BUCKETS) for key, document in
             zip(bucket.keys, bucket.documents, strict=True)}
            for store in stores
        ]  # fmt: skip
        assert found[0] == found[1]
        if any(getattr(o.expression, "name", "") == "window" for o in query.output):
            windows = sorted(msgspec.json.decode(document)["window"] for document in found[0].values())
            assert windows == sorted(expected(query, case.epochs).values()), query.name
    for store in stores:
        assert set(store.applied_many(range(BUCKETS))) == {run.pond.manifest.n}
        store.close()


def test_a_view_that_is_made_again_has_no_rows_of_a_query_that_was_dropped(tmp_path: Path) -> None:
    empty = dict.fromkeys(field.name for field in STREAM.columns)
    output = (Named("k", Column("key:0", "string")), Named("n", Column("agg:0", "bigint")))
    window, keys = Sliding(10 * SECOND, 10 * SECOND), (Column("k", "string"),)
    query = Query("q", STREAM.name, "ts", 0, window, keys, (aggregate_of("count", None),), output, serve=True)
    pond = ChangingPond(tmp_path / "pond", [STREAM], [query, msgspec.structs.replace(query, name="stays")], 1, BUCKETS)
    now = {"q": 10 * SECOND, "stays": 10 * SECOND}
    stores = [MemoryStore(), MemoryStore()]

    def view(store: BucketStore) -> ViewFollower:
        reader = RowsReader(lambda n, receipt, section: _unreachable())
        return ViewFollower(store, reader, BUCKETS, lambda: now, lambda: load(pond.log, pond.manifests), pond.log.read)

    def epoch(second: int, key: str) -> None:
        pond.epoch({STREAM.name: [table_of([empty | {"ts": second * SECOND, "k": key}])]})

    pond.follow(view(stores[0]))
    for second, key in ((1, "old"), (15, "old"), (25, "open")):
        epoch(second, key)
    assert held(stores[0], "q") == {'["old"]'}
    del now["q"]
    pond.change(validate.drop(KnownPond(pond.spec, pond.manifest), "q"))
    now["q"] = 10 * SECOND
    pond.change(validate.add(KnownPond(pond.spec, pond.manifest), query))
    for second in (35, 45, 55):
        epoch(second, "new")
    pond.follow(view(stores[1]))  # as one whose store has lost everything
    epoch(65, "new")
    for store in stores:
        assert held(store, "q") == {'["open"]', '["new"]'}
        assert held(store, "stays") == {'["old"]', '["open"]', '["new"]'}


def held(store: BucketStore, query: str) -> set[str]:
    return {key for bucket in scan(store, query, BUCKETS) for key in bucket.keys}


def _unreachable() -> Any:
    raise AssertionError("deltas this small are inside their records")
