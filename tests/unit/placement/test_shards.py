"""Buckets are spread evenly over the shards of a store with the fewest moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import ChangeRefused
from millpond.placement.shards import assign_buckets, requested_shards

NAMES = st.sampled_from("abcdef")


@given(st.lists(NAMES, min_size=6, max_size=40), st.sets(NAMES, min_size=1).map(sorted))
def test_shares_are_even_and_no_even_distribution_is_nearer(shards: list[str], wanted: list[str]) -> None:
    found = assign_buckets(shards, wanted)
    held, before = Counter(found), Counter(shards)
    share, larger = divmod(len(shards), len(wanted))
    assert sorted(held[name] for name in wanted) == sorted([share + 1] * larger + [share] * (len(wanted) - larger))
    assert held.total() == len(shards)
    # naive: each shard keeps what fits into its share, and the larger shares go to those that have most
    most = sorted((before[name] for name in wanted), reverse=True)
    kept = sum(min(n, share + (place < larger)) for place, n in enumerate(most))
    assert sum(old == new for old, new in zip(shards, found, strict=True)) == kept
    assert assign_buckets(found, wanted) == found


def test_shards_are_chosen_by_number_or_name() -> None:
    shards, servers = ("a", "a", "c", "c", "c", "b"), ("a", "b", "c", "d")
    assert requested_shards(2, shards, servers) == ("a", "c"), "those with most buckets stay"
    assert requested_shards(4, shards, servers) == servers
    assert requested_shards(["d", "b"], shards, servers) == ("b", "d")
    with pytest.raises(ChangeRefused, match="has 4 primaries, not 5"):
        requested_shards(5, shards, servers)
    with pytest.raises(ChangeRefused, match="x:1 is no primary"):
        requested_shards(["a", "x:1"], shards, servers)
    with pytest.raises(ChangeRefused, match="Nothing is no primary"):
        requested_shards([], shards, servers)
