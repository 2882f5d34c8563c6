"""Naive twins of placement: tries every assignment of instances to shards, and hashes keys byte by byte."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product


def smallest_largest_share(shards: Sequence[str], instances: int) -> int:
    """The largest share of an instance in the best assignment in which no instance has buckets of two shards."""
    sizes = list(Counter(shards).values())
    return min(
        max(-(-size // parts) for size, parts in zip(sizes, dealt, strict=True))
        for dealt in _dealt(instances, len(sizes))
    )


def aligned_part(owners: Sequence[int], shards: Sequence[str]) -> float:
    """The fraction of buckets on the shard that has most buckets of their instance."""
    pairs = Counter(zip(owners, shards, strict=True))
    best = {instance: max(pairs[instance, shard] for shard in {*shards}) for instance in {*owners}}
    return sum(best.values()) / len(owners)


def held(owners: Sequence[int], instance: int) -> list[int]:
    """The buckets of an instance."""
    return [bucket for bucket, owner in enumerate(owners) if owner == instance]


def fewest_moves(owners: Sequence[int], instances: int) -> int:
    """The minimum number of moves after which shares differ by at most one; tries every choice of larger shares."""
    counts, least, more = Counter(owners), len(owners) // instances, len(owners) % instances
    stay = [
        sum(min(counts[one], least + (one in larger)) for one in range(instances))
        for larger in combinations(range(instances), more)
    ]
    return len(owners) - max(stay)


def naive_balance(
    owners: Sequence[int], loads: Sequence[int], instances: int, skew: float
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The owners after greedy balancing, one bucket at a time, and the owners after each move."""
    now, steps = list(owners), list[tuple[int, ...]]()
    while True:
        busy = [sum(loads[bucket] for bucket in held(now, one)) for one in range(instances)]
        source, target = busy.index(max(busy)), busy.index(min(busy))
        if busy[source] <= skew * sum(loads) / instances:
            return tuple(now), steps
        helps = [b for b in held(now, source) if 0 < loads[b] < busy[source] - busy[target]]
        if not helps:
            return tuple(now), steps
        now[max(helps, key=lambda bucket: (loads[bucket], -bucket))] = target
        steps.append(tuple(now))


def _dealt(instances: int, shards: int) -> Iterator[list[int]]:
    """Every list of `shards` numbers, each at least one, whose sum is `instances`."""
    if shards == 1:
        yield [instances]
        return
    for first in range(1, instances - shards + 2):
        yield from ([first, *rest] for rest in _dealt(instances - first, shards - 1))


_M, _ALL = 0x5BD1E995, 0xFFFFFFFF


def hash_of(key: bytes) -> int:
    """The hash by which Kafka's producers in Java choose a partition, without its sign."""
    found = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _M & _ALL
        word = (word ^ (word >> 24)) * _M & _ALL
        found = (found * _M & _ALL) ^ word
    if whole < len(key):
        found = (found ^ int.from_bytes(key[whole:], "little")) * _M & _ALL
    found = (found ^ (found >> 13)) * _M & _ALL
    return (found ^ (found >> 15)) & 0x7FFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a topic that a record goes to."""
    return hash_of(key) % partitions


def most_at_home(homes: Sequence[str], executors: Mapping[str, int]) -> int:
    """The largest number of instances on their homes if no host exceeds its part; tries every choice of hosts."""
    hosts, total = sorted(executors), sum(executors.values())
    room = {host: math.ceil(len(homes) * executors[host] / total) for host in hosts}
    return max(
        sum(host == home for host, home in zip(chosen, homes, strict=True))
        for chosen in product(hosts, repeat=len(homes))
        if all(number <= room[host] for host, number in Counter(chosen).items())
    )
