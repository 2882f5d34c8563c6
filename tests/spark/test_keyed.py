"""Streams joined with rows of other programs in Redis: equal to a dict, each key read once, no secret stored."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kit.servers.redis_servers import RedisCluster, RedisServer
from millpond import Pond
from millpond.errors import QueryTypeError, SourceError, StoreError, UnsupportedQuery
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream
from millpond.plan.explain.plan_text import explain

pytestmark = pytest.mark.slow

COLUMNS = (Field("id", "int"), Field("amount", "bigint"), Field("ts", "timestamp"))
TEXT = """
CREATE TABLE tx (id INT, amount BIGINT, ts TIMESTAMP) USING parquet OPTIONS (path '{path}');
CREATE TEMPORARY VIEW users (id BIGINT, name STRING, score DOUBLE) USING redis
OPTIONS (key 'user:{{id}}', missing 'null', 'wrong.type' 'dead-letter');
CREATE TEMPORARY VIEW levels (id BIGINT, level INT, _problem STRING) USING redis
OPTIONS (key 'level:{{id}}', type 'json', address '{address}', 'wrong.type' 'null', missing 'default',
         defaults '{{"level": -1}}');
CREATE STREAMING TABLE spend USING redis TBLPROPERTIES ('key' = 'spend:{{id}}', 'columns' = 'spent') AS
SELECT id, sum(amount) AS spent FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 1 SECOND GROUP BY id, window(ts, '1 day');
"""
QUERIES = {
    "left": "SELECT tx.id, amount, name, score, u.id AS uid FROM STREAM tx LEFT JOIN users u ON tx.id = u.id",
    "inner": "SELECT id, name FROM STREAM tx JOIN users USING (id) WHERE score > 1",
    "sums": "SELECT name, window(ts, '1 hour') AS w, sum(amount) AS s FROM STREAM tx WATERMARK ts DELAY OF INTERVAL "
    "1 SECOND JOIN users ON users.id = tx.id GROUP BY ALL",
    "levels_of": "SELECT tx.id, level FROM STREAM tx JOIN levels ON tx.id = levels.id WHERE _problem IS NULL",
    "letters": "SELECT tx.id, _problem FROM STREAM tx LEFT JOIN levels ON tx.id = levels.id WHERE _problem IS NOT NULL",
    "both": "SELECT tx.id, name, level FROM STREAM tx LEFT JOIN users ON tx.id = users.id "
    "LEFT JOIN (SELECT id AS lid, level FROM levels) l ON lid = tx.id + length(users.name)",
    "semi": "SELECT id, amount FROM STREAM tx LEFT SEMI JOIN users ON tx.id = users.id WHERE amount > 20",
    "anti": "SELECT id, amount FROM STREAM tx WHERE NOT EXISTS (SELECT 1 FROM users u WHERE u.id = tx.id)",
    "plain": "SELECT id FROM STREAM tx WHERE amount > 95",
}


def write(spark: SparkSession, folder: Path, start: int, count: int = 100) -> None:
    rows = spark.range(start, start + count, 1, 1).selectExpr(
        "CAST(if(id % 17 = 0, NULL, id % 40) AS INT) AS id", "id AS amount", "timestamp_seconds(id * 60) AS ts"
    )
    rows.write.mode("append").parquet(str(folder / "tx"))


def fill(client: Any) -> None:
    for id in range(0, 40, 2):
        if id % 10:
            client.hset(f"user:{id}", mapping={"name": f"n{id % 6}", "score": id / 4, "other": "x"})
            client.set(f"level:{id}", json.dumps({"level": id, "more": [1]}))
        else:
            client.set(f"user:{id}", "no hash")
            client.set(f"level:{id}", "no json")


def calls(cluster: RedisCluster) -> dict[str, int]:
    return {name: sum(server.calls().get(name, 0) for server in cluster.servers) for name in ("hmget", "get")}


def rows_of(pond: Pond, query: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in pond.table(query).to_pylist()), key=repr)


def test_joins_by_key_answer_as_a_dict(spark: SparkSession, tmp_path: Path, redis_cluster: RedisCluster) -> None:
    redis_cluster.flush()
    with redis_cluster.client() as client:
        fill(client)
    write(spark, tmp_path, 0)
    store = redis_cluster.url + "?prefix=secret"
    with Pond(spark, tmp_path / "pond", store=store) as pond:
        pond.load(TEXT.format(path=tmp_path / "tx", address=redis_cluster.url))
        for name, text in QUERIES.items():
            pond.add(name, text)
        before = calls(redis_cluster)
        pond.run(once=True, drain=True)
        after = calls(redis_cluster)
        counts = {name: (found.whole.dead, found.whole.filtered) for name, found in pond.counts().items()}
        shown = explain(pond.plan, pond.streams)
        found = {name: rows_of(pond, name) for name in QUERIES}
        last = pond.manifest().n
        # without the aggregation, the owners of keys look up rows; with it, the tasks that read events do
        pond.drop("sums")
        write(spark, tmp_path, 100, 40)
        pond.run(once=True)
        by_owners = explain(pond.plan, pond.streams)
        pond.add("sums", QUERIES["sums"])
        write(spark, tmp_path, 140, 10)
        pond.run(once=True)
        later, dead = rows_of(pond, "left"), pond.counts()["left"].whole.dead
    every_event = [(None if id % 17 == 0 else id % 40, id) for id in range(150)]
    events = every_event[:100]
    bad = [event for event in events if event[0] is not None and event[0] % 10 == 0]
    users = {id: (f"n{id % 6}", id / 4) for id in range(0, 40, 2) if id % 10}
    good = [event for event in events if event not in bad]

    def ordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return sorted(rows, key=repr)

    assert found["left"] == ordered(
        [(id, n, *users.get(id, (None, None)), id if id in users else None) for id, n in good]
    )
    of_all = [event for event in every_event if event[0] is None or event[0] % 10]
    assert later == ordered([(id, n, *users.get(id, (None, None)), id if id in users else None) for id, n in of_all])
    assert dead == len(every_event) - len(of_all)
    assert "from user:{id}, by key" in by_owners and "from user:{id}, by key" not in shown
    assert found["inner"] == ordered([(id, users[id][0]) for id, _ in good if id in users and users[id][1] > 1])
    assert found["semi"] == ordered([(id, n) for id, n in good if id in users and n > 20])
    assert found["anti"] == ordered([(id, n) for id, n in good if id not in users])
    assert found["levels_of"] == ordered([(id, id) for id, _ in events if id in users])
    problems = {id: "wrong type" if id % 2 == 0 else "missing" for id in range(40) if id not in users}
    assert found["letters"] == ordered([(id, problems[id]) for id, _ in events if id in problems])
    assert counts["left"] == (len(bad), 0) and counts["plain"][0] == 0 and counts["letters"][0] == 0
    assert sum(row[-1] for row in found["sums"]) == sum(n for id, n in good if id in users)
    levels = {id: id if id in users else None if id % 10 == 0 and id < 40 else -1 for id in range(42)}
    assert found["both"] == ordered(
        [(id, users[id][0], levels[id + 2]) if id in users else (id, None, None) for id, _ in good]
    )
    spent: dict[int, int] = {}
    for id, n in events:
        if id is not None:
            spent[id] = spent.get(id, 0) + n
    with redis_cluster.client() as client:
        written = {id: client.hgetall(f"spend:{id}") for id in range(40)}
    assert {id: int(row[b"spent"]) for id, row in written.items() if row} == spent
    [pond_name] = {row[b"_epoch:spend"].partition(b" ")[2] for row in written.values() if row}
    assert pond_name == (tmp_path / "pond" / "pond.id").read_bytes()
    assert all(int(row[b"_epoch:spend"].partition(b" ")[0]) <= last for row in written.values() if row)
    # six derived streams, each of at most 39 keys and one batch per task of the read
    assert {name: 0 < after[name] - before[name] <= 6 * 2 * 39 for name in before} == {"hmget": True, "get": True}
    stored = b"".join(path.read_bytes() for path in (tmp_path / "pond").rglob("*") if path.is_file())
    assert b"127.0.0.1" not in stored and b"prefix=secret" not in stored
    assert "LEFT JOIN hash user:{id}" in shown and "127.0.0.1" not in shown


@pytest.fixture
def own_server(redis_installed: None, tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may harm."""
    with RedisServer(tmp_path / "redis") as made:
        yield made


def declared(pond: Pond, folder: Path) -> None:
    source = Source("parquet", (("maxFilesPerTrigger", "1"), ("path", str(folder / "tx"))))
    pond.stream(Stream("tx", COLUMNS, source))


def test_a_frame_is_joined_while_the_server_vanishes_and_comes_back(
    spark: SparkSession, tmp_path: Path, own_server: RedisServer
) -> None:
    """Stopped in the first epoch and killed in the third; the run waits, and no event is lost or doubled."""
    for number in range(4):
        write(spark, tmp_path, number * 10, 10)
    for number, path in enumerate(sorted((tmp_path / "tx").glob("*.parquet"), key=os.path.getmtime)):
        os.utime(path, (1_700_000_000 + number,) * 2)
    with own_server.client() as client:
        fill(client)
    epochs: list[object] = []

    def restart() -> None:
        own_server.start()
        with own_server.client() as client:
            fill(client)

    def harm(epoch: object) -> None:
        epochs.append(epoch)
        if len(epochs) == 1:
            own_server.pause()
            threading.Timer(3.0, own_server.resume).start()
        if len(epochs) == 3:
            own_server.kill()
            threading.Timer(3.0, restart).start()

    with Pond(spark, tmp_path / "pond", store=own_server.url + "?socket_timeout=1", on_epoch=harm) as pond:
        declared(pond, tmp_path)
        users = pond.lookup_table(
            "users", "id BIGINT, name STRING, score DOUBLE", key="user:{id}", wrong_type="null",
            missing="default", defaults={"name": "nobody"},
        )  # fmt: skip
        reader = spark.readStream.schema("id int, amount bigint, ts timestamp").option("maxFilesPerTrigger", "1")
        frame = reader.parquet(str(tmp_path / "tx"))
        joined = frame.withWatermark("ts", "0 seconds").join(users, frame.id == users.id, "left")
        pond.add("names", joined.groupBy(F.window("ts", "1 hour"), "name").agg(F.sum("amount").alias("s")))
        pond.add("rows", "SELECT tx.id, name FROM STREAM tx LEFT JOIN users ON tx.id = users.id")
        pond.run(once=True, drain=True)
        found, sums = rows_of(pond, "rows"), pond.table("names").to_pylist()
    names = {id: f"n{id % 6}" if id % 10 else None for id in range(0, 40, 2)}
    events = [(None if id % 17 == 0 else id % 40, id) for id in range(40)]
    expected = [(id, None if id is None else names.get(id, "nobody"), n) for id, n in events]
    assert found == sorted([(id, name) for id, name, _ in expected], key=repr)
    sums_by_name: dict[str | None, int] = {}
    for _, name, n in expected:
        sums_by_name[name] = sums_by_name.get(name, 0) + n
    assert {row["name"]: row["s"] for row in sums} == sums_by_name
    assert len(epochs) >= 4


def test_unsupported_uses_of_a_keyed_table_are_refused(
    spark: SparkSession, tmp_path: Path, redis_server: RedisServer
) -> None:
    redis_server.flush()
    write(spark, tmp_path, 0, 20)
    with redis_server.client() as client:
        client.set("user:1", "no hash")
    columns = "id BIGINT, name STRING"
    secret = redis_server.url.replace("//", "//nobody:hidden@")
    with Pond(spark, tmp_path / "pond") as pond:
        declared(pond, tmp_path)
        with pytest.raises(QueryTypeError, match="names no column"):
            pond.lookup_table("users", columns, key="user", address=redis_server.url)
        with pytest.raises(QueryTypeError, match="defaults of users"):
            pond.lookup_table("users", columns, key="{id}", address=redis_server.url, defaults={"no": 1})
        pond.lookup_table("users", columns, key="user:{id}", address=redis_server.url, wrong_type="fail")
        pond.lookup_table("hidden", columns, key="user:{id}", address=secret, vanished="fail")
        for text, what in (
            ("SELECT name FROM STREAM tx JOIN users ON tx.id > users.id", "joined by its key alone"),
            ("SELECT name FROM STREAM tx JOIN users ON tx.id = users.id AND name > 'a'", "joined by its key alone"),
            ("SELECT name FROM STREAM tx JOIN users ON tx.id <=> users.id", "joined by its key alone"),
            ("SELECT name FROM STREAM tx JOIN users ON amount = name", "joined by its key alone"),
            ("SELECT u.n FROM STREAM tx JOIN (SELECT id, upper(name) AS n FROM users) u USING (id)", "computed below"),
            ("SELECT name FROM STREAM tx JOIN (SELECT * FROM users WHERE id > 1) u USING (id)", "only known by key"),
            ("SELECT name FROM users", "no stream"),
        ):
            with pytest.raises((UnsupportedQuery, QueryTypeError), match=what):
                pond.add("wrong", text)
        pond.add("names", "SELECT name FROM STREAM tx JOIN users USING (id)")
        with pytest.raises(SourceError, match=r"The row 'user:1' is none of the table users"):
            pond.run()
    with Pond(spark, tmp_path / "nowhere") as pond:
        declared(pond, tmp_path)
        pond.lookup_table("users", columns, key="user:{id}")
        pond.add("names", "SELECT name FROM STREAM tx JOIN users USING (id)")
        assert "LEFT JOIN hash user:{id}" in explain(pond.plan, pond.streams), "which needs no server"
        with pytest.raises(StoreError, match="`lmdb`, the pond's own store, is none"):
            pond.run()
    with Pond(spark, tmp_path / "other") as pond:
        declared(pond, tmp_path)
        pond.lookup_table("hidden", columns, key="user:{id}", address=secret, vanished="fail")
        pond.add("names", "SELECT name FROM STREAM tx JOIN hidden USING (id)")
        with pytest.raises(StoreError) as error:
            pond.run()
        assert "hidden@" not in str(error.value)
