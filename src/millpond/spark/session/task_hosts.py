"""Prefers a host for the tasks of each instance: that of the primary of its shard, else the one it was folded on last.

Spark waits for a free core of a preferred host (`spark.locality.wait`), and then takes another one, so a preference
never decides whether a task runs, nor what it computes. With executors on one host only, nothing is preferred.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache

from pyspark.sql import SparkSession

from millpond.placement.alignment import placement_of
from millpond.placement.instance_hosts import NO_HOST, instance_hosts
from millpond.spark.driver_classes.loading import load_class
from millpond.spark.session.hosts import is_local

COALESCER = "millpond.PreferredHosts"


class TaskHosts:
    """The preferred hosts of one pond's instances; the threads of the driver and of the view use it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._lock = spark, threading.Lock()
        self._off = is_local(spark) or not load_class(spark, COALESCER)
        self._driver = None if self._off else _driver_of(spark)
        self._chosen: tuple[str, ...] = ()

    def choose(self, owners: Sequence[int], instances: int, shards: Sequence[str]) -> tuple[str, ...]:
        """The preferred host of each instance from now on; () if there is nothing to prefer.

        `owners`, `shards`: the instance and the shard of each bucket; no `shards`: they are not known, or change.
        """
        executors = self._executors()
        if len(executors) < 2:
            return ()
        homes = home_hosts(owners, instances, shards, executors)
        with self._lock:
            self._chosen = instance_hosts(homes, executors, self._chosen)
            return self._chosen

    def chosen(self, instances: Sequence[int]) -> tuple[str, ...]:
        """The hosts that were chosen last for these instances, as far as they still have executors; () if none were."""
        with self._lock:
            chosen = dict(enumerate(self._chosen))
        executors = self._executors() if chosen else {}
        if len(executors) < 2:
            return ()
        hosts = (chosen.get(instance, NO_HOST) for instance in instances)
        return tuple(host if host in executors else NO_HOST for host in hosts)

    def _executors(self) -> Mapping[str, int]:
        """The number of executors on each host."""
        if self._off:
            return {}
        known = self._spark.sparkContext._jsc.sc().getExecutorMemoryStatus()
        names = str(known.keys().mkString("\n")).split("\n")
        return Counter(name.rpartition(":")[0] for name in names if name != self._driver)


def _driver_of(spark: SparkSession) -> str:
    """The host and port of the driver, which Spark lists among the executors."""
    return str(spark.sparkContext._jsc.sc().statusStore().executorSummary("driver").hostPort())


def home_hosts(
    owners: Sequence[int], instances: int, shards: Sequence[str], executors: Collection[str]
) -> tuple[str, ...]:
    """By instance, the host with executors on which the primary with most of its buckets is, or `NO_HOST`.

    >>> home_hosts((0, 0, 1), 3, ["10.0.0.1:6379", "10.0.0.1:6379", "[::1]:7000"], ["10.0.0.1", "10.0.0.2"])
    ('10.0.0.1', '', '')
    """
    homes = [NO_HOST] * instances
    if shards:
        hosts = {address: host for host in executors for address in addresses(host)}
        for share in placement_of(owners, shards).shares:
            primary = share.home.rpartition(":")[0]
            found = (hosts[one] for one in addresses(primary) if one in hosts)
            homes[share.instance] = next(found, NO_HOST)
    return tuple(homes)


@cache
def addresses(host: str) -> frozenset[str]:
    """The addresses of a host, and its name itself."""
    name = host.strip("[]")
    try:
        return frozenset({name, *(str(found[4][0]) for found in socket.getaddrinfo(name, None))})
    except OSError:
        return frozenset({name})
