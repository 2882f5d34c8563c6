"""The naive twin of `placement.alignment`: every way to deal instances to shards is tried, every bucket counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence


def smallest_largest_share(shards: Sequence[str], instances: int) -> int:
    """The most buckets that an instance owns, in the best of all ways in which no instance has two shards."""
    sizes = list(Counter(shards).values())
    return min(
        max(-(-size // parts) for size, parts in zip(sizes, dealt, strict=True))
        for dealt in _dealt(instances, len(sizes))
    )


def local_hit_rate(owners: Sequence[int], shards: Sequence[str]) -> float:
    """The part of buckets that lie on the shard which has most buckets of their instance."""
    pairs = Counter(zip(owners, shards, strict=True))
    best = {instance: max(pairs[instance, shard] for shard in {*shards}) for instance in {*owners}}
    return sum(best.values()) / len(owners)


def held(owners: Sequence[int], instance: int) -> list[int]:
    """The buckets of an instance."""
    return [bucket for bucket, owner in enumerate(owners) if owner == instance]


def _dealt(instances: int, shards: int) -> Iterator[list[int]]:
    """Every list of `shards` numbers, each at least one, whose sum is `instances`."""
    if shards == 1:
        yield [instances]
        return
    for first in range(1, instances - shards + 2):
        yield from ([first, *rest] for rest in _dealt(instances - first, shards - 1))
