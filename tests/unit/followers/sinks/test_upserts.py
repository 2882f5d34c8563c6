"""The sink `redis`, written by instances: the rows of a naive twin, each written by the instance of its hash slot."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.inputs.hand_made_pond import HandMadePond
from kit.naive.keyed_tables import DictRows, merged_rows
from millpond.errors import StoreError
from millpond.followers.sinks.make_sink import sink_follower
from millpond.followers.sinks.redis_rows import upsert_own
from millpond.followers.upserts import Instances, Owners, Upsert, Upserted
from millpond.log.follower import Follower
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.placement.slots import buckets_of
from millpond.runtime.joins.lookup_rows import OpenRows
from millpond.state.ports.keyed_rows import Merge, Merged, Stamp
from millpond.state.ports.requests import count

BUCKETS = 8
OUTPUT = (
    Named("customer", Column("customer", "string")), Named("total", Column("total", "double")),
    Named("w", Column("window", WINDOW)),
)  # fmt: skip
NAMES = st.sampled_from(["a", "b", "c", "{d}", "e}f", "", None])
ROWS = st.fixed_dictionaries({
    "customer": NAMES, "total": st.sampled_from([None, 1.5, -0.25]), "w": st.integers(1, 3),
})  # fmt: skip


class Server(DictRows):
    """Rows in a dict, which an instance may fail to reach; notes the buckets to which the current instance writes."""

    def __init__(self) -> None:
        super().__init__({})
        self.down, self.instance = set[int](), -1
        self.written: list[tuple[int, int]] = []

    def merge(self, rows: Sequence[Merge], stamp: Stamp, *, whole: bool) -> list[Merged]:
        if self.instance in self.down:
            raise StoreError("The store does not answer.", "Start it.")
        buckets = buckets_of(np.array([row.slot for row in rows]), BUCKETS)
        count(len(rows), local=True)
        self.written += [(self.instance, bucket) for bucket in buckets.tolist()]
        return super().merge(rows, stamp, whole=whole)


class Written:
    """The sink of a query over a pond by hand, in a pond with these owners of buckets."""

    def __init__(self, pond: Any, **options: str) -> None:
        self.pond, self.server, self.owners = pond, Server(), (0,) * BUCKETS
        sink = Sink("redis", None, (("columns", "total"), ("key", "user:{customer}"), *options.items()))
        query = Query("q", "s", "ts", 0, Sliding(1, 1), (), (), OUTPUT, sink=sink, late=msgspec.UNSET)
        instances = Instances(lambda: Owners(self.owners, str(pond.path)), self.write)
        self.follower: Follower = sink_follower(
            query, "p", pond.rows, pond.path / "cursors", opens=lambda _: lambda: self.server, instances=instances
        )

    def write(self, upsert: Upsert, opens: OpenRows) -> list[Upserted]:
        found = []
        for instance in sorted({*upsert.owners.buckets}, reverse=True):
            self.server.instance = instance
            found.append(upsert_own(upsert, instance, opens))
        return found


@settings(max_examples=25)  # each writes files
@given(
    st.lists(st.tuples(
        st.lists(ROWS, max_size=8), st.integers(1, 3), st.booleans(),
        st.tuples(*[st.integers(0, 3)] * BUCKETS), st.sets(st.integers(0, 3)),
    ), max_size=5)
)  # fmt: skip
def test_rows_are_those_of_a_dict_however_buckets_move_and_instances_fail(records: list[Any]) -> None:
    """Each record: its rows, the instances that wrote them, whether inline, the owners of buckets, and who fails."""
    with tempfile.TemporaryDirectory() as folder:
        sink = Written(HandMadePond(Path(folder)))
        before: list[tuple[int, list[dict[str, Any]]]] = []
        for rows, instances, inline, owners, down in records:
            made = [
                {"customer": row["customer"], "w": {"start": 0, "end": row["w"] * 60_000_000}, "total": row["total"]}
                for row in rows
            ]
            n = sink.pond.epoch({"q": made}, instances=instances, inline=inline)
            sink.owners, sink.server.down = owners, down
            try:
                sink.pond.feed(sink.follower)
            except StoreError as error:
                assert (error.what, error.cure) == ("The store does not answer.", "Start it.")
                assert sink.follower.cursor().n == n - 1
                sink.server.down = set()
                sink.server.written.clear()
                sink.pond.feed(sink.follower)
            before.append((n, [{**row, "_op": "upsert"} for row in made]))
            assert all(owners[bucket] == instance for instance, bucket in sink.server.written)
            if made:
                sent = len(sink.server.written)
                assert sink.follower.requests == (sent, sent)  # type: ignore[attr-defined]
            sink.server.written.clear()
            assert sink.server.held == merged_rows({}, before, "p", "q", "customer", ("total",))
        nulls = sum(row["customer"] is None for _, rows in before for row in rows)
        assert sink.follower.note == (f"rows not written since the start: {nulls} for NULL keys" if nulls else None)  # type: ignore[attr-defined]


def test_keys_of_other_types_are_those_of_all_instances(pond: Any, make_row: Callable[..., Any]) -> None:
    fails, skips = Written(pond), Written(pond, **{"wrong.type": "skip"})
    pond.epoch({"q": [make_row(name, 1.5) for name in "abcd"]}, instances=2)
    for sink in (fails, skips):
        sink.owners = (0, 1) * (BUCKETS // 2)
        sink.server.held |= {f"user:{name}": "no hash" for name in "abc"}
    with pytest.raises(StoreError, match=r"3 keys of q, such as 'user:[abc]', hold what is no hash"):
        pond.feed(fails.follower)
    pond.feed(skips.follower)
    assert skips.follower.note == "rows not written since the start: 3 for other types"  # type: ignore[attr-defined]
    assert skips.server.held["user:d"] == {"_epoch:q": "0 p", "total": "1.5"}


def test_a_record_that_an_instance_does_not_see_yet_is_tried_again(pond: Any, make_row: Callable[..., Any]) -> None:
    sink = Written(pond)
    pond.epoch({"q": [make_row("a", 1.5)]})
    hidden = next((pond.path / "log").iterdir())
    hidden.rename(pond.path / "hidden")
    with pytest.raises(StoreError, match="Record 0 cannot be read by instance 0 yet"):
        pond.feed(sink.follower)
    (pond.path / "hidden").rename(hidden)
    pond.feed(sink.follower)
    assert sink.server.held == {"user:a": {"_epoch:q": "0 p", "total": "1.5"}}


def test_the_driver_writes_rows_that_an_instance_does_not_find(pond: Any, make_row: Callable[..., Any]) -> None:
    sink = Written(pond)

    def blind(upsert: Upsert, opens: OpenRows) -> list[Upserted]:
        (pond.path / "delta").rename(pond.path / "hidden")
        written = sink.write(upsert, opens)
        (pond.path / "hidden").rename(pond.path / "delta")
        return written

    sink.follower._instances = Instances(lambda: Owners((0, 1), str(pond.path)), blind)  # type: ignore[attr-defined]
    pond.epoch({"q": [make_row("a", 1.5)]})
    pond.feed(sink.follower)
    assert sink.server.held == {"user:a": {"_epoch:q": "0 p", "total": "1.5"}}


@pytest.mark.parametrize("owners", [None, Owners((0,), "nowhere")])
def test_the_driver_writes_where_instances_cannot(
    pond: Any, make_row: Callable[..., Any], owners: Owners | None
) -> None:  # fmt: skip
    """There are no owners of buckets, or no instance prefers a host."""
    sink = Written(pond)
    sink.follower._instances = Instances(lambda: owners, lambda *_: None)  # type: ignore[attr-defined]
    pond.epoch({"q": [make_row("a", 1.5)]})
    pond.feed(sink.follower)
    assert sink.server.held == {"user:a": {"_epoch:q": "0 p", "total": "1.5"}} and sink.server.instance == -1
