"""Chooses the host on which each instance should be folded: beside its shard, else where its state is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

NO_HOST = ""
"""The host of an instance that may run anywhere."""


def instance_hosts(homes: Sequence[str], executors: Mapping[str, int], previous: Sequence[str]) -> tuple[str, ...]:
    """The host of each instance, given the number of executors on each host.

    `homes`: by instance, the host of the primary that keeps most of its buckets. `previous`: the hosts chosen last, on
    which the files of an instance are cached. Both may name hosts without executors, or `NO_HOST`; `previous` may have
    another length.

    An instance takes its home, else its previous host, else the host with the fewest instances per executor. No host
    gets more than its part of all instances, by executors and rounded up: a store with one primary does not draw all
    instances to one host. With the same executors and homes, no instance changes its host.

    >>> instance_hosts(["b", "a", "", "b"], {"a": 1, "b": 1}, [])
    ('b', 'a', 'a', 'b')
    >>> instance_hosts([""] * 3, {"a": 1, "c": 1}, ["b", "a", "a"])
    ('c', 'a', 'a')
    """
    count, total = len(homes), sum(executors.values())
    room = {host: -(-count * size // total) for host, size in sorted(executors.items())}
    last = [*previous[:count], *[NO_HOST] * (count - len(previous))]
    chosen = [NO_HOST] * count

    def take(instance: int, host: str) -> None:
        if not chosen[instance] and room.get(host, 0) > 0:
            chosen[instance] = host
            room[host] -= 1

    for instance in sorted(range(count), key=lambda one: last[one] != homes[one]):  # those that are at home stay
        take(instance, homes[instance])
    for instance in range(count):
        take(instance, last[instance])
    held = Counter(chosen)
    for instance in range(count):
        if not chosen[instance]:
            host = min((one for one in room if room[one]), key=lambda one: (held[one] / executors[one], one))
            take(instance, host)
            held[host] += 1
    return tuple(chosen)
