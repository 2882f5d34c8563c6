"""Hash slots of a Redis cluster move between primaries while clients write, and no key is lost at any step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import pytest

from kit.servers.redis_servers import RedisCluster, RedisServer, certified
from millpond.errors import StoreError
from millpond.faults import SLOT_STEPS as STEPS
from millpond.placement.slots import SLOTS
from millpond.state.backends import redis_slots
from millpond.state.backends.redis_nodes import Nodes
from millpond.state.backends.redis_slots import KEYS_AT_ONCE, ClusterSlots

SLOT_STEPS = [step for step in STEPS if step.startswith("slots.")]
DOCS = Path(__file__).parents[2] / "docs"
TAG = "{3560}"  # slot 0
SLOTS_MOVED = (0, 1, 2)


@pytest.fixture(scope="module")
def cluster(redis_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Two primaries with many slots and two with one; each test empties them, and brings the slots back."""
    with RedisCluster(tmp_path_factory.mktemp("slots"), primaries=2, empty=2) as made:
        nodes = Nodes(made.url)
        known = {one.name: len(one.slots) for one in ClusterSlots(nodes).primaries()}
        assert known == {name(made, i): (SLOTS // 2 if i < 2 else 0) for i in range(4)}
        for server in (2, 3):  # a primary that gives away its last slot would become a replica
            ClusterSlots(nodes).move([SLOTS - server], name(made, server))
        nodes.close()
        yield made


@pytest.fixture
def slots(cluster: RedisCluster) -> Iterator[ClusterSlots]:
    cluster.flush()
    nodes = Nodes(cluster.url)
    made = ClusterSlots(nodes)
    yield made
    made.finish()
    made.move(SLOTS_MOVED, name(cluster, 0))
    nodes.close()


def name(cluster: RedisCluster, server: int) -> str:
    return f"127.0.0.1:{cluster.servers[server].port}"


def owner(slots: ClusterSlots, slot: int) -> str:
    return next(one.name for one in slots.primaries() if slot in one.slots)


def filled(cluster: RedisCluster) -> dict[str, str]:
    """Keys of slot 0: more than one command moves."""
    expected = {f"{TAG}:{i}": str(i) for i in range(3 * KEYS_AT_ONCE + 7)}
    with cluster.client() as client:
        client.mset_nonatomic(expected)
        client.expire(f"{TAG}:0", 1000)
    return expected


def found(cluster: RedisCluster) -> dict[str, str]:
    with cluster.client() as client:
        keys = sorted(client.keys("*"))
        assert len(keys) == len(set(keys)), "a key is on two primaries"
        return {key.decode(): client.get(key).decode() for key in keys}


def test_a_server_that_has_not_joined_is_named(slots: ClusterSlots) -> None:
    with pytest.raises(StoreError, match="no primary h:1 that is up"):
        slots.move([0], "h:1")


def test_clients_write_while_slots_move_between_primaries(
    cluster: RedisCluster, slots: ClusterSlots
) -> None:
    expected, ended, written = filled(cluster), threading.Event(), count()

    def write() -> None:
        with cluster.client() as client:
            while not ended.is_set():
                client.incr(f"{TAG}:{next(written) % 50}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for server in (2, 1, 0, 2):
            slots.move(SLOTS_MOVED, name(cluster, server))
            assert {owner(slots, slot) for slot in SLOTS_MOVED} == {name(cluster, server)}
    finally:
        ended.set()
        writer.join()
    total = next(written)
    for i in range(50):
        expected[f"{TAG}:{i}"] = str(i + total // 50 + (i < total % 50))
    assert found(cluster) == expected
    with cluster.client() as client:
        assert 0 < client.ttl(f"{TAG}:0") <= 1000
    assert slots.open_slots() == frozenset()


@pytest.mark.parametrize("again", [2, 3], ids=["same target", "other target"])
@pytest.mark.parametrize("step", SLOT_STEPS)
def test_a_move_that_was_cut_off_is_finished(
    step: str, again: int, cluster: RedisCluster, slots: ClusterSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = filled(cluster)
    with monkeypatch.context() as patched, pytest.raises(InterruptedError):
        patched.setattr(redis_slots, "reached", failing_at(step))
        slots.move(SLOTS_MOVED, name(cluster, 2))
    slots.finish()
    assert slots.open_slots() == frozenset()
    assert found(cluster) == expected
    slots.move(SLOTS_MOVED, name(cluster, again))
    assert {owner(slots, slot) for slot in SLOTS_MOVED} == {name(cluster, again)}
    assert found(cluster) == expected


@pytest.mark.parametrize("step", SLOT_STEPS)
def test_a_suspended_move_takes_no_slot_from_a_later_one(
    step: str, cluster: RedisCluster, slots: ClusterSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one process is suspended, another finishes its move, and moves the slots on."""
    expected = filled(cluster)

    def later() -> None:
        monkeypatch.undo()
        slots.finish()
        slots.move(SLOTS_MOVED, name(cluster, 3))

    monkeypatch.setattr(redis_slots, "reached", calling_at(step, later))
    with nullcontext() if step == "slots.taken" else pytest.raises(StoreError):
        slots.move(SLOTS_MOVED, name(cluster, 2))
    slots.finish()
    assert {owner(slots, slot) for slot in SLOTS_MOVED} == {name(cluster, 3)}
    assert found(cluster) == expected


def test_a_user_with_the_documented_permissions_moves_slots(cluster: RedisCluster, slots: ClusterSlots) -> None:
    expected, rules = filled(cluster), list[list[str]]()
    for page in ("guide/stores.md", "how-to/scale.md"):
        lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
        rules += [line.replace("PASSWORD", "pw").split() for line in lines if line.startswith("ACL SETUSER pond")]
    for server in cluster.servers:
        with server.client() as client:
            for rule in rules:
                client.execute_command(*rule)
    nodes = Nodes(cluster.url.replace("//", "//pond:pw@"))
    ClusterSlots(nodes).move(SLOTS_MOVED, name(cluster, 2))
    ClusterSlots(nodes).finish()
    nodes.close()
    assert {owner(slots, slot) for slot in SLOTS_MOVED} == {name(cluster, 2)}
    assert found(cluster) == expected


def test_slots_move_whether_nodes_or_clients_encrypt_what_they_send(redis_installed: None, tmp_path: Path) -> None:
    with RedisCluster(tmp_path / "servers", 2, certificate=certified(tmp_path)) as cluster:
        expected = filled(cluster)
        for url, target in ((cluster.url, 1), (cluster.secure_url, 0)):
            nodes = Nodes(url)
            slots = ClusterSlots(nodes)
            slots.move([0], slots.primaries()[target].name)
            assert owner(slots, 0) == slots.primaries()[target].name and slots.open_slots() == frozenset()
            nodes.close()
        assert found(cluster) == expected
        for server in cluster.servers:
            with server.client() as client:
                client.execute_command("ACL SETUSER pond on >pw ~* +@all -config")
        nodes = Nodes(cluster.url.replace("//", "//pond:pw@"))
        with pytest.raises(StoreError, match=r"may not read at which .* `\+config\|get`"):
            ClusterSlots(nodes).move([0], ClusterSlots(nodes).primaries()[1].name)
        nodes.close()


def failing_at(step: str) -> Callable[[str], None]:
    def fail() -> None:
        raise InterruptedError

    return calling_at(step, fail)


def calling_at(step: str, call: Callable[[], None]) -> Callable[[str], None]:
    seen = count()

    def reached(at: str) -> None:
        if at == step and next(seen) == 0:
            call()

    return reached


def test_one_server_has_no_slots_to_move(redis_installed: None, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server:
        nodes = Nodes(server.url)
        with pytest.raises(StoreError, match="cluster support disabled"):
            ClusterSlots(nodes).primaries()
        nodes.close()
