"""NUMA nodes as sysfs lists them, their turns, and threads that are bound while an instance is folded."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.runtime.task import numa
from millpond.runtime.task.numa import Node, bind, is_off, nodes_in_turn, on_node_of, parse_cpus, read_nodes, usable

TREES = {
    "one": {0: "0-1"},
    "two sockets": {0: "0-13,28-41", 1: "14-27,42-55"},
    "four": {0: "0-7", 1: "8-15", 2: "16-23", 3: "24-31"},
    "eight": {n: f"{8 * n}-{8 * n + 7},{64 + 8 * n}-{64 + 8 * n + 7}" for n in range(8)},
    "holes, and memory only": {0: "0-79", 8: "80-159", 252: "", 253: "", 254: "", 255: ""},
    "offline": {0: "0-2,4-7", 1: "8"},
}
"""CPUs of nodes by number, in the kernel's format, which lists online CPUs only."""


def tree(folder: Path, nodes: dict[int, str]) -> Path:
    """A copy of /sys/devices/system/node with files that belong to no node, too."""
    for number, cpus in nodes.items():
        node = folder / f"node{number}"
        node.mkdir()
        (node / "cpulist").write_text(f"{cpus}\n")
        (node / "distance").write_text("10 20\n")
        (node / "meminfo").write_text(f"Node {number} MemTotal:       15034580 kB\nNode {number} MemFree: 1 kB\n")
    (folder / "power").mkdir()
    (folder / "has_cpu").write_text("0\n")
    return folder


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("one", {0: 2}),
        ("two sockets", {0: 28, 1: 28}),
        ("four", {0: 8, 1: 8, 2: 8, 3: 8}),
        ("eight", dict.fromkeys(range(8), 16)),
        ("holes, and memory only", {0: 80, 8: 80, 252: 0, 253: 0, 254: 0, 255: 0}),
        ("offline", {0: 7, 1: 1}),
    ],
)
def test_a_tree_is_read_by_number(tmp_path: Path, name: str, sizes: dict[int, int]) -> None:
    nodes = read_nodes(tree(tmp_path, TREES[name]))
    assert [(node.number, len(node.cpus)) for node in nodes] == sorted(sizes.items())
    assert {node.memory for node in nodes} == {15034580 * 1024}


def test_a_host_without_nodes_or_with_a_strange_list_has_none(tmp_path: Path) -> None:
    assert read_nodes(tmp_path / "absent") == ()
    assert read_nodes(tree(tmp_path, {0: "0-1", 1: "all"})) == ()


def test_only_nodes_with_allowed_cpus_are_usable(tmp_path: Path) -> None:
    nodes = read_nodes(tree(tmp_path, TREES["holes, and memory only"]))
    assert [node.number for node in usable(nodes, range(160))] == [0, 8]
    part = usable(nodes, {3, 4, 159, 500})
    assert [(node.number, node.cpus) for node in part] == [(0, {3, 4}), (8, {159})]
    assert [node.number for node in usable(nodes, range(80, 90))] == [8], "a cgroup that allows one node only"


def test_equal_nodes_take_turns() -> None:
    nodes = tuple(Node(number, frozenset(range(4 * number, 4 * number + 4)), 0) for number in (0, 1, 8))
    assert [node.number for node in nodes_in_turn(nodes)] == [0, 1, 8] * 4


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 200))
def test_each_node_gets_instances_in_proportion_to_its_cpus(sizes: list[int], instances: int) -> None:
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    nodes = tuple(
        Node(number, frozenset(range(start, start + size)), 0)
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
    )
    order = nodes_in_turn(nodes)
    given_to = Counter(order[instance % len(order)].number for instance in range(instances))
    for number, size in enumerate(sizes):
        assert abs(given_to[number] - instances * size / sum(sizes)) <= len(sizes)


@given(st.frozensets(st.integers(0, 300)))
def test_a_list_of_cpus_is_read_back(cpus: frozenset[int]) -> None:
    assert parse_cpus(",".join(map(str, sorted(cpus)))) == cpus


def test_on_this_host_with_one_node_nothing_is_bound() -> None:
    before = os.sched_getaffinity(0)
    if len(usable(read_nodes(), before)) <= 1:
        with on_node_of(1):
            assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The CPUs of this host as two nodes (of a host with one CPU: the same CPU twice)."""
    cpus = sorted(os.sched_getaffinity(0))
    halves = [{cpus[0]}, set(cpus[1:] or cpus)]
    folder = tree(tmp_path, {number: ",".join(map(str, sorted(half))) for number, half in enumerate(halves)})
    monkeypatch.setattr(numa, "read_nodes", lambda: read_nodes(folder))
    numa._order_here.cache_clear()
    monkeypatch.setattr(numa, "SWITCH", "MILLPOND_NUMA_OF_THE_TEST")
    return halves


def test_an_instance_runs_on_its_node_with_all_threads_and_then_on_all_cpus(two_nodes: list[set[int]]) -> None:
    before = os.sched_getaffinity(0)
    ready, end = threading.Event(), threading.Event()
    seen: list[set[int]] = []

    def other() -> None:
        ready.set()
        end.wait(60)
        seen.append(os.sched_getaffinity(0))

    for instance in (0, 1, 0):
        thread = threading.Thread(target=other)
        thread.start()
        ready.wait(60)
        with pytest.raises(ZeroDivisionError), on_node_of(instance):
            assert os.sched_getaffinity(0) == two_nodes[instance]
            end.set()
            thread.join()
            raise ZeroDivisionError
        assert seen.pop() == two_nodes[instance], "a thread that was there before"
        assert os.sched_getaffinity(0) == before
        ready.clear()
        end.clear()
    numa._order_here.cache_clear()


def test_the_switch_turns_it_off(two_nodes: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    monkeypatch.setenv(numa.SWITCH, "off")
    assert is_off()
    with on_node_of(0):
        assert os.sched_getaffinity(0) == before
    numa._order_here.cache_clear()


def test_binding_to_missing_cpus_changes_nothing() -> None:
    before = os.sched_getaffinity(0)
    bind({100_000})
    assert os.sched_getaffinity(0) == before
