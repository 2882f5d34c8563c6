"""Describes the rows of one record that instances write into rows of other programs, and the results.

An instance writes the rows whose keys are in the hash slots of its buckets (`sinks.redis_rows.upsert_own`), so it runs
on the host of the primary that keeps them, whichever instance computed the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from millpond.model.keyed_table import KeyedTable
from millpond.runtime.joins.lookup_rows import OpenRows


class Target(NamedTuple):
    """The Redis rows into which a query's rows are merged: the pattern of their keys, and the written columns."""

    table: KeyedTable
    columns: tuple[str, ...]
    window: str | None
    skips: bool


class Owners(NamedTuple):
    """The instance of each bucket of hash slots, the address of the pond, and the folder of a host for its copies."""

    buckets: tuple[int, ...]
    address: str
    copies: str = ""


class Upsert(NamedTuple):
    """The rows of a query in record `n` (with this digest) of the log of `pond`, to be written by the instances."""

    n: int
    digest: str
    query: str
    pond: str
    target: Target
    owners: Owners


class Upserted(msgspec.Struct, frozen=True):
    """The rows that were not written: the number with NULL in their key, and the keys that hold another type.

    `error`: what happened and the cure, if the store refused. `gone`: the instance did not find the rows. `requests`:
    the number of requests to the store, and of those to a server on the same host.
    """

    nulls: int = 0
    wrong: list[bytes] = []
    error: tuple[str, str] | None = None
    gone: bool = False
    requests: tuple[int, int] = (0, 0)


WriteOwn: TypeAlias = Callable[[Upsert, OpenRows], Sequence[Upserted] | None]


class Instances(NamedTuple):
    """How the instances write rows into the pond's own store.

    `owners`: the current owners of buckets; None if the buckets are not in a store on the network. `write`: runs
    `upsert_own` for each instance that owns buckets; returns None if the driver should write, because no instance
    prefers a host, or only the driver sees the log.
    """

    owners: Callable[[], Owners | None]
    write: WriteOwn
