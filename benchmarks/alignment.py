"""Access to external state that is aligned with the operators, and access that is not: Amoeba's experiment.

No flags. Linear Road's toll operators (see `linear_road.py`) keep their tables in a Redis cluster of 2, 4 and 8
primaries, real servers on the loopback; as many instances, processes, own the keys. *Aligned*: an instance owns the
buckets that lie on its primary; *random*: as many buckets, drawn (seed 1). *One*: a read and a write per event and
table, each waited for; *batched*: one read and one write per table and 30 seconds, pipelined per primary. In all cells
each bucket has one owner, so the answers are the same; they are compared with a run in memory.

One machine has no network, so the cells run twice: as it is, and with calls that leave an instance's own primary taking
`FAR_SECONDS` longer, whose figures are of an emulation. Operators run one after the other over all events, timed with
all instances at work; handing messages from one to the next is not. The table tells events per second, commands and
round trips per event, connections of the instances, and the local-hit rate: the share of rows on the own primary. The
last line is one JSON object. With the picture it is kept in `results/`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import reduce
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from instances import BUCKETS, Access, Cell, Instance, Process, buckets
from linear_road import OPERATORS, Columns, Operator, Size, Traffic, together
from picture import Panel, draw
from results import FOLDER, keep

from kit.servers.redis_servers import RedisCluster
from millpond.placement.slots import hash_tags
from millpond.state.backends.memory import MemoryStore
from millpond.state.backends.redis import RedisStore

FAR_SECONDS = 0.0005


class Sizes(NamedTuple):
    """Traffic of the cells with one event per call and of those with batches, and numbers of primaries."""

    one: Size
    batched: Size
    shards: tuple[int, ...]


LARGE = Sizes(Size(1, 1000, 4), Size(16, 1000, 12), (2, 4, 8))
SMALL = Sizes(Size(1, 20, 2), Size(1, 1000, 6), (2,))


class Figures(NamedTuple):
    """What a cell measured; `events` are reports and requests."""

    events: int
    seconds: float
    access: Access
    commands: int
    connections: int

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds

    @property
    def hits(self) -> float:
        """The local-hit rate."""
        return self.access.local / self.access.rows


class Answers(NamedTuple):
    """Emitted tolls, and balances emitted on request: their numbers and sums."""

    tolls: int
    toll_sum: int
    balances: int
    balance_sum: int


Inputs = list[tuple[Columns, Columns]]
Perform = Callable[[Operator, Sequence[Columns]], Sequence[dict[str, Columns]]]


def flow(inputs: Inputs, perform: Perform) -> Answers:
    """Run the operators one after the other; `perform(operator, batches)` returns the results of each batch."""
    queues: dict[str, list[list[Columns]]] = {
        "vehicles": [[reports] for reports, _ in inputs],
        "accounts": [[] for _ in inputs],
    }
    for operator in OPERATORS:
        waiting = queues.pop(operator.name, [[] for _ in inputs])
        if operator.name == "accounts":
            waiting = [[*parts, requests] for parts, (_, requests) in zip(waiting, inputs, strict=True)]
        batches = [together(parts) for parts in waiting]
        for number, results in enumerate(perform(operator, batches)):
            for name, messages in results.items():
                queues.setdefault(name, [[] for _ in inputs])[number].append(messages)
    tolls, balances = (together([part for parts in queues[name] for part in parts]) for name in ("tolls", "balances"))
    return Answers(len(tolls["toll"]), int(tolls["toll"].sum()), len(balances["vid"]), int(balances["balance"].sum()))


def in_memory(inputs: Inputs) -> Answers:
    """The answers of one instance with a store in memory."""
    instance = Instance(MemoryStore(), 0, Cell((0,) * BUCKETS, None, 0.0))
    return flow(inputs, lambda operator, batches: [instance.run(operator, batch) if batch else {} for batch in batches])


class Fleet:
    """A cluster, and an instance beside each of its primaries."""

    def __init__(self, cluster: RedisCluster, processes: Sequence[Process]) -> None:
        self._cluster, self._processes = cluster, processes
        with closing(RedisStore(cluster.url, hash_tags(BUCKETS))) as store:
            ports = [int(shard.rpartition(":")[2]) for shard in store.shards(range(BUCKETS))]
        numbers = {server.port: number for number, server in enumerate(cluster.servers)}
        self._shard = tuple(numbers[port] for port in ports)
        self._owner = np.zeros(BUCKETS, np.int64)
        self._seconds = 0.0
        self._access: list[Access] = []

    def measure(self, inputs: Inputs, at_once: int | None, aligned: bool, far: float) -> tuple[Answers, Figures]:
        """One cell, on an empty cluster."""
        count = len(self._processes)
        drawn = np.random.default_rng(1).permutation(np.arange(BUCKETS) % count)
        self._owner = np.array(self._shard) if aligned else drawn
        self._cluster.flush()
        self._seconds, before = 0.0, self._commands()
        cell = Cell(self._shard, at_once, far)
        self._ask(*(("open", server.url, own, cell) for own, server in enumerate(self._cluster.servers)))
        answers = flow(inputs, self._perform)
        connections = self._connections()
        self._ask(*[("close",)] * count)
        access = reduce(Access.plus, self._access)
        events = sum(len(reports["vid"]) + len(requests["vid"]) for reports, requests in inputs)
        return answers, Figures(events, self._seconds, access, self._commands() - before, connections)

    def _perform(self, operator: Operator, batches: Sequence[Columns]) -> list[dict[str, Columns]]:
        full = [batch for batch in batches if batch]
        owned = [(self._owner[buckets(batch[operator.key])], batch) for batch in full]
        count = len(self._processes)
        parts = [
            [{name: column[owners == own] for name, column in batch.items()} for owners, batch in owned]
            for own in range(count)
        ]
        self._ask(*(("take", operator.name, mine) for mine in parts))
        began = perf_counter()
        self._ask(*[("go",)] * count)
        self._seconds += perf_counter() - began
        found = self._ask(*[("give",)] * count)
        self._access = [access for _, access in found]
        merged = iter([_merged([results[number] for results, _ in found]) for number in range(len(full))])
        return [next(merged) if batch else {} for batch in batches]

    def _ask(self, *requests: tuple[Any, ...]) -> list[Any]:
        """One request to each instance; their answers."""
        for process, request in zip(self._processes, requests, strict=True):
            process.send(*request)
        return [process.answer() for process in self._processes]

    def _commands(self) -> int:
        """Scripts called; what they call themselves is not a command on the wire."""
        calls = [server.calls() for server in self._cluster.servers]
        return sum(one.get(name, 0) for one in calls for name in ("evalsha", "evalsha_ro"))

    def _connections(self) -> int:
        count = 0
        for server in self._cluster.servers:
            with server.client() as client:
                count += len(client.client_list(_type="normal")) - 1
        return count


def _merged(results: Sequence[dict[str, Columns]]) -> dict[str, Columns]:
    names = dict.fromkeys(name for one in results for name in one)
    return {name: together([one[name] for one in results if name in one]) for name in names}


Key = tuple[int, str, str, float]


def main(sizes: Sizes = LARGE, folder: Path = FOLDER) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    modes = {"one": (list(Traffic(sizes.one).batches()), 1), "batched": (list(Traffic(sizes.batched).batches()), None)}
    expected = {name: in_memory(inputs) for name, (inputs, _) in modes.items()}
    for name, answers in expected.items():
        print(f"{name}: {answers.tolls:,} tolls, sum {answers.toll_sum:,}; {answers.balances:,} balances", flush=True)
    print(f"{'shards':>6} {'access':>8} {'owners':>8} {'far':>7} {'events/s':>10} {'commands':>9} {'trips':>7}"
          f" {'connections':>12} {'local hits':>11}    (commands and trips per event)", flush=True)  # fmt: skip
    found: dict[Key, Figures] = {}
    for count in sizes.shards:
        processes = [Process() for _ in range(count)]
        with tempfile.TemporaryDirectory(prefix="millpond-bench-") as work, RedisCluster(Path(work), count) as cluster:
            fleet = Fleet(cluster, processes)
            fleet.measure(modes["one"][0][:1], None, True, 0.0)  # warms the processes
            for mode, owners, far in product(modes, ("random", "aligned"), (0.0, FAR_SECONDS)):
                answers, cell = fleet.measure(*modes[mode], owners == "aligned", far)
                assert answers == expected[mode], f"{mode}, {owners}: {answers}, in memory {expected[mode]}"
                found[count, mode, owners, far] = cell
                print(_line(count, mode, owners, far, cell), flush=True)
        for process in processes:
            process.end()
    figures = _figures(sizes.shards, found)
    keep("alignment", figures, folder)
    _draw(folder / "alignment.svg", sizes.shards, found)
    return figures


def _line(count: int, mode: str, owners: str, far: float, cell: Figures) -> str:
    return (
        f"{count:>6} {mode:>8} {owners:>8} {far * 1e3:>4.1f} ms {cell.rate:>10,.0f} {cell.commands / cell.events:>9.3f}"
        f" {cell.access.trips / cell.events:>7.3f} {cell.connections:>12} {cell.hits:>11.1%}"
    )


def _figures(counts: Sequence[int], found: Mapping[Key, Figures]) -> dict[str, float]:
    """Ratios of throughput, and what was counted, for each number of primaries."""
    figures: dict[str, float] = {}
    for count in counts:
        for mode, (far, label) in product(("one", "batched"), ((0.0, ""), (FAR_SECONDS, "_far"))):
            aligned, random = (found[count, mode, owners, far] for owners in ("aligned", "random"))
            figures[f"aligned_vs_random_{mode}{label}_{count}"] = round(aligned.rate / random.rate, 2)
        aligned, random = (found[count, "batched", owners, 0.0] for owners in ("aligned", "random"))
        one = found[count, "one", "aligned", 0.0]
        figures[f"batched_vs_one_{count}"] = round(aligned.rate / one.rate, 1)
        figures[f"events_per_s_{count}"] = round(aligned.rate)
        for name, cell in (("aligned", aligned), ("random", random)):
            figures[f"hits_{name}_{count}"] = round(cell.hits, 3)
            figures[f"connections_{name}_{count}"] = cell.connections
    return figures


def _draw(path: Path, counts: Sequence[int], found: Mapping[Key, Figures]) -> None:
    def series(mode: str, far: float, value: Callable[[Figures], float]) -> dict[str, list[float]]:
        both = ("random", "aligned")
        return {owners: [value(found[count, mode, owners, far]) for count in counts] for owners in both}

    panels = [
        Panel(f"events/s, {mode}{', far' if far else ''}", counts, series(mode, far, lambda cell: cell.rate))
        for mode, far in product(("one", "batched"), (0.0, FAR_SECONDS))
    ]
    panels.append(Panel("local-hit rate", counts, series("batched", 0.0, lambda cell: cell.hits)))
    panels.append(Panel("connections", counts, series("batched", 0.0, lambda cell: cell.connections)))
    draw(path, "Linear Road's tolls over Redis, by the number of primaries", panels)


if __name__ == "__main__":
    main()
