"""Which instance owns which bucket according to the log, and which instances must hand state to which. Pure.

A change of the map is a record. The first epoch after it rebuilds the state of every instance whose buckets changed,
from the sections of the previous owners. Its own record names the new sections, ends the old ones, and states their
map. So all state follows the map of the last epoch, whatever was requested since.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from millpond.log.manifest import Change, Manifest
from millpond.model.change_history import Scaled
from millpond.model.change_json import MapChange, Scale, map_change_in
from millpond.model.spec import PondSpec
from millpond.placement.alignment import Owners, owners_in, owners_of_runs


class BucketMap(NamedTuple):
    """The instance of each bucket, how many instances there are, and the record that said so; 0: it is as when the pond
    was made.
    """

    number: int
    owners: Owners
    instances: int


def bucket_maps(
    born: Owners, instances: int, manifest: Manifest, scaled: Sequence[Scaled] = ()
) -> tuple[BucketMap, BucketMap]:
    """The map by which state lies, and the one for the next epoch; `born` are the owners that the pond was made with.

    A change that no epoch has followed yet ends with the driver that wrote it; what was asked for, `scaled`, does not.

    Raises:
        CorruptError: a stored map is not one of these buckets and instances.
    """
    newest = _newest(manifest, scaled)
    return (
        _map_of(_change(manifest, scaled, manifest.map), manifest.map, born, instances),
        _map_of(_change(manifest, scaled, newest), newest, born, instances),
    )


def asked_map(born: Owners, instances: int, manifest: Manifest, scaled: Sequence[Scaled] = ()) -> BucketMap:
    """The map that was asked for last: the one for the next epoch, or that to which it is a step.

    Raises:
        CorruptError: a stored map is not one of these buckets and instances.
    """
    number = _newest(manifest, scaled)
    change = _change(manifest, scaled, number)
    if isinstance(change, MapChange) and not isinstance(change.towards, msgspec.UnsetType):
        towards = _change(manifest, scaled, change.towards)
        if towards is not None:
            number, change = change.towards, towards
        elif scaled:  # a driver refined what was asked, and ended with its map; the next one refines it again
            number, change = scaled[-1].n, scaled[-1]
    return _map_of(change, number, born, instances)


_Change: TypeAlias = "MapChange | Scale | Scaled"


def _newest(manifest: Manifest, scaled: Sequence[Scaled]) -> int:
    """The record of the last change of the map; 0: there is none."""
    changed = newest_map_change(manifest)
    return max([0 if changed is None else changed.n, *(one.n for one in scaled)])


_seen: tuple[Change | None, Change | None] = None, None


def newest_map_change(manifest: Manifest) -> Change | None:
    """The last change of the map since the last claim. Others may be many, so only those are read that have come since
    this was asked last.
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
    """The change of the map by a record, found by its number: a move of gigabytes leaves hundreds of them."""
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
    """The two maps of a pond that was asked `spec`."""
    return bucket_maps(owners_in(spec), spec.instances, manifest, spec.left.scaled)


def asked_map_in(spec: PondSpec, manifest: Manifest) -> BucketMap:
    """The same of a pond that was asked `spec`."""
    return asked_map(owners_in(spec), spec.instances, manifest, spec.left.scaled)


def buckets_moving(spec: PondSpec, manifest: Manifest) -> int:
    """Of how many buckets the state does not lie yet where it was asked to."""
    lies, asked = maps_in(spec, manifest)[0], asked_map_in(spec, manifest)
    return sum(before != after for before, after in zip(lies.owners, asked.owners, strict=True))


def claimed_map(spec: PondSpec, manifest: Manifest) -> BucketMap:
    """The map for the next epoch after a claim behind the manifest's record."""
    kept = tuple(change for change in manifest.changes if change.n == manifest.map)
    return maps_in(spec, msgspec.structs.replace(manifest, changes=kept))[1]


def sources(before: Sequence[int], after: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """For each instance whose buckets are others than before, the instances that owned them, which may be itself.

    >>> sources((0, 0, 1, 1, 2), (0, 1, 1, 1, 2))
    {0: (0,), 1: (0, 1)}
    """
    if tuple(before) == tuple(after):
        return {}
    had, has = _held(before), _held(after)
    changed = sorted(instance for instance in {*had, *has} if had.get(instance) != has.get(instance))
    return {
        instance: tuple(sorted({before[bucket] for bucket in has.get(instance, ())})) for instance in changed
    }


def _held(owners: Sequence[int]) -> Mapping[int, list[int]]:
    held: dict[int, list[int]] = {}
    for bucket, instance in enumerate(owners):
        held.setdefault(instance, []).append(bucket)
    return held
