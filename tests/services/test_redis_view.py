"""A view in Redis that instances write equals one in memory, for any failure of the servers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from kit.inputs.cases import Menu, random_case
from kit.judges.answers import Run, dealt
from kit.naive.queries.windows import answer
from kit.programs.forked_program import ForkedProgram
from kit.servers.redis_servers import RedisCluster, RedisServer
from kit.servers.servers import until
from millpond.errors import CorruptError, StoreError
from millpond.followers.record_rows import RowsReader, section_reader
from millpond.followers.runner import Runner
from millpond.followers.view.move_shards import ShardMover
from millpond.followers.view.shard_watch import SlotsWatch
from millpond.followers.view.shared_view import Caught, Share, SharedView, catch_up, owners_of
from millpond.followers.view.view import ViewFollower, scan
from millpond.log.manifest import load
from millpond.model.query import Query, length_us
from millpond.placement.alignment import placement_of, rescaled_on
from millpond.placement.moves import BucketMap
from millpond.placement.shards import assign_buckets, requested_shards
from millpond.placement.slots import even_owners, hash_tags, slots_of
from millpond.reconfigure.catalog import history, in_force
from millpond.reconfigure.placement_changes import resharded, scale
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.epoch import maps
from millpond.state.backends.memory import MemoryStore
from millpond.state.backends.redis import RedisStore
from millpond.state.ports.files import Files
from millpond.state.ports.store import BucketStore, TableWrite
from millpond.testing.compare import difference

BUCKETS = 48
INSTANCES = 3
OWNERS = even_owners(BUCKETS, INSTANCES)
DEALT = tuple(bucket * 7 % INSTANCES for bucket in range(BUCKETS))
"""Owners that are no ranges."""
SECONDS = 120.0


class Bench:
    """A pond without Spark, its view in memory and its view in Redis, which threads keep, one per instance."""

    def __init__(
        self, folder: Path, url: str, seed: int, owners: tuple[int, ...] = OWNERS, *, following: bool = False,
        timeout: float = SECONDS, every: int = 1,
    ) -> None:  # fmt: skip
        """`timeout`: how long the view waits for an answer, in seconds; one in `every` of the case's queries counts."""
        self.case = random_case(seed, 150, 8, menu=Menu(raising=False, moments=False))
        self.queries = [query for query in self.case.queries if isinstance(query, Query)][::every]
        self.served = [msgspec.structs.replace(query, serve=True) for query in self.queries]
        self.sizes = {query.name: length_us(query.window) for query in self.served}
        self.url, self.folder = f"{url}?socket_timeout={timeout:g}", folder
        self.run = Run(folder, self.served, INSTANCES, BUCKETS, owners=owners)
        self.plain = MemoryStore()
        log, manifests = self.run.pond.log, self.run.pond.manifests
        view = ViewFollower(
            self.plain, RowsReader(section_reader(Files(folder))), BUCKETS, lambda: self.sizes,
            lambda: load(log, manifests), log.read,
        )  # fmt: skip
        self.run.pond.follow(view)
        self.deal = dealt(seed)
        self.epochs_fed = 0
        self.stores = [RedisStore(self.url, hash_tags(BUCKETS), owner="p", check=False) for _ in range(INSTANCES + 1)]
        self.store = RedisStore(self.url, hash_tags(BUCKETS), owner="p")
        self.checked = RedisStore(f"{url}?socket_timeout={SECONDS:g}", hash_tags(BUCKETS), owner="p")
        self.slots = SlotsWatch(BUCKETS, every_us=50_000)
        share = Share(str(folder), owners, self.sizes, -1)
        self.shared = SharedView(self.store, share, self.settle, watch=self.slots if following else None)
        self.runner = Runner(log, manifests, [self.shared], first_delay=0.05, longest_delay=0.2, look_every=0.3)

    def settle(self, share: Share) -> Sequence[Caught]:
        with ThreadPoolExecutor(INSTANCES) as threads:
            caught = threads.map(lambda instance: catch_up(share, instance, self.stores[instance]), owners_of(share))
            return list(caught)

    def epochs(self, count: int) -> None:
        for epoch in self.case.epochs[self.epochs_fed : self.epochs_fed + count]:
            wanted = self.slots.wanted(self.now)
            if wanted is not None:
                self.run.pond.move(*wanted)
            self.run.epoch(self.deal(epoch))
            self.runner.notify(self.run.pond.manifest.n)
        self.epochs_fed += count

    @property
    def owners(self) -> tuple[int, ...]:
        return self.now.owners

    @property
    def now(self) -> BucketMap:
        """The map for the next epoch."""
        return maps(self.run.pond.setting, self.run.pond.manifest)[1]

    @property
    def group(self) -> str:
        """A group that the pond stores by key."""
        return next(section.group for section in self.run.pond.manifest.sections.values() if section.kind == "keys")

    def drain(self) -> None:
        self.run.pond.drain()
        self.runner.notify(self.run.pond.manifest.n)

    def caught_up(self) -> bool:
        return self.runner.wait(self.run.pond.manifest.n, SECONDS)

    def check(self) -> None:
        """Rows are those of the naive twin, both views are the same, and every bucket stands at the last record."""
        assert self.caught_up(), self.runner.status()
        answers = self.run.answers()
        for query in self.served:
            expected = answer(query, self.case.epochs[: self.epochs_fed], drained=True)
            assert difference(expected, answers.rows[query.name]) is None
        assert contents(self.checked, self.queries) == contents(self.plain, self.queries)
        assert set(self.checked.applied_many(range(BUCKETS))) == {self.run.pond.manifest.n}


def contents(store: BucketStore, queries: Sequence[Query]) -> dict[tuple[str, int, str], bytes]:
    return {
        (query.name, bucket.bucket, key): document
        for query in queries
        for bucket in scan(store, query.name, BUCKETS)
        for key, document in zip(bucket.keys, bucket.documents, strict=True)
    }


@contextmanager
def bench(
    folder: Path, servers: RedisServer | RedisCluster, seed: int = 3, owners: tuple[int, ...] = OWNERS,
    following: bool = False, timeout: float = SECONDS, every: int = 4,
) -> Iterator[Bench]:  # fmt: skip
    """A bench; for failures of servers two of the case's eight queries are enough."""
    servers.flush()
    made = Bench(folder / "pond", servers.url, seed, owners, following=following, timeout=timeout, every=every)
    made.runner.start()
    try:
        yield made
    finally:
        made.runner.stop(SECONDS)
        for store in (made.store, made.checked, *made.stores):
            store.close()


@pytest.fixture
def own_server(redis_installed: None, tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may harm."""
    with RedisServer(tmp_path / "redis") as made:
        yield made


@pytest.mark.parametrize(("kind", "seed"), [
    ("redis_server", 0), ("redis_server", 1), ("redis_cluster", 2), ("redis_cluster", 3),
    *(pytest.param(kind, seed, marks=pytest.mark.exhaustive)
      for kind, seed in (("redis_server", 2), ("redis_server", 3), ("redis_cluster", 0), ("redis_cluster", 1))),
])  # fmt: skip
def test_views_agree(kind: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with bench(tmp_path, request.getfixturevalue(kind), seed, OWNERS if seed % 2 else DEALT, every=1) as made:
        made.epochs(8)
        made.drain()
        made.check()
        assert made.shared.note is None


def test_what_a_cluster_forgets_is_replayed(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    with bench(tmp_path, redis_cluster) as made:
        made.epochs(3)
        assert made.caught_up()
        for server in redis_cluster.servers:
            with server.client() as client:
                client.script_flush()
        made.epochs(2)
        assert made.caught_up() and made.shared.note is None, "forgotten scripts cost nothing but a round trip"
        with redis_cluster.servers[1].client() as client:
            client.flushall()
        made.epochs(3)
        made.drain()
        made.check()
        assert made.shared.note is not None and made.shared.note.startswith(f"{BUCKETS // 3} buckets that the store")
        assert made.runner.status()[0].note == made.shared.note


def harmed(harm: Callable[[RedisServer], Any], mend: Callable[[RedisServer], Any], said: str) -> Any:
    return pytest.param(harm, mend, said, id=said.replace(" ", "-"))


def limit(server: RedisServer, size: int) -> None:
    with server.client() as client:
        client.config_set("maxmemory", size)


@pytest.mark.parametrize("harm, mend, said", [
    harmed(RedisServer.kill, RedisServer.start, "failed"),
    harmed(RedisServer.pause, RedisServer.resume, "did not answer in time"),
    harmed(lambda server: limit(server, 1), lambda server: limit(server, 0), "no memory left"),
])  # fmt: skip
def test_a_server_that_fails_for_a_while(
    own_server: RedisServer, tmp_path: Path, harm: Callable[[RedisServer], Any], mend: Callable[[RedisServer], Any],
    said: str,
) -> None:  # fmt: skip
    with bench(tmp_path, own_server, timeout=0.4) as made:
        made.epochs(3)
        assert made.caught_up()
        harm(own_server)
        made.epochs(3)
        assert not made.runner.wait(made.run.pond.manifest.n, 1.5), "epochs go on, the view waits"
        until(lambda: made.runner.status()[0].failures, "the view has failed")
        status = made.runner.status()[0]
        assert status.failures and said in str(status.error) and "[MP-STORE]" in str(status.error)
        mend(own_server)
        made.epochs(2)
        made.drain()
        made.check()
        status = made.runner.status()[0]
        assert (status.error, status.failures) == (None, 0)
        assert (status.note is not None) == (said == "failed"), "only a server that was started anew has lost anything"


def test_lost_buckets_are_replayed_while_the_pond_is_idle(redis_server: RedisServer, tmp_path: Path) -> None:
    with bench(tmp_path, redis_server) as made:
        made.epochs(8)
        made.drain()
        made.check()
        redis_server.flush()
        until(lambda: made.runner.status()[0].note is not None, "the view is looked at")
        made.check()
        n = made.run.pond.manifest.n
        assert made.shared.note == f"{BUCKETS} buckets that the store had lost were replayed, by record {n}"


def test_a_fail_over_that_loses_what_was_acknowledged(redis_installed: None, tmp_path: Path) -> None:
    with (
        RedisCluster(tmp_path / "servers", primaries=3, replicas=1) as cluster,
        bench(tmp_path, cluster) as made,
    ):
        made.epochs(2)
        assert made.caught_up()
        with cluster.servers[3].client() as replica, cluster.servers[0].client() as primary:
            replica.config_set("masterauth", "wrong")
            primary.execute_command("CLIENT", "KILL", "TYPE", "replica")
            until(lambda: replica.info("replication")["master_link_status"] == "down", "the replica is cut off")
        made.epochs(2)
        assert made.caught_up()
        cluster.servers[0].kill()
        made.epochs(4)
        made.drain()
        made.check()
        assert made.store.shards([0]) == [f"127.0.0.1:{cluster.servers[3].port}"]
        assert made.shared.note is not None and made.shared.note.startswith(f"{BUCKETS // 3} buckets that")


def test_slots_that_move_under_a_running_view(redis_installed: None, tmp_path: Path) -> None:
    moved = range(6)
    with RedisCluster(tmp_path / "servers") as cluster, bench(tmp_path, cluster, every=1) as made:
        made.epochs(2)
        assert made.caught_up()
        slots = slots_of(pa.array(hash_tags(BUCKETS)[: len(moved)])).tolist()
        keys = count()

        def meanwhile() -> None:
            if next(keys) in (1, 4, 6, 11):
                made.epochs(1)
                time.sleep(0.1)  # instances meet buckets that are half here, half there

        cluster.move(slots, 0, 2, meanwhile)
        assert made.epochs_fed == 6, "records came while slots moved"
        made.epochs(2)
        made.drain()
        made.check()
        assert made.shared.note is None, "nothing was lost"
        ports = [cluster.servers[2 if bucket in moved else bucket * 3 // BUCKETS].port for bucket in range(BUCKETS)]
        shards = made.store.shards(range(BUCKETS))
        assert shards == [f"127.0.0.1:{port}" for port in ports]
        assert placement_of(OWNERS, shards).aligned == 1 - len(moved) / BUCKETS, "owners stay"


def test_a_primary_is_filled_and_another_drained_under_a_running_view(redis_installed: None, tmp_path: Path) -> None:
    with RedisCluster(tmp_path / "servers", 2, empty=1) as cluster, bench(tmp_path, cluster) as made:
        made.epochs(2)
        first, second, new = (f"127.0.0.1:{server.port}" for server in cluster.servers)
        assert made.store.servers() == sorted([first, second, new])
        with ThreadPoolExecutor(1) as thread:
            epochs = thread.submit(made.epochs, 6)
            made.store.move_shard([1], new)  # stays there, because a primary without slots becomes a replica
            while not epochs.done():
                made.store.move_shard(range(0, BUCKETS, 2), new)
                made.store.move_shard(range(0, BUCKETS, 2), second)
            made.store.move_shard(range(BUCKETS // 2), new)
            epochs.result()
        made.drain()
        made.check()
        assert made.shared.note is None, "nothing was lost"
        assert made.store.shards(range(BUCKETS)) == [new] * (BUCKETS // 2) + [second] * (BUCKETS // 2)
        assert (made.store.unfinished(), made.store.servers()) == (0, sorted([second, new]))


def test_a_shard_and_an_instance_are_added_together_and_by_another_driver(
    redis_installed: None, tmp_path: Path
) -> None:
    with RedisCluster(tmp_path / "servers", empty=1) as cluster, bench(tmp_path, cluster, following=True) as made:
        pond, before = made.run.pond, made.now
        made.epochs(2)
        until(lambda: bool(made.slots.steady and made.slots.servers), "the store was looked at")
        wanted = requested_shards(4, made.slots.steady, made.slots.servers)
        target = assign_buckets(made.slots.steady, wanted)
        pond.change(scale(KnownPond(pond.spec, pond.manifest), 4, made.slots.steady, target=target))
        arrived, leads = threading.Event(), iter([True, True])
        first = ShardMover(made.store, made.slots, lambda: next(leads, False), lambda _target: arrived.set())
        first.aim(pond.spec.effects.shards)
        made.epochs(2)
        until(lambda: first.note is None, "it ends after two portions")
        assert not arrived.is_set() and made.store.shards(range(BUCKETS)) != list(target)
        assert made.owners == rescaled_on(before.owners, target, 4)
        assert len(pond.manifest.live(3, made.group, "keys")), "the new instance works while slots move"
        second = ShardMover(made.store, made.slots, lambda: True, lambda _target: arrived.set())
        second.aim(in_force(pond.manifest).effects.shards)  # as the next driver finds it in the log
        made.epochs(2)
        assert arrived.wait(SECONDS), second.note
        pond.change(resharded(KnownPond(pond.spec, pond.manifest), target))
        second.aim(pond.spec.effects.shards)
        second.close()
        number = pond.manifest.map
        made.epochs(2)
        made.drain()
        made.check()
        shards = made.store.shards(range(BUCKETS))
        assert tuple(shards) == target and {*shards} == {*made.store.servers()}
        assert placement_of(made.owners, shards).aligned == 1
        assert [share.buckets for share in placement_of(made.owners, shards).shares] == [BUCKETS // 4] * 4
        assert pond.manifest.map == number, "owners moved once"
        assert [type(one.change).__name__ for one in history(pond.log, pond.manifest)] == ["Resharded", "Scale"]


@pytest.mark.parametrize("replicas", [0, 1])
def test_owners_follow_slots_that_move_and_the_view_follows_owners(
    replicas: int, redis_installed: None, tmp_path: Path
) -> None:
    """From a primary to another, with a replica also after a fail-over: aligned again, and nothing is lost."""
    gone = range(10)
    with (
        RedisCluster(tmp_path / "servers", replicas=replicas) as cluster,
        bench(tmp_path, cluster, following=True) as made,
    ):
        made.epochs(2)
        assert made.caught_up() and made.owners == OWNERS
        cluster.move(slots_of(pa.array(hash_tags(BUCKETS)[: len(gone)])).tolist(), 0, 2, lambda: None)
        until(lambda: made.slots.wanted(made.now) is not None, "slots have come to rest elsewhere")
        assert made.run.pond.manifest.map == 0, "nobody moves anything before the next epoch"
        made.epochs(1)
        number = made.run.pond.manifest.map
        assert number > 0 and made.owners == (2,) * len(gone) + OWNERS[len(gone) :]
        assert made.caught_up()
        placed = placement_of(made.owners, made.store.shards(range(BUCKETS)))
        assert placed.aligned == 1
        assert made.shared.note is not None and made.shared.note.startswith(
            f"the bucket map changed by record {number}: slots of the store lie elsewhere: 10 of 48 buckets follow "
        )
        assert "87.5% aligned before, 100.0% after" in made.shared.note
        if replicas:
            cluster.servers[2].kill()
        made.epochs(2)
        assert made.caught_up(), made.runner.status()
        made.store.clear_many(range(0, BUCKETS, 5))  # replayed from records of both maps
        made.epochs(3)
        made.drain()
        made.check()
        assert made.run.pond.manifest.map == number, "a replica that takes over moves no bucket"
        assert "buckets that the store had lost were replayed" in str(made.shared.note)


def test_a_node_of_a_cluster_without_memory(redis_installed: None, tmp_path: Path) -> None:
    with RedisCluster(tmp_path / "servers") as cluster, bench(tmp_path, cluster) as made:
        made.epochs(2)
        assert made.caught_up()
        limit(cluster.servers[1], 1)
        made.epochs(3)
        until(lambda: "no memory left" in str(made.runner.status()[0].error), "the status tells of it")
        assert made.runner.status()[0].failures
        limit(cluster.servers[1], 0)
        made.epochs(3)
        made.drain()
        made.check()
        status = made.runner.status()[0]
        assert (status.error, status.failures, status.note) == (None, 0, None), "nothing was lost"


@pytest.mark.slow
def test_a_node_that_is_stopped_for_twenty_seconds(redis_installed: None, tmp_path: Path) -> None:
    """Without replicas nothing takes over: epochs continue, the view waits, and is complete when the node resumes."""
    with RedisCluster(tmp_path / "servers") as cluster, bench(tmp_path, cluster, timeout=0.4) as made:
        made.epochs(2)
        assert made.caught_up()
        cluster.servers[1].pause()
        try:
            began = time.monotonic()
            for _ in range(4):
                made.epochs(1)
                time.sleep(1)
            until(lambda: made.runner.status()[0].error is not None, "the status tells of it")
            time.sleep(max(0.0, began + 20 - time.monotonic()))
            assert made.runner.status()[0].behind >= 4
        finally:
            cluster.servers[1].resume()
        made.epochs(2)
        made.drain()
        made.check()
        assert made.runner.status()[0].error is None


def test_a_primary_that_sleeps_until_its_replica_has_taken_over(redis_installed: None, tmp_path: Path) -> None:
    with RedisCluster(tmp_path / "servers", replicas=1) as cluster, bench(tmp_path, cluster, timeout=0.4) as made:
        made.epochs(2)
        assert made.caught_up()
        cluster.servers[0].pause()
        try:
            made.epochs(3)
            until(lambda: "did not answer" in str(made.runner.status()[0].error), "the status tells of it")
            assert made.caught_up(), "the replica has taken over, and the primary still sleeps"
            assert made.store.shards([0]) == [f"127.0.0.1:{cluster.servers[3].port}"]
        finally:
            cluster.servers[0].resume()
        made.epochs(3)
        made.drain()
        made.check()
        assert made.runner.status()[0].error is None


def test_a_node_of_a_cluster_that_starts_empty(redis_installed: None, tmp_path: Path) -> None:
    with RedisCluster(tmp_path / "servers") as cluster, bench(tmp_path, cluster) as made:
        made.epochs(3)
        assert made.caught_up()
        cluster.servers[1].kill()
        made.epochs(1)
        until(lambda: made.runner.status()[0].error is not None, "the status tells of it")
        cluster.servers[1].start()
        made.epochs(4)
        made.drain()
        made.check()
        assert made.shared.note is not None and made.shared.note.startswith(f"{BUCKETS // 3} buckets that")


def test_a_view_of_another_log_is_rebuilt(redis_server: RedisServer, tmp_path: Path) -> None:
    with bench(tmp_path, redis_server) as made:
        made.epochs(2)
        assert made.caught_up()
    store = RedisStore(redis_server.url, hash_tags(BUCKETS), owner="p")
    numbers = store.applied_many(range(BUCKETS))
    store.apply(5, 99, numbers[5])
    late = SharedView(store, Share(str(tmp_path / "pond"), OWNERS, made.sizes, -1), made_settle(store))
    assert late.cursor().n == numbers[0]
    assert store.applied_many(range(BUCKETS)) == numbers
    assert contents(store, made.queries) == contents(made.plain, made.queries)
    store.close()


def made_settle(store: BucketStore) -> Callable[[Share], Sequence[Caught]]:
    return lambda share: [catch_up(share, instance, store) for instance in owners_of(share)]


def test_an_instance_reads_and_writes_once_per_record(
    redis_cluster: RedisCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, redis_cluster) as made:
        made.epochs(3)
        assert made.caught_up()
        made.runner.stop(SECONDS)
        calls: list[str] = []
        for name in ("apply_many", "read_many", "applied_many", "tables"):
            plain = getattr(RedisStore, name)

            def counting(self: RedisStore, *given: Any, plain: Any = plain, name: str = name) -> Any:
                calls.append(name)
                return plain(self, *given)

            monkeypatch.setattr(RedisStore, name, counting)
        made.epochs(1)
        n = made.run.pond.manifest.n
        made.shared.apply(n, None, made.run.pond.manifest)  # type: ignore[arg-type]
        assert calls == ["apply_many"] * INSTANCES


ZOMBIE = """
import sys, msgspec
from millpond.placement.alignment import placement_of
from millpond.placement.slots import even_owners, hash_tags, slots_of
from millpond.followers.view.shared_view import Share, catch_up
from millpond.state.backends.redis import RedisStore
share = msgspec.json.decode(sys.argv[1], type=Share)
store = RedisStore(sys.argv[2], hash_tags(len(share.owners)), owner="p", check=False)
print(msgspec.json.encode(catch_up(share, 0, store)).decode())
"""


def test_an_instance_that_wakes_up_late_changes_nothing(redis_server: RedisServer, tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    faults.mkdir()
    with bench(tmp_path, redis_server) as made:
        made.epochs(3)
        assert made.caught_up()
        n = made.run.pond.manifest.n
        share = Share(str(made.folder), OWNERS, made.sizes, n - 1)  # as of an older epoch
        program = tmp_path / "zombie.py"
        program.write_text(ZOMBIE)
        zombie = ForkedProgram(
            [program, msgspec.json.encode(share).decode(), made.url],
            env=os.environ | {"MILLPOND_FAULT_DIR": str(faults), "MILLPOND_FAULT": "view.before_apply:1:stop"},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            until((faults / "view.before_apply.1.stop").exists, "the instance stands before its step")
            made.epochs(5)
            made.drain()
            assert made.caught_up()
            os.kill(zombie.pid, signal.SIGCONT)
            said, _ = zombie.communicate(timeout=SECONDS)
        finally:
            zombie.kill()
        found = msgspec.json.decode(said, type=Caught)
        assert found == Caught(made.run.pond.manifest.n, requests=found.requests)
        assert found.requests[0] == found.requests[1] > 0, "the server is on this host"
        made.check()
        assert made.shared.note is None


def test_a_share_of_the_buckets_is_all_that_an_instance_touches(tmp_path: Path) -> None:
    store = MemoryStore()
    case = random_case(random.Random(5).randint(0, 9), 60, 2, menu=Menu(raising=False, moments=False))
    run = Run(tmp_path / "pond", list(case.queries), 1, BUCKETS)
    share = Share(str(tmp_path / "pond"), even_owners(BUCKETS, 5), {}, -1)
    assert catch_up(share, 2, store) == Caught(run.pond.manifest.n)
    owned = [bucket for bucket in range(BUCKETS) if store.applied(bucket) >= 0]
    assert owned == [bucket for bucket in range(BUCKETS) if bucket * 5 // BUCKETS == 2]
    run.epoch(dealt(1)(case.epochs[0]))
    with pytest.raises(CorruptError, match="has 1 instances instead of 5"):
        catch_up(share, 2, store)
    late = SharedView(store, Share(share.address, even_owners(BUCKETS, 1), {}, -1), made_settle(store))
    store.apply(0, 0, -1, [TableWrite("old", [b"k"], [b"v"])])
    late.cursor()
    assert store.tables() == frozenset(), "a table that is not served is dropped by whoever brings news"


def test_a_store_that_is_gone_is_an_answer_not_a_failure(tmp_path: Path) -> None:
    store = MemoryStore()
    store.close()
    Run(tmp_path / "pond", [], 1, BUCKETS)
    share = Share(str(tmp_path / "pond"), even_owners(BUCKETS, 1), {}, -1)
    assert catch_up(share, 0, store) == Caught(
        -1, error=("The memory store is closed.", "Open another; the view is rebuilt from the log.")
    )
    with pytest.raises(StoreError, match="memory store is closed"):
        SharedView(store, share, made_settle(store)).cursor()
