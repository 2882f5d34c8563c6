"""Rows of queries merged into rows of other programs, on real servers: equal to a dict, also if applied twice."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest

from kit.inputs.hand_made_pond import HandMadePond
from kit.inputs.log_examples import claim
from kit.naive.keyed_tables import merged_rows
from kit.servers.redis_servers import RedisCluster, RedisServer
from millpond.errors import QueryTypeError, StoreError, UnsupportedQuery
from millpond.followers.record_rows import RowsGone
from millpond.followers.sinks.redis_rows import KeyedSink, target_of, upsert_own
from millpond.followers.upserts import Instances, Owners, Upsert, Upserted
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.placement.slots import SLOTS, slots_of
from millpond.runtime.joins.lookup_rows import OpenRows
from millpond.state.backends.redis_keyed import RedisKeyed
from millpond.state.ports.keyed_rows import Absent

WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
TYPES = {
    "id": ("bigint", pa.int64()), "name": ("string", pa.string()), "total": ("double", pa.float64()),
    "w": ("struct<start:timestamp,end:timestamp>", WINDOW), "_op": ("string", pa.string()),
}  # fmt: skip
QUERY = Selection("q", "tx", tuple(Named(name, Column(name, kind)) for name, (kind, _) in TYPES.items()))
OPTIONS = {"key": "user:{id}", "columns": "name, total"}
opened = cache(RedisKeyed)
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "tables.md"
Row = dict[str, Any]


class FakeRecord(NamedTuple):
    """Stands for a record of the log: it has its own rows."""

    n: int
    rows: pa.Table | None
    record: Any = claim(writer="w")

    @property
    def digest(self) -> str:
        return f"{self.n:064x}"


class Records:
    """Stands for the log's rows: the record has them."""

    def table(self, record: Any, _query: str) -> pa.Table | None:
        return record.rows


def record_of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema([(name, kind) for name, (_, kind) in TYPES.items()]))


def row(dice: random.Random) -> Row:
    end = dice.randint(1, 5) * 60_000_000
    return {
        "id": dice.choice((None, *range(12))), "name": dice.choice((None, "ann", 'Zo"ë')),
        "total": dice.choice((None, 1.5, -0.25)), "w": {"start": end - 60_000_000, "end": end},
        "_op": "delete" if dice.random() < 0.2 else "upsert",
    }  # fmt: skip


def sink(url: str, folder: Path, pond: str = "p", **options: str) -> KeyedSink:
    target = target_of(QUERY, Sink("redis", None, tuple((OPTIONS | options).items())))
    return KeyedSink("q", pond, target, Records(), folder / "q.cursor", lambda: opened(url))  # type: ignore[arg-type]


def apply(to: KeyedSink, n: int, rows: list[Row] | None) -> None:
    to.apply(n, FakeRecord(n, None if rows is None else record_of(rows)), None)  # type: ignore[arg-type]


def expected_of(records: list[list[Row]], before: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return merged_rows(before, enumerate(records), "p", "q", "id", ("name", "total"))


def contents(server: RedisServer | RedisCluster) -> dict[str, dict[str, str]]:
    with server.client() as client:
        keys = sorted(key.decode() for key in client.scan_iter("user:*"))
        return {key: {name.decode(): value.decode() for name, value in client.hgetall(key).items()} for key in keys}


@pytest.fixture
def own_server(redis_installed: None, tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may harm."""
    with RedisServer(tmp_path / "redis") as made:
        yield made


def test_rows_are_those_of_a_dict_however_often_they_are_applied(
    redis_server: RedisServer, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    for number, server in enumerate((redis_server, redis_cluster)):
        server.flush()
        dice = random.Random(number)
        records = [[row(dice) for _ in range(dice.randint(0, 12))] for _ in range(20)]
        others = {f"user:{id}": {"age": "7", "name": "old"} for id in range(0, 12, 2)}
        with server.client() as client:
            for key, fields in others.items():
                client.hset(key, mapping=fields)
        first = sink(server.url, tmp_path / str(number))
        for n, rows in enumerate(records):
            apply(first, n, rows)
            apply(first, n, rows)
            assert contents(server) == expected_of(records[: n + 1], others)
        assert first.note is not None and "for NULL keys" in first.note
        # a driver that lost its cursor, or that was overtaken, tells everything again
        again = sink(server.url, tmp_path / f"again{number}")
        for n, rows in enumerate(records):
            apply(again, n, rows)
            assert contents(server) == expected_of(records, others)
        # what a flush loses comes back with the next rows of the keys; another pond's stamp is no bar
        other = sink(server.url, tmp_path / f"other{number}", "another pond")
        apply(other, 0, [{**row(dice), "id": 3, "name": "new", "_op": "upsert"}])
        assert contents(server)["user:3"]["name"] == "new"
        assert first.cursor().n == len(records) - 1


def test_instances_write_the_same_rows_while_slots_and_buckets_move(redis_installed: None, tmp_path: Path) -> None:
    """Each record is written within the move of a key; the owners of buckets differ from record to record."""
    dice = random.Random(5)
    pond, ids = HandMadePond(tmp_path / "pond"), [f"c{number}" for number in range(40)]
    records: list[list[Row]] = []
    slots = sorted({*slots_of(pa.array([f"user:{id}" for id in ids])).tolist()})
    with RedisCluster(tmp_path / "servers", 2) as cluster:
        stores = [RedisKeyed(cluster.url) for _ in range(3)]

        def write(upsert: Upsert, _: OpenRows) -> list[Upserted]:
            return [upsert_own(upsert, at, lambda at=at: stores[at]) for at in sorted({*upsert.owners.buckets})]  # type: ignore[misc]

        def owners() -> Owners:
            return Owners(tuple(dice.choices(range(3), k=64)), str(pond.path))

        target = target_of(
            msgspec.structs.replace(QUERY, output=tuple(map(named, ("customer", "total", "w")))),
            Sink("redis", None, (("key", "user:{customer}"), ("columns", "total"))),
        )
        cursor, instances = tmp_path / "q.cursor", Instances(owners, write)
        one = KeyedSink("q", "p", target, pond.rows, cursor, lambda: stores[0], instances=instances)

        def apply_next() -> None:
            rows: list[Row] = [
                {"customer": dice.choice(ids), "total": dice.choice((None, 1.5)), "w": {"start": 0, "end": 60_000_000}}
                for _ in range(20)
            ]
            pond.epoch({"q": rows}, instances=2)
            pond.feed(one)
            records.append([{**row, "_op": "upsert"} for row in rows])

        apply_next()
        cluster.move([slot for slot in slots if slot < SLOTS // 2], 0, 1, apply_next)
        apply_next()
        expected = merged_rows({}, enumerate(records), "p", "q", "customer", ("total",))
        assert len(records) > 3 and contents(cluster) == expected
        assert one.requests.sent > 0
        for store in stores:
            store.close()


def named(name: str) -> Named:
    kinds = {"customer": "string", "total": "double", "w": TYPES["w"][0]}
    return Named(name, Column(name, kinds[name]))


def test_a_record_is_one_pipeline_of_one_script_per_key(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    redis_cluster.flush()
    one = sink(redis_cluster.url, tmp_path)
    dice = random.Random(1)
    apply(one, 0, [row(dice) for _ in range(50)])
    before = [server.calls() for server in redis_cluster.servers]
    rows = [{**row(dice), "id": id} for id in [*range(100, 400)] * 2]
    apply(one, 1, rows)
    after = [server.calls() for server in redis_cluster.servers]
    assert sum(late["evalsha"] - early["evalsha"] for early, late in zip(before, after, strict=True)) == 300
    apply(one, 2, None)
    assert one.cursor().n == 2


def test_a_driver_that_was_overtaken_writes_over_nothing_newer(redis_server: RedisServer, tmp_path: Path) -> None:
    """Stopped behind its cursor, before its pipeline, while another one applies all records that follow."""
    redis_server.flush()
    dice = random.Random(3)
    records = [[row(dice) for _ in range(12)] for _ in range(6)]
    heir = sink(redis_server.url, tmp_path)

    def overtaken() -> RedisKeyed:
        for n, rows in enumerate(records):
            apply(heir, n, rows)
        return opened(redis_server.url)

    target = target_of(QUERY, Sink("redis", None, tuple(OPTIONS.items())))
    zombie = KeyedSink("q", "p", target, Records(), tmp_path / "q.cursor", overtaken)  # type: ignore[arg-type]
    apply(zombie, 0, records[0])
    assert contents(redis_server) == expected_of(records, {})
    assert heir.cursor().n == 0, "it has set the cursor back"
    for n, rows in enumerate(records[1:], 1):
        apply(heir, n, rows)
        assert contents(redis_server) == expected_of(records, {})


def test_users_that_may_do_no_more_than_they_need(redis_server: RedisServer, tmp_path: Path) -> None:
    redis_server.flush()
    rules = [line.split() for line in PAGE.read_text().splitlines() if line.startswith("ACL SETUSER")]
    rows = [{**row(random.Random(1)), "id": 1, "name": "ann", "_op": "upsert"}]
    url = redis_server.url.replace("//", "//tables:pw@")
    with redis_server.client() as client:
        try:
            client.execute_command(*[word.replace("PASSWORD", "pw") for word in rules[0]])
            client.hset("user:1", mapping={"name": "old"})
            assert opened(url).read([b"user:1"], [0], [b"name"]) == [[b"old"]]
            assert opened(url).read([b"user:1"], [0], []) == [Absent.WRONG_TYPE]
            with pytest.raises(StoreError, match=r"refuses this user.*tables\.md"):
                apply(sink(url, tmp_path), 0, rows)
            client.execute_command(*[word.replace("PASSWORD", "pw") for word in rules[1]])
            client.script_flush()
            apply(sink(url, tmp_path), 0, rows)
            apply(sink(url, tmp_path), 1, [{**rows[0], "_op": "delete"}])
            assert set(client.hgetall("user:1")) == {b"_epoch:q"}
            for n, op in enumerate(("upsert", "upsert", "delete")):
                apply(sink(url, tmp_path / "json", type="json", key="user:j{id}"), n, [{**rows[0], "_op": op}])
            with pytest.raises(StoreError, match="refuses this user"):
                apply(sink(url, tmp_path / "other", key="other:{id}"), 0, rows)
            assert len(rules) == 2 and client.keys("*") == [b"user:1"]
        finally:
            client.execute_command("ACL", "DELUSER", "tables")


def test_rows_that_were_pruned_were_written(redis_server: RedisServer, tmp_path: Path) -> None:
    class Pruned(Records):
        def table(self, record: Any, _query: str) -> pa.Table | None:
            raise RowsGone("the rows are gone")

    target = target_of(QUERY, Sink("redis", None, tuple(OPTIONS.items())))
    one = KeyedSink("q", "p", target, Pruned(), tmp_path / "c", lambda: opened(redis_server.url))  # type: ignore[arg-type]
    apply(one, 0, [])
    assert one.cursor().n == 0


def test_strings_hold_whole_rows_as_json(redis_server: RedisServer, tmp_path: Path) -> None:
    redis_server.flush()
    dice = random.Random(5)
    whole = sink(redis_server.url, tmp_path, type="json")
    one = {**row(dice), "id": 1, "name": 'Zo"ë', "total": None, "_op": "upsert"}
    with redis_server.client() as client:
        client.set("user:1", '{"age": 7}')
        apply(whole, 0, [one])
        assert json.loads(client.get("user:1")) == {"_epoch": "0 p", "name": 'Zo"ë', "total": None}
        apply(whole, 1, [{**one, "total": 2.5}])
        late = sink(redis_server.url, tmp_path / "late", type="json")
        apply(late, 0, [one])
        assert json.loads(client.get("user:1"))["total"] == 2.5
        apply(whole, 2, [{**one, "_op": "delete"}])
        assert client.get("user:1") is None


def test_other_types_end_the_sink_or_are_passed_over(redis_server: RedisServer, tmp_path: Path) -> None:
    redis_server.flush()
    rows = [{**row(random.Random(1)), "id": id, "name": "ann", "_op": "upsert"} for id in (1, 2)]
    fails = sink(redis_server.url, tmp_path / "a")
    skips = sink(redis_server.url, tmp_path / "b", **{"wrong.type": "skip"})
    with redis_server.client() as client:
        client.set("user:1", "no hash")
        with pytest.raises(StoreError, match=r"1 keys of q, such as 'user:1', hold what is no hash"):
            apply(fails, 0, rows)
        assert fails.cursor().n == -1
        apply(skips, 0, rows)
        assert skips.note == "rows not written since the start: 1 for other types"
        assert (client.get("user:1"), client.hget("user:2", "name")) == (b"no hash", b"ann")
        client.delete("user:1")
        apply(fails, 0, rows)
        assert client.hget("user:1", "name") == b"ann"
        assert fails.cursor().n == 0


def test_a_server_that_vanishes_loses_no_row_of_a_record(own_server: RedisServer, tmp_path: Path) -> None:
    rows = [{**row(random.Random(1)), "id": id, "name": "ann", "_op": "upsert"} for id in range(5)]
    one, impatient = sink(own_server.url, tmp_path), sink(own_server.url + "?socket_timeout=0.3", tmp_path)
    apply(one, 0, rows)
    own_server.pause()
    with pytest.raises(StoreError, match="did not answer in time"):
        apply(impatient, 1, [{**each, "name": "bob"} for each in rows])
    threading.Timer(0.5, own_server.resume).start()
    own_server.wait()
    # what was sent before the answer failed may have been written meanwhile; again is no harm
    apply(one, 1, [{**each, "name": "bob"} for each in rows])
    assert {fields["name"] for fields in contents(own_server).values()} == {"bob"}
    own_server.kill()
    with pytest.raises(StoreError):
        apply(one, 2, rows)
    own_server.start()
    apply(one, 2, rows[:2])
    assert {key: fields["_epoch:q"] for key, fields in contents(own_server).items()} == dict.fromkeys(
        ("user:0", "user:1"), "2 p"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": ""}, "has no key"), ({"nosuch": "1"}, "does not know the option nosuch"),
        ({"type": "list"}, "`type` of the redis sink of q is 'list'"), ({"wrong.type": "null"}, "`wrong.type`"),
        ({"address": "redis://:secret@host"}, "would be stored with the pond"),
        ({"columns": "nosuch"}, "cannot write nosuch, a column that is not there"),
        ({"columns": "w"}, "cannot write w, a struct"), ({"key": "user:{nosuch}"}, "'nosuch', which is no column"),
        ({"key": "user:{total}"}, "total of q is a double"),
    ],
)  # fmt: skip
def test_sinks_that_do_not_fit(options: dict[str, str], message: str) -> None:
    with pytest.raises((UnsupportedQuery, QueryTypeError), match=message):
        target_of(QUERY, Sink("redis", None, tuple((OPTIONS | options).items())))
