"""How buckets change their owners: the map in force by the log, and who must take over state from whom. Pure.

A change of the map is a record. The first epoch after it makes the state of every instance whose buckets changed
anew, from the sections of the instances that owned these buckets before; its own record names the new sections and
ends the old, and says of which map it is. So all state lies by the map of the last epoch, whatever was asked since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millpond.log.manifest import Manifest
from millpond.model.changes import map_change_in
from millpond.model.spec import PondSpec
from millpond.placement.alignment import Owners, owners_in, owners_of_runs


class BucketMap(NamedTuple):
    """The instance of each bucket, and the record that said so; 0: it is as when the pond was made."""

    number: int
    owners: Owners


def bucket_maps(born: Owners, instances: int, manifest: Manifest) -> tuple[BucketMap, BucketMap]:
    """The map by which state lies, and the one for the next epoch; `born` are the owners that the pond was made with.

    A change that no epoch has followed yet ends with the driver that wrote it.

    Raises:
        CorruptError: a stored map is not one of these buckets and instances.
    """
    lies = now = BucketMap(0, born)
    for one in manifest.changes:
        change = map_change_in(one.change)
        if change is not None:
            now = BucketMap(one.n, owners_of_runs(change.owned, len(born), instances))
            if one.n == manifest.map:
                lies = now
    return lies, now


def maps_in(spec: PondSpec, manifest: Manifest) -> tuple[BucketMap, BucketMap]:
    """The same of a pond that was asked `spec`."""
    return bucket_maps(owners_in(spec), spec.instances, manifest)


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
