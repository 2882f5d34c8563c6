"""Instances are folded on the hosts of their shards, evenly, and stay where they are."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kit.naive.placement import most_at_home
from millpond.placement.instance_hosts import NO_HOST, instance_hosts

HOSTS = st.sampled_from(["a", "b", "c", "gone", NO_HOST])
EXECUTORS = st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), min_size=1)


@given(st.lists(HOSTS, min_size=1, max_size=6), EXECUTORS, st.lists(HOSTS, max_size=8))
def test_as_many_instances_are_at_home_as_even_parts_allow(
    homes: list[str], executors: dict[str, int], previous: list[str]
) -> None:
    chosen = instance_hosts(homes, executors, previous)
    assert len(chosen) == len(homes) and {*chosen} <= {*executors}
    total = sum(executors.values())
    assert all(number < len(homes) * executors[host] / total + 1 for host, number in Counter(chosen).items())
    assert sum(host == home for host, home in zip(chosen, homes, strict=True)) == most_at_home(homes, executors)
    assert instance_hosts(homes, executors, chosen) == chosen, "nothing has changed, so nothing moves"


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_without_shards_only_the_instances_of_a_lost_host_move(previous: list[str]) -> None:
    before = instance_hosts([NO_HOST] * len(previous), {"a": 1, "b": 1, "c": 1}, previous)
    after = instance_hosts([NO_HOST] * len(previous), {"a": 1, "b": 1}, before)
    assert all(old == new for old, new in zip(before, after, strict=True) if old != "c")


def test_a_store_of_one_server_does_not_draw_every_instance_to_its_host() -> None:
    assert instance_hosts(["a"] * 4, {"a": 1, "b": 1}, []) == ("a", "a", "b", "b")
    assert instance_hosts(["a"] * 4, {"a": 3, "b": 1}, []) == ("a", "a", "a", "b")
