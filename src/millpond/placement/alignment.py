"""Assigns buckets to instances by the store's shards, and measures how well the two agree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from millpond.errors import CorruptError
from millpond.model.spec import PondSpec
from millpond.placement.run_lengths import of_runs, runs_of
from millpond.placement.slots import even_owners

Owners: TypeAlias = tuple[int, ...]
"""The instance of each bucket."""

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""The owners of buckets as runs (instance, number of consecutive buckets), in the order of buckets."""


class Stretch(NamedTuple):
    """Buckets `first` … `last`, which one instance owns and one shard stores."""

    first: int
    last: int
    instance: int
    shard: str


class InstanceShare(NamedTuple):
    """The share of an instance: `buckets` in all, `local` of them on its `home`, the shard with most of its buckets."""

    instance: int
    buckets: int
    home: str
    local: int


class Since(NamedTuple):
    """The record of the last change of owners, the time at which it was written (µs since 1970 UTC), and the reason."""

    n: int
    at_us: int
    why: str


class Placement(NamedTuple):
    """The owner and the shard of each bucket at one moment; `since` is None if the owners never changed.

    `requests`: what the instances sent to the store for the newest record that needed it, if the pond is open here:
    look-ups by the owners of keys, and writes. `local_requests` of them went to a server on the instance's host.
    """

    stretches: tuple[Stretch, ...]
    shares: tuple[InstanceShare, ...]
    since: Since | None = None
    requests: int = 0
    local_requests: int = 0

    @property
    def aligned(self) -> float:
        """The part of all buckets that are on the home of their instance, 0 … 1."""
        return sum(share.local for share in self.shares) / sum(share.buckets for share in self.shares)

    @property
    def local_hit_rate(self) -> float | None:
        """The part of requests that stayed on the host of their instance, 0 … 1; None if there were none."""
        return self.local_requests / self.requests if self.requests else None


def aligned_owners(shards: Sequence[str], instances: int) -> Owners:
    """Assigns buckets to instances, given the shard of each bucket, so that an instance's buckets are on one shard.

    Each shard has its own instances. Their numbers are chosen so that the largest share of an instance is as small as
    possible; the shares on one shard differ by at most one bucket. With fewer instances than shards, all shares differ
    by at most one bucket. Then some instances have buckets of several shards, which are neighbours in the order of
    their first buckets.

    >>> aligned_owners(["a", "a", "a", "a", "b", "b"], 3)
    (0, 0, 1, 1, 2, 2)
    >>> aligned_owners(["b", "a", "b", "a"], 2), aligned_owners(["b", "a", "b", "a"], 1)
    ((0, 1, 0, 1), (0, 0, 0, 0))
    """
    number = {shard: place for place, shard in enumerate(dict.fromkeys(shards))}
    codes = np.array([number[shard] for shard in shards])
    order = np.argsort(codes, kind="stable")
    if instances < len(number):
        owned = np.arange(len(codes)) * instances // len(codes)
    else:
        sizes = np.bincount(codes)
        parts = _instances_by_shard(sizes, instances)
        within = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        owned = np.repeat(np.cumsum(parts) - parts, sizes) + within * np.repeat(parts, sizes) // np.repeat(sizes, sizes)
    owners = np.empty(len(codes), np.int64)
    owners[order] = owned
    return tuple(owners.tolist())


def _instances_by_shard(sizes: npt.NDArray[np.int64], instances: int) -> npt.NDArray[np.int64]:
    """The number of instances of each shard, given its buckets, so that the largest share is as small as possible."""
    parts = np.ones(len(sizes), np.int64)
    for _ in range(instances - len(sizes)):
        parts[np.argmax(sizes / parts)] += 1
    return parts


def realigned(owners: Sequence[int], shards: Sequence[str], instances: int) -> Owners:
    """The owners after the fewest moves that put every bucket on the home of its instance.

    The home of an instance is the shard with most of its buckets. A shard that is no instance's home gets an instance
    without buckets, else one from a shard with several instances. A bucket away from the home of its instance moves to
    the instance of its shard with the fewest buckets; all others stay. With fewer instances than shards, nothing moves:
    then shares are even, and some instances have several shards.

    >>> realigned((0, 0, 0, 1, 1, 1), ["a", "a", "b", "b", "b", "b"], 2)
    (0, 0, 1, 1, 1, 1)
    >>> realigned((0, 0, 0, 1, 1, 1), ["c", "c", "c", "b", "b", "b"], 2)
    (0, 0, 0, 1, 1, 1)
    """
    names = list(dict.fromkeys(shards))
    if instances < len(names):
        return tuple(owners)
    codes, held = np.array([names.index(shard) for shard in shards]), np.array(owners)
    counts = np.zeros((instances, len(names)), np.int64)
    np.add.at(counts, (held, codes), 1)
    homes, sizes = np.where(counts.any(axis=1), counts.argmax(axis=1), -1), counts.sum(axis=0)
    for shard in sorted({*range(len(names))} - {*homes.tolist()}, key=lambda shard: -int(sizes[shard])):
        homes[_spare(homes, counts, shard)] = shard
    away = np.flatnonzero(homes[held] != codes)
    kept = np.bincount(np.delete(held, away), minlength=instances)
    for bucket in away.tolist():
        at_home = np.flatnonzero(homes == codes[bucket])
        held[bucket] = at_home[np.argmin(kept[at_home])]
        kept[held[bucket]] += 1
    return tuple(held.tolist())


def _spare(homes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], shard: int) -> int:
    """The instance to give to a shard that has none: an instance without buckets, if there is one.

    Otherwise it is an instance of the shard with the smallest shares, the one that has to move the fewest buckets.
    """
    if (homes < 0).any():
        return int(np.argmax(homes < 0))
    sizes, at_home = counts.sum(axis=0), np.bincount(homes, minlength=counts.shape[1])
    of = np.flatnonzero(homes == np.argmin(np.where(at_home > 1, sizes / np.maximum(at_home, 1), np.inf)))
    return int(of[np.argmin(counts[of, homes[of]] - counts[of, shard])])


def owners_in(spec: PondSpec) -> Owners:
    """The instance of each bucket of a pond.

    Raises:
        CorruptError: the stored owners do not fit the pond's numbers of buckets and instances.
    """
    if isinstance(spec.owned, msgspec.UnsetType):
        return even_owners(spec.buckets, spec.instances)
    return owners_of_runs(spec.owned, spec.buckets, spec.instances)


def owners_of_runs(runs: Runs, buckets: int, instances: int) -> Owners:
    """The instance of each bucket.

    Raises:
        CorruptError: the runs do not fit the numbers of buckets and instances.
    """
    owners = of_runs(runs)
    if len(owners) != buckets or not {*owners} <= {*range(instances)}:
        raise CorruptError("The stored owners of the pond's buckets are not those of its spec.", "Restore the log.")
    return owners


def with_owners(spec: PondSpec, owners: Owners) -> PondSpec:
    """The spec with these owners; an even assignment is not written."""
    even = owners == even_owners(spec.buckets, spec.instances)
    return msgspec.structs.replace(spec, owned=msgspec.UNSET if even else runs_of(owners))


def placement_of(owners: Sequence[int], shards: Sequence[str]) -> Placement:
    """The placement, given the instance and the shard of each bucket."""
    stretches, first = [], 0
    for (instance, shard), run in groupby(zip(owners, shards, strict=True)):
        end = first + len(list(run))
        stretches.append(Stretch(first, end - 1, instance, shard))
        first = end
    held: dict[int, dict[str, int]] = {}
    for one in stretches:
        counts = held.setdefault(one.instance, {})
        counts[one.shard] = counts.get(one.shard, 0) + one.last + 1 - one.first
    shares = []
    for instance, counts in sorted(held.items()):
        home = max(counts, key=counts.__getitem__)
        shares.append(InstanceShare(instance, sum(counts.values()), home, counts[home]))
    return Placement(tuple(stretches), tuple(shares))


def rescaled(owners: Sequence[int], instances: int) -> Owners:
    """The owners after the fewest moves that make the shares of all instances differ by at most one bucket.

    The instances with most buckets keep the larger shares. An instance with too many buckets gives up its last ones.

    >>> rescaled((0, 0, 0, 1, 1, 1), 3)
    (0, 0, 2, 1, 1, 2)
    >>> rescaled((0, 0, 2, 1, 1, 2), 2), rescaled((0, 0, 0, 1, 1, 1), 2)
    ((0, 0, 0, 1, 1, 1), (0, 0, 0, 1, 1, 1))
    """
    held = np.array(owners)
    counts = np.bincount(held, minlength=instances)[:instances]
    shares = np.full(instances, len(held) // instances)
    shares[np.argsort(-counts, kind="stable")[: len(held) % instances]] += 1
    # the position of each bucket among the buckets of its instance
    order = np.argsort(held, kind="stable")
    place = np.empty(len(held), np.int64)
    place[order] = np.arange(len(held)) - np.searchsorted(held[order], held[order])
    stays = (held < instances) & (place < np.append(shares, 0)[np.minimum(held, instances)])
    lacking = shares - np.bincount(held[stays], minlength=instances)
    held[~stays] = np.repeat(np.arange(instances), lacking)
    return tuple(held.tolist())


def rescaled_on(owners: Sequence[int], shards: Sequence[str], instances: int) -> Owners:
    """The owners among another number of instances, each with buckets of one shard, given the shard of each bucket.

    Each shard gets as many instances as in `aligned_owners`: first those that own most of its buckets, then new ones.
    The shares on a shard are made even with the fewest moves. With fewer instances than shards, see `rescaled`.

    >>> rescaled_on((0, 0, 1, 1), ["a", "a", "b", "b"], 4), rescaled_on((0, 0, 1, 1), ["a", "b", "b", "b"], 2)
    ((0, 2, 1, 3), (0, 1, 1, 1))
    """
    names = list(dict.fromkeys(shards))
    if instances < len(names):
        return rescaled(owners, instances)
    codes, held = np.array([names.index(shard) for shard in shards]), np.array(owners)
    counts = np.zeros((max(instances, int(held.max()) + 1), len(names)), np.int64)
    np.add.at(counts, (held, codes), 1)
    counts = counts[:instances]
    lacking = _instances_by_shard(np.bincount(codes), instances)
    homes = np.full(instances, -1)
    for place in np.argsort(-counts, axis=None, kind="stable").tolist():
        instance, shard = divmod(place, len(names))
        if homes[instance] < 0 and lacking[shard]:
            homes[instance] = shard
            lacking[shard] -= 1
    for shard in range(len(names)):
        mine, on = np.flatnonzero(homes == shard), np.flatnonzero(codes == shard)
        number = np.full(counts.shape[0] + int(held.max()) + 1, len(mine))
        number[mine] = np.arange(len(mine))
        held[on] = mine[list(rescaled(number[held[on]].tolist(), len(mine)))]
    return tuple(held.tolist())
