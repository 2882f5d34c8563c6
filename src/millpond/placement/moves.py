"""Computes the owners of buckets from the log, and the sources from which instances must take over state.

A change of the map is a record. The first epoch after it rebuilds the state of every instance whose buckets changed,
from the sections of the previous owners. Its own record names the new sections, ends the old ones, and states their
map. So all state follows the map of the last epoch, whatever was requested since.

`step` splits a large rebalance into steps, so that no single epoch has to migrate all of the state. The requested map
stays as it was recorded. Before an epoch the driver records an intermediate map that moves at most one step's worth of
state. The next epoch uses that map, and another step follows it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from millpond.log.manifest import Change, Manifest
from millpond.model.change_history import Scaled
from millpond.model.change_json import MapChange, Scale, map_change_in
from millpond.model.spec import PondSpec
from millpond.placement.alignment import Owners, owners_in, owners_of_runs


class BucketMap(NamedTuple):
    """The owners of buckets, the number of instances, and the number of the record that set both.

    `number` is 0 for the map with which the pond was created.
    """

    number: int
    owners: Owners
    instances: int


def bucket_maps(
    born: Owners, instances: int, manifest: Manifest, scaled: Sequence[Scaled] = ()
) -> tuple[BucketMap, BucketMap]:
    """The map by which state is stored, and the map for the next epoch.

    `born` are the owners with which the pond was created. A change that no epoch has followed yet is cancelled when its
    driver ends; requested maps (`scaled`) are not.

    Raises:
        CorruptError: a stored map does not fit the numbers of buckets and instances.
    """
    newest = _newest(manifest, scaled)
    return (
        _map_of(_change(manifest, scaled, manifest.map), manifest.map, born, instances),
        _map_of(_change(manifest, scaled, newest), newest, born, instances),
    )


def requested_map(born: Owners, instances: int, manifest: Manifest, scaled: Sequence[Scaled] = ()) -> BucketMap:
    """The map that was requested last: the map for the next epoch or, if that is a step, its target.

    Raises:
        CorruptError: a stored map does not fit the numbers of buckets and instances.
    """
    number = _newest(manifest, scaled)
    change = _change(manifest, scaled, number)
    if isinstance(change, MapChange) and not isinstance(change.towards, msgspec.UnsetType):
        towards = _change(manifest, scaled, change.towards)
        if towards is not None:
            number, change = change.towards, towards
        elif scaled:  # the target was refined by a driver that has ended; the next one refines the request again
            number, change = scaled[-1].n, scaled[-1]
    return _map_of(change, number, born, instances)


_Change: TypeAlias = "MapChange | Scale | Scaled"


def _newest(manifest: Manifest, scaled: Sequence[Scaled]) -> int:
    """The record of the last change of the map; 0 if there is none."""
    changed = newest_map_change(manifest)
    return max([0 if changed is None else changed.n, *(one.n for one in scaled)])


_seen: tuple[Change | None, Change | None] = None, None


def newest_map_change(manifest: Manifest) -> Change | None:
    """The last change of the map since the last claim.

    There may be many other changes, so only those are decoded that were added since the previous call.
    """
    global _seen
    last, found = _seen
    newest = None
    for one in reversed(manifest.changes):
        if one is last or map_change_in(one.change) is not None:
            newest = found if one is last else one
            break
    if manifest.changes:
        _seen = manifest.changes[-1], newest
    return newest


def _change(manifest: Manifest, scaled: Sequence[Scaled], number: int) -> _Change | None:
    """The change of the map by a record, by binary search: a migration of gigabytes leaves hundreds of changes."""
    place = bisect_left(manifest.changes, number, key=lambda one: one.n)
    found = manifest.changes[place] if place < len(manifest.changes) else None
    change = map_change_in(found.change) if found is not None and found.n == number else None
    return change or next((one for one in scaled if one.n == number), None)


def _map_of(change: _Change | None, number: int, born: Owners, instances: int) -> BucketMap:
    if change is None:
        return BucketMap(0, born, instances)
    count = instances if isinstance(change.instances, msgspec.UnsetType) else change.instances
    return BucketMap(number, owners_of_runs(change.owned, len(born), count), count)


def maps_in(spec: PondSpec, manifest: Manifest) -> tuple[BucketMap, BucketMap]:
    """The two maps of `bucket_maps`, for a pond with this spec."""
    return bucket_maps(owners_in(spec), spec.instances, manifest, spec.effects.scaled)


def requested_map_in(spec: PondSpec, manifest: Manifest) -> BucketMap:
    """The map of `requested_map`, for a pond with this spec."""
    return requested_map(owners_in(spec), spec.instances, manifest, spec.effects.scaled)


def buckets_moving(spec: PondSpec, manifest: Manifest) -> int:
    """The number of buckets whose state is not yet on the requested instance."""
    current, target = maps_in(spec, manifest)[0], requested_map_in(spec, manifest)
    return sum(before != after for before, after in zip(current.owners, target.owners, strict=True))


def claimed_map(spec: PondSpec, manifest: Manifest) -> BucketMap:
    """The map for the next epoch if a claim follows the newest record of the manifest."""
    kept = tuple(change for change in manifest.changes if change.n == manifest.map)
    return maps_in(spec, msgspec.structs.replace(manifest, changes=kept))[1]


def sources(before: Sequence[int], after: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """For each instance whose buckets change, the previous owners of its new buckets, possibly including itself.

    >>> sources((0, 0, 1, 1, 2), (0, 1, 1, 1, 2))
    {0: (0,), 1: (0, 1)}
    """
    if tuple(before) == tuple(after):
        return {}
    had, has = _held(before), _held(after)
    changed = sorted(instance for instance in {*had, *has} if had.get(instance) != has.get(instance))
    return {instance: tuple(sorted({before[bucket] for bucket in has.get(instance, ())})) for instance in changed}


def _held(owners: Sequence[int]) -> Mapping[int, list[int]]:
    held: dict[int, list[int]] = {}
    for bucket, instance in enumerate(owners):
        held.setdefault(instance, []).append(bucket)
    return held


class Step(NamedTuple):
    """A map on the way to the map that record `towards` requested; the last step is the requested map itself."""

    owners: Owners
    instances: int
    towards: int


def step(
    current: BucketMap, coming: BucketMap, target: BucketMap, sizes: Sequence[float], most: float, waits: bool = False
) -> Step | None:
    """The map to record before the next epoch; None if no record is needed, because the log has the right map.

    `current` is the map by which state is stored, `coming` the map of the next epoch, `target` the requested map.
    `sizes` are the bytes of each bucket. A step moves at most `most` bytes, but at least one bucket. `waits`: nothing
    moves yet.

    >>> born, wanted = BucketMap(0, (0, 0, 0, 0), 1), BucketMap(7, (0, 1, 1, 1), 2)
    >>> step(born, wanted, wanted, (10,) * 4, 20)
    Step(owners=(0, 1, 1, 0), instances=2, towards=7)
    >>> step(BucketMap(8, (0, 1, 1, 0), 2), BucketMap(8, (0, 1, 1, 0), 2), wanted, (10,) * 4, 20)
    Step(owners=(0, 1, 1, 1), instances=2, towards=7)
    >>> step(born, wanted, wanted, (10,) * 4, 20, waits=True)
    Step(owners=(0, 0, 0, 0), instances=1, towards=7)
    """
    if coming.number not in (current.number, target.number) or current.number == target.number:
        return None  # the recorded step waits for its epoch, or there is nothing to do
    if waits:
        return None if coming.number == current.number else Step(current.owners, current.instances, target.number)
    before, after = np.array(current.owners), np.array(target.owners)
    moving = np.flatnonzero(before != after)
    ends = np.cumsum(np.array(sizes)[moving])
    first = min(len(moving), max(1, int(np.searchsorted(ends, most, "right"))))  # at least one bucket moves
    if first == len(moving):
        on_the_way = coming.number == current.number
        arrived = not len(moving) and current.instances == target.instances
        return Step(target.owners, target.instances, target.number) if on_the_way and not arrived else None
    chosen = moving[:first]
    before[chosen] = after[chosen]
    return Step(tuple(before.tolist()), max(current.instances, target.instances), target.number)
