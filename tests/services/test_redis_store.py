"""The Redis store's own guarantees, on real servers: commands, users, moving slots, full memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from kit.costs.counted_calls import CountedCalls
from kit.servers.redis_servers import RedisCluster, RedisServer, certified, tls_options
from kit.servers.servers import free_ports, until
from millpond.errors import ForeignPondError, StoreError
from millpond.placement.slots import hash_tags
from millpond.state.backends.redis import RedisStore
from millpond.state.backends.redis_files import RedisFiles
from millpond.state.backends.redis_nodes import Nodes
from millpond.state.ports.store import NEVER, Apply, Outcome, ReadRequest, ReadResult, Rows, TableWrite, Verdict
from millpond.testing.conformance import check_file_store

BUCKETS = 48
TAGS = hash_tags(BUCKETS)
KEYS = [b"%05d" % i for i in range(500)]


def steps(n: int, buckets: int = BUCKETS) -> list[Apply]:
    write = TableWrite("spend", KEYS, [b"%d" % n] * len(KEYS))
    return [Apply(bucket, n, n - 1, [write]) for bucket in range(buckets)]


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    redis_server.flush()
    return redis_server


@pytest.fixture
def own_server(redis_installed: None, tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may harm."""
    with RedisServer(tmp_path / "redis") as made:
        yield made


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """How many pipelines each node was sent."""
    counted: Counter[tuple[str, int]] = Counter()
    plain = Nodes._answered

    def counting(self: Nodes, words: Any) -> Any:
        counted.update(words.keys())
        return plain(self, words)

    monkeypatch.setattr(Nodes, "_answered", counting)
    return counted


def test_a_call_is_one_pipeline_per_primary_and_one_script_per_bucket(
    redis_cluster: RedisCluster, trips: Counter[tuple[str, int]]
) -> None:
    redis_cluster.flush()
    store = RedisStore(redis_cluster.url, TAGS)
    store.apply_many(steps(0))  # the servers learn the scripts
    nodes = {("127.0.0.1", server.port) for server in redis_cluster.servers}
    for call in (
        lambda: store.apply_many(steps(1)),
        lambda: store.applied_many(range(BUCKETS)),
        lambda: store.read_many([ReadRequest(bucket, "spend", KEYS) for bucket in range(1, BUCKETS)]),
    ):
        trips.clear()
        call()
        assert trips == dict.fromkeys(nodes, 1)
    for server in redis_cluster.servers:
        with server.client() as client:
            client.config_resetstat()
    store.apply_many(steps(2))
    commands = sum((Counter(server.calls()) for server in redis_cluster.servers), Counter())
    ours = ("evalsha", "hget", "hset", "sadd")
    # of a bucket: its pond and its number, the name of its table, all its rows at once, its new number
    assert [commands[name] for name in ours] == [BUCKETS, 2 * BUCKETS, 2 * BUCKETS, BUCKETS]
    assert set(commands) - {*ours} <= {"config|resetstat", "info", "hello", "client|setinfo"}, "no more than these"
    store.close()


def test_buckets_lie_where_the_slots_of_their_keys_are(redis_cluster: RedisCluster) -> None:
    store = RedisStore(redis_cluster.url, TAGS)
    third = BUCKETS // 3
    ports = [redis_cluster.servers[bucket // third].port for bucket in range(BUCKETS)]
    assert store.shards(range(BUCKETS)) == [f"127.0.0.1:{port}" for port in ports]
    store.close()


def test_scripts_that_a_server_forgot_are_sent_again(redis_cluster: RedisCluster) -> None:
    redis_cluster.flush()
    store = RedisStore(redis_cluster.url, TAGS)
    for n in range(3):
        for server in redis_cluster.servers[n:]:
            with server.client() as client:
                client.script_flush()
        assert {outcome.verdict for outcome in store.apply_many(steps(n))} == {Verdict.APPLIED}
        assert store.read(BUCKETS - 1, "spend", KEYS[:1]) == ReadResult(n, [b"%d" % n])
    store.close()


def test_large_steps_and_reads(server: RedisServer) -> None:
    store = RedisStore(server.url, TAGS)
    keys = [b"%d" % i for i in range(50_000)]
    store.apply(3, 0, NEVER, [TableWrite("t", keys, keys)])
    store.apply(3, 1, 0, [TableWrite("t", keys[:30_000], [None] * 30_000)])
    assert store.read(3, "t", keys) == ReadResult(1, [None] * 30_000 + keys[30_000:])
    assert sorted(store.scan(3, "t").keys) == sorted(keys[30_000:])
    with pytest.raises(StoreError, match=r"550,00\d rows; Redis takes 500,000"):
        store.apply(3, 2, 1, [TableWrite("t", keys * 10 + [b"k%d" % i for i in range(500_000)], [b""] * 1_000_000)])
    store.close()


def test_large_scans_come_in_pieces_and_whole(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RedisStore(server.url, TAGS)
    keys = [b"%d" % i for i in range(25_000)]
    store.apply(3, 0, NEVER, [TableWrite("t", keys, [b"0"] * len(keys))])
    many, none = store.scan_many([3, 4], "t")
    assert (many.applied, sorted(many.keys), none) == (0, sorted(keys), Rows(NEVER))
    with server.client() as client:
        client.config_resetstat()
    rows = store.scan(3, "t")
    assert (rows.applied, set(rows.values), sorted(rows.keys)) == (0, {b"0"}, sorted(keys))
    assert server.calls()["hscan"] >= 2 and "hgetall" not in server.calls()
    plain, n = RedisStore._in_pieces, [0]

    def disturbed(self: RedisStore, bucket: int, table: str) -> dict[bytes, bytes]:
        """Another step happens between two pieces, the given number of times."""
        found = plain(self, bucket, table)
        if n[0] < moves:
            n[0] += 1
            store.apply(3, n[0], n[0] - 1, [TableWrite("t", keys, [b"%d" % n[0]] * len(keys))])
        return found

    monkeypatch.setattr(RedisStore, "_in_pieces", disturbed)
    for moves in (1, 4):
        rows = store.scan(3, "t")
        assert (rows.applied, set(rows.values), len(rows.keys)) == (moves, {b"%d" % moves}, len(keys))
    assert server.calls()["hgetall"] == 1, "after three moves all is read at once"
    store.close()


def test_keys_are_those_documented(server: RedisServer) -> None:
    store = RedisStore(server.url, hash_tags(1024), owner="a-pond")
    write = TableWrite("spend", [b'["c-17"]', b'["gone"]'], [b"{}", b"{}"])
    store.apply_many([Apply(1, 0, NEVER, [write]), Apply(1, 2, 0, [TableWrite("spend", [b'["gone"]'], [None])])])
    with server.client() as client:
        kept = {key: client.hgetall(key) for key in client.scan_iter() if client.type(key) == b"hash"}
        assert kept == {
            b"mp:{4883}:meta": {b"applied": b"2", b"mark": b"", b"pond": b"a-pond", b"layout": b"1"},
            b"mp:{4883}:rows:spend": {b'["c-17"]': b"{}"},
        }
        assert client.smembers("mp:{4883}:tables") == {b"spend"}
        assert [client.ttl(key) for key in client.scan_iter()] == [-1] * 3
    store.close()


def test_a_server_that_evicts_is_refused(server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(StoreError, match=r"may evict.*allkeys-lru.*CONFIG SET maxmemory-policy noeviction"):
                RedisStore(server.url, TAGS)
            RedisStore(server.url, TAGS, read_only=True).close()
        finally:
            client.config_set("maxmemory-policy", "noeviction")


def test_a_full_server_refuses_whole_steps_and_can_be_read_and_cleared(server: RedisServer) -> None:
    store = RedisStore(server.url, TAGS)
    store.apply_many(steps(0))
    with server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreError, match=r"no memory left.*maxmemory"):
                store.apply_many(steps(1))
            assert store.applied_many(range(BUCKETS)) == [0] * BUCKETS
            assert set(store.read(5, "spend", KEYS).values) == {b"0"}
            store.clear(5)
            assert store.applied(5) == NEVER
        finally:
            client.config_set("maxmemory", 0)
    assert store.apply_many(steps(1)[:5]) == [Outcome(bucket, Verdict.APPLIED, 1) for bucket in range(5)]
    store.close()


def test_foreign_ponds_and_layouts_are_refused(server: RedisServer) -> None:
    mine = RedisStore(server.url, TAGS, owner="mine")
    late = RedisStore(server.url, TAGS, owner="yours")
    mine.apply(7, 0, NEVER, [TableWrite("t", [b"k"], [b"v"])])
    with pytest.raises(ForeignPondError, match=r"belong to 'mine', not to 'yours'.*prefix"):
        RedisStore(server.url, TAGS, owner="yours")
    for write in (lambda: late.apply(7, 1, 0), lambda: late.clear(7), lambda: late.drop_table("t", 9)):
        with pytest.raises(ForeignPondError):
            write()
    assert mine.read(7, "t", [b"k"]) == ReadResult(0, [b"v"])
    other = RedisStore(f"{server.url}?prefix=shop:view", TAGS, owner="yours")
    other.apply(7, 3, NEVER)
    assert (mine.applied(7), other.applied(7)) == (0, 3)
    with server.client() as client:
        assert client.hget(f"shop:view:{{{TAGS[7]}}}:meta", "applied") == b"3"
        client.hset(f"mp:{{{TAGS[7]}}}:meta", "layout", "9")
    with pytest.raises(StoreError, match="layout b'9'"):
        RedisStore(server.url, TAGS, owner="mine")
    for store in (mine, late, other):
        store.close()


@pytest.mark.parametrize("address, said", [
    ("redis://127.0.0.1:{port}?prefix=a{{b", "No keys can begin"),
    ("redis://127.0.0.1:{port}?nonsense=1", "nonsense"),
    ("redis://127.0.0.1:x", "address is none"),
    ("redis://", "names no host"),
    ("redis+sentinel://127.0.0.1:{port}", "no such address"),
    ("redis://ann:secret/word@127.0.0.1:{port}", "instead of `%2F`"),
    ("redis://ann:secret#word@127.0.0.1:{port}", "or a password has one of"),
    ("redis://ann:secret@127.0.0.1:{port}", "refuses this user"),
    ("redis://127.0.0.1:1", "refused"),
])  # fmt: skip
def test_addresses_that_do_not_work(server: RedisServer, address: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as found:
        RedisStore(address.format(port=server.port), TAGS)
    assert "secret" not in str(found.value)


PAGE = Path(__file__).parents[2] / "docs" / "guide" / "stores.md"


def test_users_that_may_do_no_more_than_they_need(server: RedisServer) -> None:
    rules = [line.split() for line in PAGE.read_text().splitlines() if line.startswith("ACL SETUSER")]
    assert [rule[2] for rule in rules] == ["pond", "pond", "reader", "reader"]
    with server.client() as client:
        for rule in rules:
            client.execute_command(*[word.replace("PASSWORD", "pw") for word in rule])
    try:
        store = RedisStore(server.url.replace("//", "//pond:pw@"), TAGS, owner="p")
        files = RedisFiles(server.url.replace("//", "//pond:pw@"), "p", TAGS)
        check_file_store(files)
        files.close()
        store.apply_many(steps(0))
        assert (store.tables(), store.statistics().keys) == ({"spend"}, BUCKETS * len(KEYS))
        guest = RedisStore(server.url.replace("//", "//reader:pw@"), TAGS, owner="p", read_only=True)
        assert guest.read(1, "spend", KEYS[:1]) == ReadResult(0, [b"0"])
        assert len(guest.scan(1, "spend").keys) == len(KEYS)
        with pytest.raises(StoreError, match="opened to read"):
            guest.clear(1)
        with pytest.raises(StoreError, match="refuses this user"):
            RedisStore(server.url.replace("//", "//reader:pw@"), TAGS, owner="p")
        with pytest.raises(StoreError, match="refuses this user"):
            RedisStore(server.url.replace("//", "//pond:pw@") + "?prefix=other", TAGS)
        store.clear(1)
        store.drop_table("spend", 1 << 40)
        assert store.statistics().keys == 0
        store.close()
        guest.close()
    finally:
        with server.client() as client:
            client.execute_command("ACL", "DELUSER", "pond", "reader")


def test_a_restarted_server_is_found_empty(own_server: RedisServer) -> None:
    store = RedisStore(own_server.url, TAGS)
    store.apply_many(steps(0))
    own_server.kill()
    with pytest.raises(StoreError, match="failed"):
        store.applied(0)
    own_server.start()
    assert store.applied_many(range(BUCKETS)) == [NEVER] * BUCKETS
    assert {outcome.verdict for outcome in store.apply_many(steps(0))} == {Verdict.APPLIED}
    own_server.kill()
    own_server.start()
    assert store.applied(0) == NEVER, "a connection to the server before is no reason to fail"
    store.close()


def test_a_silent_server_is_not_waited_for_long(own_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store, impatient = RedisStore(own_server.url, TAGS), RedisStore(f"{own_server.url}?socket_timeout=0.3", TAGS)
    store.apply_many(steps(0))
    answers = CountedCalls(monkeypatch, redis.Connection, "read_response")
    own_server.pause()
    with pytest.raises(StoreError, match="did not answer in time"):
        impatient.apply_many(steps(1))
    own_server.resume()
    assert answers.count <= 2
    until(lambda: store.applied(0) == 1, "what was sent to the silent server is applied")
    assert {outcome.verdict for outcome in store.apply_many(steps(1))} <= {Verdict.ALREADY, Verdict.APPLIED}
    assert store.applied_many(range(BUCKETS)) == [1] * BUCKETS
    store.close()


def test_slots_that_move_are_followed(redis_cluster: RedisCluster) -> None:
    redis_cluster.flush()
    bucket = 5
    slot = -(-bucket * 16384 // BUCKETS)
    source, target = redis_cluster.servers[0], redis_cluster.servers[2]
    store = RedisStore(redis_cluster.url, TAGS)
    store.apply_many(steps(0))
    with source.client() as old, target.client() as new, ExitStack() as back:
        names = [client.execute_command("CLUSTER MYID").decode() for client in (old, new)]
        back.callback(redis_cluster.flush)
        back.callback(store.close)
        for client in (new, old):
            back.callback(client.execute_command, "CLUSTER SETSLOT", slot, "STABLE")
        new.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[0])
        old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[1])
        assert store.read(bucket, "spend", KEYS[:1]) == ReadResult(0, [b"0"]), "still all on the source"
        keys = [f"mp:{{{TAGS[bucket]}}}:{name}" for name in ("meta", "tables", "rows:spend")]
        old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        # every key of the slot has moved, its owner has not: ASK
        assert store.read(bucket, "spend", KEYS[:1]) == ReadResult(0, [b"0"])
        assert {outcome.verdict for outcome in store.apply_many(steps(1))} == {Verdict.APPLIED}
        for client in (new, old):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", names[1])
        # a slot that is given back without being imported has no newer epoch: what nodes tell each other may undo it
        back.callback(redis_cluster.move, [slot], 2, 0, lambda: None)
        assert {outcome.verdict for outcome in store.apply_many(steps(2))} == {Verdict.APPLIED}
        assert store.read(bucket, "spend", KEYS[:1]) == ReadResult(2, [b"2"])
        assert store.shards([bucket]) == [f"127.0.0.1:{target.port}"]


def test_a_replica_takes_over_from_a_dead_primary(redis_installed: None, tmp_path: Path) -> None:
    with RedisCluster(tmp_path / "cluster", primaries=3, replicas=1) as cluster:
        store = RedisStore(cluster.url, TAGS)
        store.apply_many(steps(0))
        with cluster.servers[4].client() as client:
            until(lambda: client.dbsize() == BUCKETS, "the replica has it")  # a third of all, three keys each
        cluster.servers[1].kill()

        def applied() -> bool:
            try:
                return {outcome.applied for outcome in store.apply_many(steps(1))} == {1}
            except StoreError:
                return False

        until(applied, "the replica has taken over")
        requests = [ReadRequest(bucket, "spend", KEYS[:1]) for bucket in range(BUCKETS)]
        assert store.read_many(requests) == [ReadResult(1, [b"1"])] * BUCKETS
        assert store.shards([BUCKETS // 2]) == [f"127.0.0.1:{cluster.servers[4].port}"]
        store.close()


def test_sentinels_name_the_primary(own_server: RedisServer, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text(f"sentinel monitor pond 127.0.0.1 {own_server.port} 1\n")
    with RedisServer(tmp_path / "replica", "--replicaof", "127.0.0.1", str(own_server.port)) as replica:
        own = [str(configuration), "--sentinel"]
        with own_server.client() as client:
            until(lambda: client.info("replication")["connected_slaves"] == 1, "the replica follows")
        with RedisServer(tmp_path / "sentinel", port=port, configuration=own):
            store = RedisStore(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/pond", TAGS)
            store.apply_many(steps(0))
            with replica.client() as client:
                until(lambda: client.dbsize() == 3 * BUCKETS, "the replica has it")
            with redis.Redis(port=port) as sentinel:
                sentinel.execute_command("SENTINEL DEBUG", "info-period", 200, "publish-period", 200)  # ms
                until(lambda: sentinel.execute_command("SENTINEL REPLICAS", "pond"), "the Sentinel knows the replica")
                until(lambda: _failed_over(sentinel, replica.port), "the Sentinel fails over")
            until(lambda: store_on(store, replica.port), "the store has followed")
            assert {outcome.verdict for outcome in store.apply_many(steps(1))} == {Verdict.APPLIED}
            store.close()


def _failed_over(sentinel: Any, port: int) -> bool:
    """Whether the Sentinel names this primary; it gives up a failover, which is then repeated, if a replica's last
    answer is older than three periods."""
    if sentinel.sentinel_get_master_addr_by_name("pond")[1] == port:
        return True
    with suppress(redis.ResponseError):  # one is in progress, or none is possible yet
        sentinel.execute_command("SENTINEL FAILOVER", "pond")
    return False


def store_on(store: RedisStore, port: int) -> bool:
    try:
        store.apply(0, 0, NEVER)
    except StoreError:
        return False
    return store.shards([0]) == [f"127.0.0.1:{port}"]


def test_tls_and_a_password(redis_installed: None, tmp_path: Path) -> None:
    certificate, (plain, secure) = certified(tmp_path), free_ports(2)
    options = tls_options(certificate, secure)
    with RedisServer(tmp_path / "redis", *options, port=plain) as server:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "pond", "on", ">p@ss", "~*", "+@all")
        address = f"rediss://pond:p%40ss@localhost:{secure}"
        store = RedisStore(f"{address}?ssl_ca_certs={certificate}", TAGS)
        assert store.apply(0, 0, NEVER, steps(0)[0].writes).verdict is Verdict.APPLIED
        store.close()
        with pytest.raises(StoreError, match="certificate verify failed"):
            RedisStore(address, TAGS)
