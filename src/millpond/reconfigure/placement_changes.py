"""Builds changes of placement: another number of instances, or another store for the served rows of some buckets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from millpond.errors import ChangeRefused
from millpond.log.manifest import Manifest
from millpond.log.records import STATE
from millpond.model.change_json import Move, Resharded, Scale
from millpond.placement.alignment import Owners, rescaled, rescaled_on
from millpond.placement.bucket_stores import check_place, moved_to, places_in
from millpond.placement.moves import BucketMap, maps_in, requested_map_in
from millpond.placement.run_lengths import of_runs, runs_of
from millpond.plan.groups.plan import Plan
from millpond.reconfigure.apply import plan_of
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.migration.move_state import dealt_logs, moving, shares_here


def scale(
    pond: KnownPond, instances: int | None, shards: Sequence[str] = (), who: str = "", why: str = "requested",
    target: Sequence[str] = (),
) -> Scale:  # fmt: skip
    """Change the number of instances (None: it stays), with as few moved buckets as an even distribution needs.

    `shards`: the shard on which the store keeps each bucket, if it has several. The buckets of an instance are then on
    one shard as far as possible. `target`: the shard to which each bucket moves; empty: the shards do not change.

    Raises:
        ChangeRefused: instances and shards are so already, or the number is not possible.
    """
    current, requested = maps_in(pond.spec, pond.manifest)[1], requested_map_in(pond.spec, pond.manifest).instances
    instances = requested if instances is None else instances
    if not 1 <= instances <= pond.spec.buckets:
        raise ChangeRefused(
            f"{instances} instances cannot share {pond.spec.buckets} buckets.", f"Use 1 to {pond.spec.buckets}."
        )
    moves = bool(target) and tuple(target) != tuple(shards)
    if instances == requested and not moves:
        on = f" on {len({*target})} shards" if target else ""
        raise ChangeRefused(f"The pond has {instances} instances{on} already.", "Nothing is left to do.")
    shards = target or shards
    owners = rescaled_on(current.owners, shards, instances) if shards else rescaled(current.owners, instances)
    found = owned_by(pond, owners, instances, who, why)
    return msgspec.structs.replace(found, shards=runs_of(target)) if moves else found


def resharded(pond: KnownPond, target: Sequence[str] = (), who: str = "") -> Resharded:
    """End a move of hash slots: they have arrived at `target`, or it is stopped (`target` is empty).

    Raises:
        ChangeRefused: no slots move, or they move elsewhere by now.
    """
    moving = pond.spec.effects.shards
    if not moving or (target and of_runs(moving) != tuple(target)):
        raise ChangeRefused("No hash slots are moved there.", "Nothing is left to do.")
    count = len({*target})
    why = f"all hash slots are on the {count} shards" if target else "stopped: slots stay where they are"
    return Resharded(why, who)


def owned_by(pond: KnownPond, owners: Owners, instances: int, who: str = "", why: str = "requested") -> Scale:
    """Give each bucket the named owner, among `instances` instances.

    Raises:
        ChangeRefused: the number of owners is not the number of buckets, or an owner is not one of the instances.
    """
    if len(owners) != pond.spec.buckets or not {*owners} <= {*range(instances)}:
        raise ChangeRefused(
            f"These are not the owners of {pond.spec.buckets} buckets among {instances} instances.",
            "Name one of the instances, from 0 on, for each bucket.",
        )
    return Scale(runs_of(owners), why, instances, who)


class Moved(msgspec.Struct, frozen=True):
    """What migrates: the number of buckets, and an estimate of the bytes of live state, under the assumption that all
    buckets of an instance have equal state.
    """

    buckets: int = 0
    bytes: int = 0


def moved_by(pond: KnownPond, change: Scale) -> Moved:
    """What a change of owners would migrate if it were made now."""
    current = maps_in(pond.spec, pond.manifest)[0]
    return moved_between(
        current, BucketMap(0, of_runs(change.owned), change.instances), plan_of(pond.spec), pond.manifest
    )


def moved_between(before: BucketMap, after: BucketMap, plan: Plan, manifest: Manifest) -> Moved:
    """What migrates between two bucket maps; state that is distributed by values, not buckets, migrates whenever the
    number of instances changes.
    """
    leaving = Counter(old for old, new in zip(before.owners, after.owners, strict=True) if old != new)
    owned, by_bucket = Counter(before.owners), {one.id for one in moving(plan)}
    dealt = {log.id for log in dealt_logs(plan)} if before.instances != after.instances else set()
    size, here = 0.0, shares_here(manifest)
    for section in manifest.sections.values():
        if section.kind in STATE and section.group in by_bucket and section.instance in leaving:
            share = here.get((section.instance, section.group), 1.0)
            size += section.size * share * leaving[section.instance] / owned[section.instance]
        elif section.kind in STATE and section.group in dealt:
            size += section.size
    return Moved(leaving.total(), round(size))


def move(pond: KnownPond, buckets: Collection[int], to: str, who: str = "") -> Move:
    """Keep the served rows of these buckets at the place `to` from now on.

    Raises:
        ChangeRefused: the rows are already there, a bucket does not exist, or the address must not be stored.
    """
    places = places_in(pond.spec)
    if not buckets or not {*buckets} <= {*range(len(places))}:
        raise ChangeRefused(f"The pond has the buckets 0 to {len(places) - 1}.", "Name some of them.")
    check_place(to)
    after = moved_to(places, buckets, to)
    moved = sum(old != new for old, new in zip(places, after, strict=True))
    if not moved:
        raise ChangeRefused(f"The rows of these buckets are kept at {to or 'own'} already.", "Nothing is left to do.")
    return Move(runs_of(after), f"{moved:,} of {len(places):,} buckets to {to or 'own'}", who)
