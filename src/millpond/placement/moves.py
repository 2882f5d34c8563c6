"""How buckets change their owners, and how many owners there are: the map in force by the log, and who must take over
state from whom. Pure.

A change of the map is a record. The first epoch after it makes the state of every instance whose buckets changed
anew, from the sections of the instances that owned these buckets before; its own record names the new sections and
ends the old, and says of which map it is. So all state lies by the map of the last epoch, whatever was asked since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from millpond.log.manifest import Manifest
from millpond.model.changed import Scaled
from millpond.model.changes import MapChange, Scale, map_change_in
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
    every = _every(manifest, scaled)
    return (
        _map_of(every, manifest.map, born, instances),
        _map_of(every, max(every, default=0), born, instances),
    )  # fmt: skip


def asked_map(born: Owners, instances: int, manifest: Manifest, scaled: Sequence[Scaled] = ()) -> BucketMap:
    """The map that was asked for last: the one for the next epoch, or that to which it is a step.

    Raises:
        CorruptError: a stored map is not one of these buckets and instances.
    """
    every = _every(manifest, scaled)
    number = max(every, default=0)
    change = every.get(number)
    if isinstance(change, MapChange) and not isinstance(change.towards, msgspec.UnsetType) and change.towards in every:
        number = change.towards
    return _map_of(every, number, born, instances)


_Maps: TypeAlias = "Mapping[int, MapChange | Scale | Scaled]"


def _every(manifest: Manifest, scaled: Sequence[Scaled]) -> _Maps:
    changes = {one.n: change for one in manifest.changes if (change := map_change_in(one.change)) is not None}
    asked: dict[int, MapChange | Scale | Scaled] = {one.n: one for one in scaled}
    return asked | changes


def _map_of(every: _Maps, number: int, born: Owners, instances: int) -> BucketMap:
    if number not in every:
        return BucketMap(0, born, instances)
    change = every[number]
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
