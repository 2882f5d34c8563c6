"""Look-ups in rows of other programs, on real servers: equal to a dict, few commands, servers that fail."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from kit.costs.counted_calls import CountedCalls
from kit.naive.keyed_tables import looked_up
from kit.servers.redis_servers import RedisCluster, RedisServer
from kit.servers.servers import until
from millpond.errors import QueryTypeError, SourceError, StoreError
from millpond.model.keyed_table import PROBLEM, KeyedTable, check_keyed
from millpond.model.stream import Field
from millpond.runtime.joins.lookup_rows import KeyedReader, defaults_of
from millpond.state.backends.redis_keyed import RedisKeyed
from millpond.state.backends.redis_nodes import Nodes
from millpond.state.ports.keyed_rows import VanishedError

COLUMNS = (
    Field("id", "bigint"), Field("kind", "string"), Field("name", "string"), Field("score", "double"),
    Field("level", "tinyint"), Field(PROBLEM, "string"),
)  # fmt: skip
TABLE = KeyedTable("users", "user:{{{kind}}}:{id}", COLUMNS, defaults='{"name": "nobody", "level": 1}')
opened = cache(RedisKeyed)


def users(server: RedisServer | RedisCluster, **more: Any) -> KeyedReader:
    settings: dict[str, Any] = {name: getattr(TABLE, name) for name in TABLE.__struct_fields__} | more
    table = KeyedTable(**settings)
    check_keyed(table)
    return KeyedReader(table, lambda: opened(server.url))


def fill(client: Any, dice: random.Random, form: str) -> dict[str, Any]:
    """Random rows, some of them none; what a dict would hold."""
    held: dict[str, Any] = {}
    for id in range(60):
        for kind in ("a", "b{", "é"):
            key = f"user:{{{kind}}}:{id}"
            name, score = dice.choice(("ann", "Zoë", "")), dice.choice((1.5, -3.0, 1e300))
            row = {"name": name, "score": score, "level": dice.randint(-200, 200), "other": "x"}
            row = {column: value for column, value in row.items() if dice.random() < 0.8}
            how = dice.random()
            if how < 0.2:
                continue
            if how < 0.3:
                held[key] = dice.choice(("5", "[1]", "{", "")) if form == "json" else "text"
            elif form == "hash":
                held[key] = {column: dice.choice((str(value), "??")) if how < 0.4 else str(value)
                             for column, value in row.items()} or {"other": "x"}  # fmt: skip
            else:
                held[key] = {"other": "x"} if how < 0.35 else json.dumps(row | ({"score": "1"} if how < 0.45 else {}))
            if isinstance(held[key], dict):
                client.hset(key, mapping=held[key])
            else:
                client.set(key, held[key])
    return held


@pytest.fixture
def own_server(redis_installed: None, tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may harm."""
    with RedisServer(tmp_path / "redis") as made:
        yield made


@pytest.mark.parametrize("form", ["hash", "json"])
@pytest.mark.parametrize("policy", ["null", "default", "dead-letter"])
def test_answers_are_those_of_a_dict(
    redis_server: RedisServer, redis_cluster: RedisCluster, form: str, policy: str
) -> None:
    dice = random.Random(form + policy)
    for server in (redis_server, redis_cluster):
        server.flush()
        with server.client() as client:
            held = fill(client, dice, form)
        events = [(dice.choice((None, *range(80))), dice.choice((None, "a", "b{", "é"))) for _ in range(500)]
        reader = users(server, form=form, missing=policy, wrong_type=policy)
        kinds, ids = pa.array([kind for _, kind in events]), pa.array([id for id, _ in events], pa.int64())
        expected = [looked_up(reader.table, held, (kind, id)) for id, kind in events]
        assert reader(kinds, ids).to_pylist() == expected
        assert {one[PROBLEM] for one in expected} == {None, "missing", "wrong type"}
        assert reader(kinds.slice(0, 0), ids.slice(0, 0)).to_pylist() == []


def test_a_batch_is_one_pipeline_to_each_primary_and_one_command_for_each_key(
    redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_cluster.flush()
    table = KeyedTable("users", "user:{id}", (Field("id", "bigint"), Field("name", "string")))
    reader = KeyedReader(table, lambda: opened(redis_cluster.url))
    ids = pa.array([None, *range(300)] * 10, pa.int64())
    reader(ids)
    before = [server.calls().get("hmget", 0) for server in redis_cluster.servers]
    trips: list[int] = []
    plain = Nodes._answered
    monkeypatch.setattr(Nodes, "_answered", lambda self, words: (trips.append(len(words)), plain(self, words))[1])
    reader(ids)
    after = [server.calls().get("hmget", 0) for server in redis_cluster.servers]
    requests = [late - early for early, late in zip(before, after, strict=True)]
    assert sum(requests) == 300 and all(requests)
    assert trips == [3]


def test_a_server_that_vanishes_is_waited_for(own_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    ids, kinds = pa.array([1, 2], pa.int64()), pa.array(["a", "a"])
    waits = users(own_server)
    with own_server.client() as client:
        client.hset("user:{a}:1", mapping={"name": "ann"})
    assert waits(kinds, ids).field("name").to_pylist() == ["ann", None]
    own_server.kill()
    said = list[str]()

    def is_waited_for() -> bool:
        said.append(capsys.readouterr().err)
        return "[MP-STORE] The table users is waited for" in "".join(said)

    def back() -> None:
        until(is_waited_for, "the table is waited for")
        own_server.start()
        with own_server.client() as client:
            client.hset("user:{a}:2", mapping={"name": "bob"})

    thread = threading.Thread(target=back)
    thread.start()
    found = waits(kinds, ids)
    thread.join()
    assert found.field(PROBLEM).to_pylist()[0] == "missing"
    assert is_waited_for() and "127.0.0.1" not in "".join(said)


def test_a_server_that_is_stopped_is_null_default_dead_or_an_error(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, kinds = pa.array([1], pa.int64()), pa.array(["a"])
    url = own_server.url

    def read(vanished: str) -> dict[str, Any]:
        table = KeyedTable("users", TABLE.key, COLUMNS, vanished=vanished, defaults=TABLE.defaults)
        [found] = KeyedReader(table, lambda: opened(url))(kinds, ids).to_pylist()
        return dict(found)

    with own_server.client() as client:
        client.hset("user:{a}:1", mapping={"name": "ann"})
    assert read("null")["name"] == "ann"
    own_server.pause()
    url += "?socket_timeout=0.3"
    answers = CountedCalls(monkeypatch, redis.Connection, "read_response")
    assert read("null") == {**dict.fromkeys(read("null")), "alive": True, PROBLEM: "vanished"}
    assert (read("default")["name"], read("default")["id"]) == ("nobody", 1)
    assert read("dead-letter")["alive"] is None
    with pytest.raises(VanishedError, match="users cannot be read"):
        read("fail")
    assert answers.count <= 8, "it is not read again at once"
    threading.Timer(1.0, own_server.resume).start()
    assert read("wait")["name"] == "ann"
    with own_server.client() as client:
        client.execute_command("ACL", "SETUSER", "nobody", "on", ">secret", "~other:*", "+@all", "-hmget")
    refused = KeyedReader(TABLE, lambda: opened(own_server.url.replace("//", "//nobody:secret@")))
    with pytest.raises(StoreError, match="refuses this user") as error:
        refused(kinds, ids)
    assert "secret" not in str(error.value) and "secret" not in repr(refused)


def test_what_is_no_table_is_refused(redis_server: RedisServer) -> None:
    redis_server.flush()
    for wrong, what in (
        ({"key": "user:1"}, "names no column"), ({"key": "user:{nosuch}"}, "'nosuch', which is no column"),
        ({"key": "user:{"}, "is no pattern"), ({"key": "u:{id:>3}"}, "has a format"),
        ({"key": "u:{score}"}, "is a double"),
        ({"missing": "drop"}, "`missing` of users is 'drop'"), ({"columns": COLUMNS[:2]}, "no column besides"),
        ({"columns": (*COLUMNS[:2], Field("x", "array<int>"))}, "array<int>, which is not read"),
    ):  # fmt: skip
        with pytest.raises(QueryTypeError, match=what):
            users(redis_server, **wrong)
    for defaults in ("[]", '{"nosuch": 1}', '{"level": 1000}', "{"):
        with pytest.raises(QueryTypeError, match="not a JSON object with its columns"):
            defaults_of(users(redis_server, defaults=defaults).table)
    with redis_server.client() as client:
        client.set("user:{a}:1", "no hash")
    with pytest.raises(SourceError, match=r"user:\{a\}:1"):
        users(redis_server, wrong_type="fail")(pa.array(["a"]), pa.array([1], pa.int64()))
