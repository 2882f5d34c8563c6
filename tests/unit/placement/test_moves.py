"""Whose state an instance must read, what the log says of owners, and owners that follow slots in few moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import CorruptError
from millpond.log.manifest import Change, Manifest
from millpond.model.changes import MapChange, change_to_json, map_change_in
from millpond.placement.alignment import aligned_owners, placement_of, realigned
from millpond.placement.moves import bucket_maps, sources
from millpond.testing.naive_placement import held, local_hit_rate

SHARDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=40)
OWNED = st.lists(st.integers(0, 5), min_size=40, max_size=40)


@settings(deadline=None)
@given(OWNED, OWNED)
def test_sources_hold_every_bucket_that_an_instance_owns_now(before: list[int], after: list[int]) -> None:
    found = sources(before, after)
    for instance in range(6):
        had, has = held(before, instance), held(after, instance)
        assert (instance in found) == (had != has)
        if instance in found:
            assert set(found[instance]) == {before[bucket] for bucket in has}


@settings(deadline=None)
@given(SHARDS, OWNED, st.integers(1, 6))
def test_realigned_owners_are_local_and_few_have_moved(shards: list[str], owned: list[int], instances: int) -> None:
    owners = tuple(instance % instances for instance in owned[: len(shards)])
    better = realigned(owners, shards, instances)
    assert len(better) == len(owners) and set(better) <= set(range(instances))
    if instances < len(set(shards)):
        assert better == owners
        return
    assert local_hit_rate(better, shards) == 1
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
    assert placement_of(better, grown).local_hit_rate == 1
    moves = sum(old != new for old, new in zip(owners, better, strict=True))
    assert moves == 12, "one of the two of a shard goes there"


def test_a_map_is_in_force_from_the_epoch_after_it() -> None:
    born = (0, 0, 1, 1)
    owned = ((3, ((1, 4),)), (7, ((0, 4),)))
    first, second = (Change(n, change_to_json(MapChange(runs, "why"))) for n, runs in owned)
    other = Change(5, '{"kind":"something else","x":1}')
    manifest = Manifest(changes=(first, other, second), map=3)
    assert bucket_maps(born, 2, manifest) == ((3, (1,) * 4), (7, (0,) * 4))
    assert bucket_maps(born, 2, Manifest(changes=(other,))) == ((0, born), (0, born))
    with pytest.raises(CorruptError, match="owners of the pond's buckets"):
        bucket_maps(born[:3], 2, manifest)
    for text in ("{", '{"kind":"map","owned":3}', '{"kind":4}'):
        with pytest.raises(CorruptError, match="stored change"):
            map_change_in(text)
    assert map_change_in("{}") is None
