"""Runs the fold of an instance on one NUMA node, the same in every epoch.

A host may have several NUMA nodes, and memory of another node takes longer to reach. Linux places memory, and cached
pages of files, on the node whose CPU touches them first. So an instance that always runs on one node finds the segments
that it wrote in that node's memory. Nothing is bound where there is one node.

Source: UPM-CEP (Patiño and Azqueta, "Data Streaming for Appliances"), which runs a query instance per node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

SWITCH = "MILLPOND_NUMA"
"""The environment variable that switches binding off."""

SYSFS = Path("/sys/devices/system/node")

_NODE = re.compile(r"node(\d+)")
_TOTAL = re.compile(r"MemTotal:\s*(\d+) kB")


class Node(NamedTuple):
    """A NUMA node: the kernel's number, its online CPUs, and its memory in bytes."""

    number: int
    cpus: frozenset[int]
    memory: int


def read_nodes(folder: Path = SYSFS) -> tuple[Node, ...]:
    """The NUMA nodes of this host by number; none where the kernel does not list them."""
    found = []
    with suppress(OSError, ValueError):
        for entry in sorted(folder.iterdir()):
            if numbered := _NODE.fullmatch(entry.name):
                cpus = parse_cpus((entry / "cpulist").read_text(encoding="ascii"))
                total = _TOTAL.search((entry / "meminfo").read_text(encoding="ascii"))
                found.append(Node(int(numbered[1]), cpus, int(total[1]) * 1024 if total else 0))
        return tuple(sorted(found))
    return ()


def parse_cpus(text: str) -> frozenset[int]:
    """The CPUs of a list in the kernel's format; ValueError for another text.

    >>> sorted(parse_cpus("0-2,8,10-11"))
    [0, 1, 2, 8, 10, 11]
    >>> parse_cpus("")
    frozenset()
    """
    ranges = (part.partition("-") for part in text.strip().split(",") if part)
    return frozenset(cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1))


def usable(nodes: Sequence[Node], allowed: Collection[int]) -> tuple[Node, ...]:
    """The nodes with CPUs on which this process may run, each with these CPUs only."""
    reachable = (node._replace(cpus=node.cpus & frozenset(allowed)) for node in nodes)
    return tuple(node for node in reachable if node.cpus)


def nodes_in_turn(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes in the order in which instances take them, each as often as it has CPUs.

    Neighbouring instances take different nodes, because Spark starts the tasks of an epoch in the order of instances.
    """
    order = sorted(((turn + 0.5) / len(node.cpus), node) for node in nodes for turn in range(len(node.cpus)))
    return tuple(node for _, node in order)


def is_off(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the operator switched binding off."""
    return environ.get(SWITCH) == "off"


@contextmanager
def on_node_of(instance: int) -> Iterator[None]:
    """Runs the body, and threads that it starts, on the CPUs of the instance's node; then on all CPUs again."""
    order = _order_here()
    if not order:
        yield
        return
    before = os.sched_getaffinity(0)
    bind(order[instance % len(order)].cpus)
    try:
        yield
    finally:
        bind(before)


def bind(cpus: Collection[int]) -> None:
    """Lets all threads of this process run on these CPUs only.

    A thread that has ended, or CPUs that a cgroup took away meanwhile, change nothing: a process that is not bound is
    slower, not wrong.
    """
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            os.sched_setaffinity(int(thread), cpus)


@cache
def _order_here() -> tuple[Node, ...]:
    """The turns of this host's nodes; none if there is one node, or binding is switched off."""
    if is_off() or not hasattr(os, "sched_getaffinity"):
        return ()
    nodes = usable(read_nodes(), os.sched_getaffinity(0))
    return nodes_in_turn(nodes) if len(nodes) > 1 else ()
