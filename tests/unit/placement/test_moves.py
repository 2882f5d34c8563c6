"""The state that an instance must read, the owners in the log, and owners that follow slots with few moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.naive.placement import aligned_part, fewest_moves, held
from millpond.errors import CorruptError
from millpond.log.manifest import Change, Manifest
from millpond.model.change_history import ChangeEffects, Scaled
from millpond.model.change_json import MapChange, Move, Resharded, Scale, change_to_json, map_change_in
from millpond.model.spec import PondSpec, from_json, to_json
from millpond.placement.alignment import aligned_owners, placement_of, realigned, rescaled
from millpond.placement.bucket_stores import places_in
from millpond.placement.moves import (
    BucketMap,
    bucket_maps,
    buckets_moving,
    newest_map_change,
    requested_map,
    sources,
    step,
)
from millpond.placement.run_lengths import runs_of
from millpond.reconfigure.catalog import applied
from millpond.reconfigure.changes import change_of, change_text

SHARDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=40)
OWNED = st.lists(st.integers(0, 5), min_size=40, max_size=40)


@given(OWNED, OWNED)
def test_sources_hold_every_bucket_that_an_instance_owns_now(before: list[int], after: list[int]) -> None:
    found = sources(before, after)
    for instance in range(6):
        had, has = held(before, instance), held(after, instance)
        assert (instance in found) == (had != has)
        if instance in found:
            assert set(found[instance]) == {before[bucket] for bucket in has}


@given(SHARDS, OWNED, st.integers(1, 6))
def test_realigned_owners_are_local_and_few_have_moved(shards: list[str], owned: list[int], instances: int) -> None:
    owners = tuple(instance % instances for instance in owned[: len(shards)])
    better = realigned(owners, shards, instances)
    assert len(better) == len(owners) and set(better) <= set(range(instances))
    if instances < len(set(shards)):
        assert better == owners
        return
    assert aligned_part(better, shards) == 1
    assert realigned(better, shards, instances) == better, "there is nothing left to move"
    homes_after = {share.instance: share.home for share in placement_of(better, shards).shares}
    for instance, home in homes_after.items():
        counts = Counter(shards[bucket] for bucket in held(owners, instance)).most_common()
        if counts and counts[0][0] == home and all(count < counts[0][1] for _, count in counts[1:]):
            at_home = {bucket for bucket in held(owners, instance) if shards[bucket] == home}
            assert at_home <= set(held(better, instance)), "what is at home stays there"


def test_slots_that_move_take_their_buckets_along() -> None:
    shards = ["a"] * 16 + ["b"] * 16 + ["c"] * 16
    owners = aligned_owners(shards, 4)
    assert realigned(owners, ["d"] * 16 + shards[16:], 4) == owners, "a replica took over: nothing moves"
    moved = ["c"] * 3 + shards[3:]
    followed = realigned(owners, moved, 4)
    assert followed == (3,) * 3 + owners[3:], "only those whose primary changed"
    grown = [*shards[:12], *["d"] * 4, *shards[16:28], *["d"] * 4, *shards[32:44], *["d"] * 4]
    better = realigned(owners, grown, 4)
    assert placement_of(better, grown).aligned == 1
    moves = sum(old != new for old, new in zip(owners, better, strict=True))
    assert moves == 12, "one of the two of a shard goes there"


def test_a_map_is_in_force_from_the_epoch_after_it() -> None:
    born = (0, 0, 1, 1)
    owned = ((3, ((1, 4),)), (7, ((0, 4),)))
    first, second = (Change(n, change_to_json(MapChange(runs, "why"))) for n, runs in owned)
    other = Change(5, '{"kind":"something else","x":1}')
    manifest = Manifest(changes=(first, other, second), map=3)
    assert bucket_maps(born, 2, manifest) == ((3, (1,) * 4, 2), (7, (0,) * 4, 2))
    assert bucket_maps(born, 2, Manifest(changes=(other,))) == ((0, born, 2), (0, born, 2))
    with pytest.raises(CorruptError, match="owners of the pond's buckets"):
        bucket_maps(born[:3], 2, manifest)
    for text in ("{", '{"kind":"map","owned":3}', '{"kind":4}'):
        with pytest.raises(CorruptError, match="stored change"):
            map_change_in(text)
    assert map_change_in("{}") is None


def test_a_requested_scale_outlives_the_driver_that_recorded_it() -> None:
    born, runs = (0, 0, 1, 1), ((0, 1), (1, 1), (2, 2))
    requested, scaled = Change(5, change_to_json(Scale(runs, "requested", 3))), (Scaled(5, 3, runs),)
    now = (5, (0, 1, 2, 2), 3)
    assert bucket_maps(born, 2, Manifest(changes=(requested,))) == ((0, born, 2), now)
    assert bucket_maps(born, 2, Manifest(), scaled) == ((0, born, 2), now), "a claim, and no epoch yet"
    assert bucket_maps(born, 2, Manifest(changes=(requested,), map=5), scaled) == (now, now)
    later = (*scaled, Scaled(9, 1, ((0, 4),)))
    assert bucket_maps(born, 2, Manifest(map=5), later) == (now, (9, (0,) * 4, 1)), "state lies by the older one"
    followed = Change(8, change_to_json(MapChange(((1, 4),), "slots moved", 3)))
    assert bucket_maps(born, 2, Manifest(changes=(requested, followed), map=5), scaled) == (now, (8, (1,) * 4, 3))
    assert bucket_maps(born, 2, Manifest(changes=(followed,), map=8), scaled)[0].number == 8


def test_steps_lead_to_the_requested_map_whichever_driver_takes_them() -> None:
    born, wanted = (0, 0, 0, 0), (0, 1, 1, 2)
    requested = Change(5, change_to_json(Scale(runs_of(wanted), "requested", 3)))
    spec, changes, at, numbers = (Scaled(5, 3, runs_of(wanted)),), [requested], 0, iter(range(6, 20))
    seen = []
    while True:
        manifest = Manifest(changes=tuple(changes), map=at)
        (lies, now), to = bucket_maps(born, 1, manifest, spec), requested_map(born, 1, manifest, spec)
        assert to == (5, wanted, 3)
        found = step(lies, now, to, (8.0,) * 4, 20.0)
        if found is None:
            break
        assert step(lies, BucketMap(99, found.owners, 3), to, (8.0,) * 4, 20.0) is None, "an epoch comes between"
        seen.append(found)
        at = next(numbers)
        made = MapChange(runs_of(found.owners), "step", found.instances, found.towards)
        changes = [Change(at, change_to_json(made))]  # a claim keeps that one and the spec's
    assert seen == [((0, 1, 1, 0), 3, 5), (wanted, 3, 5)]
    back = (Scaled(30, 1, runs_of(born)), *spec)
    manifest = Manifest(changes=tuple(changes), map=at)
    (lies, now), to = bucket_maps(born, 1, manifest, back), requested_map(born, 1, manifest, back)
    assert now == to and step(lies, now, to, (8.0,) * 4, 99.0) is None, "what is small goes at once"
    assert step(lies, now, to, (8.0,) * 4, 1.0) == ((0, 0, 1, 2), 3, 30), "fewer instances with the last step only"
    refined = Change(at, change_to_json(MapChange(runs_of((0, 1, 0, 0)), "step", 3, 6)))
    lost = Manifest(changes=(refined,), map=at)
    assert requested_map(born, 1, lost, spec) == (5, wanted, 3), "what a driver made of it is made again by the next"
    lost = Manifest(changes=tuple(changes), map=at)
    assert requested_map(born, 1, lost).number == at, "towards what nobody knows any more: it stays where it is"


def test_the_steps_of_all_moves_before_are_not_read_again() -> None:
    """A cache of a thousand texts, read in order, is none for two thousand: each epoch then took a second more."""
    born = (0,) * 8
    steps = [Change(n, change_to_json(MapChange(((0, 1), (1, 7)), f"step {n}", 2))) for n in range(1, 2001)]
    manifest = Manifest(changes=tuple(steps), map=1900)
    map_change_in.cache_clear()
    assert [one.number for one in bucket_maps(born, 1, manifest)] == [1900, 2000]
    assert map_change_in.cache_info().misses == 2


def test_changes_that_are_none_of_the_map_are_read_once() -> None:
    def changed(count: int, before: Manifest) -> Manifest:
        more = (Change(n, f'{{"kind":"param","n":{n}}}') for n in range(before.n + 1, count))
        return replace(before, n=count - 1, changes=(*before.changes, *more))

    moved = Change(0, change_to_json(MapChange(((1, 8),), "why", 2)))
    many = changed(3000, Manifest(n=0, changes=(moved,)))
    assert newest_map_change(many) is moved
    map_change_in.cache_clear()
    more = changed(3010, many)
    assert newest_map_change(more) is moved and map_change_in.cache_info().misses == 10
    assert newest_map_change(changed(20, Manifest())) is None, "of another pond"
    assert newest_map_change(more) is moved


def test_the_number_of_migrating_buckets_is_shown() -> None:
    wanted, half = (0, 1, 1, 2), (0, 1, 0, 0)
    spec = replace(PondSpec.of((), (), 1, 4), changed=ChangeEffects(scaled=(Scaled(5, 3, runs_of(wanted)),)))
    steps = [Change(n, change_to_json(MapChange(runs_of(to), "step", 3, 5))) for n, to in ((6, half), (7, wanted))]
    assert buckets_moving(PondSpec.of((), (), 1, 4), Manifest()) == 0
    assert buckets_moving(spec, Manifest()) == 3, "requested, and no epoch yet"
    assert buckets_moving(spec, Manifest(changes=tuple(steps[:1]), map=6)) == 2
    assert buckets_moving(spec, Manifest(changes=tuple(steps), map=7)) == 0


def test_what_is_stored_of_maps_scales_and_moves() -> None:
    assert change_to_json(MapChange(((0, 4),), "why")) == '{"kind":"map","owned":[[0,4]],"why":"why"}'
    scale, move = Scale(((0, 4),), "why", 1, "ann", 7), Move((("", 3), ("lmdb:/x", 1)), "why", "ann")
    assert change_text(scale) == change_to_json(scale)
    assert change_text(scale) == ('{"kind":"scale","owned":[[0,4]],"why":"why","instances":1,"who":"ann","before":7}')
    assert change_text(move) == '{"kind":"move","places":[["",3],["lmdb:/x",1]],"why":"why","who":"ann"}'
    assert [change_of(change_text(one)) for one in (scale, move)] == [scale, move]
    elastic, ended = replace(scale, shards=(("h:1", 3), ("h:2", 1))), Resharded("arrived")
    assert change_text(elastic).endswith('"before":7,"shards":[["h:1",3],["h:2",1]]}')
    assert change_text(ended) == '{"kind":"resharded","why":"arrived"}'
    assert [change_of(change_text(one)) for one in (elastic, ended)] == [elastic, ended]
    spec = PondSpec((), (), 2, 4)
    moving = applied(applied(spec, 5, elastic), 6, scale)
    assert moving.effects.shards == elastic.shards, "another number of instances does not stop slots"
    assert from_json(to_json(moving)) == moving and applied(moving, 7, ended).effects.shards == ()
    after = applied(applied(spec, 5, scale), 8, move)
    assert after.effects.scaled == (Scaled(5, 1, ((0, 4),)),)
    assert from_json(to_json(after)) == after
    assert places_in(spec) == ("",) * 4 and places_in(after) == ("", "", "", "lmdb:/x")
    with pytest.raises(CorruptError, match="places of the pond's buckets"):
        places_in(replace(after, buckets=5))


@given(OWNED, st.integers(1, 8), st.integers(1, 40))
def test_rescaled_owners_are_even_and_few_have_moved(owned: list[int], instances: int, buckets: int) -> None:
    owners = tuple(owned[:buckets])
    better = rescaled(owners, instances)
    sizes = [len(held(better, instance)) for instance in range(instances)]
    assert sum(sizes) == buckets and max(sizes) - min(sizes) <= 1
    moved = sum(old != new for old, new in zip(owners, better, strict=True))
    assert moved == fewest_moves(owners, instances)
    assert rescaled(better, instances) == better, "there is nothing left to move"
