"""An instance's buckets are on one shard if there are enough instances, and shares are as even as possible."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.naive.placement import aligned_part, smallest_largest_share
from millpond.errors import CorruptError
from millpond.model.spec import PondSpec, from_json, to_json
from millpond.placement.alignment import (
    aligned_owners,
    owners_in,
    placement_of,
    realigned,
    rescaled,
    rescaled_on,
    with_owners,
)
from millpond.placement.run_lengths import runs_of
from millpond.placement.slots import even_owners

SHARDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=40)


@given(SHARDS, st.integers(1, 9))
def test_owners_agree_with_the_naive_twin(shards: list[str], instances: int) -> None:
    owners = aligned_owners(shards, instances)
    assert len(owners) == len(shards), "every bucket is owned once"
    assert set(owners) <= set(range(instances))
    sizes = Counter(owners)
    if instances < len(set(shards)):
        assert max(sizes.values()) - min(sizes.values()) <= 1
        assert len(sizes) == min(instances, len(shards))
        return
    assert max(sizes.values()) == smallest_largest_share(shards, instances)
    homes = {instance: {shard for shard, owner in zip(shards, owners, strict=True) if owner == instance}
             for instance in sizes}  # fmt: skip
    assert all(len(some) == 1 for some in homes.values()), "no instance has two shards"
    for shard in set(shards):
        own = [sizes[instance] for instance, some in homes.items() if some == {shard}]
        assert max(own) - min(own) <= 1
    assert placement_of(owners, shards).aligned == 1


@given(SHARDS, st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_a_placement_lists_and_counts_all_buckets(shards: list[str], owned: list[int]) -> None:
    owners = owned[: len(shards)]
    found = placement_of(owners, shards)
    expanded = [(one.instance, one.shard) for one in found.stretches for _ in range(one.first, one.last + 1)]
    assert expanded == list(zip(owners, shards, strict=True))
    assert [one.first for one in found.stretches[1:]] == [one.last + 1 for one in found.stretches[:-1]]
    assert {share.instance: share.buckets for share in found.shares} == Counter(owners)
    assert found.aligned == pytest.approx(aligned_part(owners, shards))
    spec = PondSpec((), (), 4, len(owners))
    assert owners_in(with_owners(spec, tuple(owners))) == tuple(owners)


@given(st.integers(1, 64), st.integers(1, 70))
def test_on_one_shard_owners_are_even(buckets: int, instances: int) -> None:
    assert aligned_owners(["one"] * buckets, instances) == even_owners(buckets, instances)


def test_four_instances_on_three_primaries() -> None:
    shards = ["a"] * 342 + ["b"] * 341 + ["c"] * 341
    owners = aligned_owners(shards, 4)
    assert runs_of(owners) == ((0, 171), (1, 171), (2, 341), (3, 341))
    even = placement_of(even_owners(1024, 4), shards)
    assert [share.local for share in even.shares] == [256, 170, 171, 256]
    assert even.aligned == pytest.approx(853 / 1024)


def test_even_owners_are_not_written_and_false_ones_are_refused() -> None:
    spec = PondSpec((), (), 2, 6)
    assert with_owners(spec, (0, 0, 0, 1, 1, 1)) == spec
    assert "owned" not in to_json(spec)
    aligned = with_owners(spec, (0, 0, 1, 1, 1, 1))
    assert from_json(to_json(aligned)) == aligned and aligned.owned == ((0, 2), (1, 4))
    assert owners_in(spec) == (0, 0, 0, 1, 1, 1)
    for owned in (((0, 5),), ((0, 3), (2, 3))):
        with pytest.raises(CorruptError, match=r"\[MP-CORRUPT\]"):
            owners_in(replace(spec, owned=owned))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), min_size=8, max_size=40), st.integers(1, 7))
def test_more_or_fewer_instances_are_aligned_and_even(given: list[tuple[str, int]], instances: int) -> None:
    shards, owners = [shard for shard, _ in given], [owner for _, owner in given]
    found = rescaled_on(owners, shards, instances)
    assert rescaled_on(found, shards, instances) == found, "it is stable"
    shares = sorted(Counter(found).values())
    if instances < len({*shards}):
        assert found == rescaled(owners, instances)
        return
    assert shares == sorted(Counter(aligned_owners(shards, instances)).values())
    assert placement_of(found, shards).aligned == 1 and realigned(found, shards, instances) == found
    # naive: for the instances of each shard, no even distribution keeps more buckets where they are
    for shard in {*shards}:
        on = [bucket for bucket, of in enumerate(shards) if of == shard]
        mine = {found[bucket] for bucket in on}
        share, larger = divmod(len(on), len(mine))
        held = sorted((sum(owners[bucket] == one for bucket in on) for one in mine), reverse=True)
        kept = sum(min(n, share + (place < larger)) for place, n in enumerate(held))
        assert sum(owners[bucket] == found[bucket] for bucket in on) == kept
