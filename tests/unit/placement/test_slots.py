"""Slots are Redis's own, buckets are contiguous ranges of them, and owners are even."""

from __future__ import annotations

import binascii
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.placement.slots import SLOTS, buckets_of, even_owners, hash_tags, slots_of


@pytest.mark.parametrize("text, slot", [
    ("123456789", 12739), ("", 0), ("foo", 12182), ("bar", 5061), ("hello", 866), ("a", 15495),
])  # fmt: skip
def test_slots_that_redis_documents(text: str, slot: int) -> None:
    assert slots_of(pa.array([text])).tolist() == [slot]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=30), st.integers(0, 3))
def test_slots_are_crc16_of_the_utf8_bytes(texts: list[str], skipped: int) -> None:
    cut = pa.array(["left out"] * skipped + texts, pa.string()).slice(skipped)
    expected = [binascii.crc_hqx(text.encode(), 0) % SLOTS for text in texts]
    assert slots_of(cut).tolist() == expected
    assert slots_of(cut.cast(pa.large_string())).tolist() == expected


@pytest.mark.parametrize("buckets", [1, 4, 7, 64, 1000, 1024, 16384])
def test_a_bucket_is_a_contiguous_range_of_slots(buckets: int) -> None:
    owners = buckets_of(np.arange(SLOTS), buckets)
    assert (np.diff(owners) >= 0).all()
    sizes = Counter(owners.tolist())
    assert sorted(sizes) == list(range(buckets))
    assert max(sizes.values()) - min(sizes.values()) <= 1


@pytest.mark.parametrize("buckets", [1, 4, 64, 1024])
@pytest.mark.parametrize("instances", [1, 2, 3, 7])
def test_owners_are_contiguous_and_even(buckets: int, instances: int) -> None:
    owners = even_owners(buckets, instances)
    assert len(owners) == buckets
    assert list(owners) == sorted(owners)
    sizes = Counter(owners)
    if buckets >= instances:
        assert sorted(sizes) == list(range(instances))
        assert max(sizes.values()) - min(sizes.values()) <= 1


@pytest.mark.parametrize("buckets", [1, 7, 1024, 16384])
def test_a_tag_lies_in_the_first_slot_of_its_bucket(buckets: int) -> None:
    slots = slots_of(pa.array(hash_tags(buckets)))
    owners = buckets_of(np.arange(SLOTS), buckets)
    assert slots.tolist() == np.unique(owners, return_index=True)[1].tolist()


def test_a_tag_is_the_smallest_number_with_its_slot() -> None:
    found: dict[int, int] = {}
    for number in range(110_000):
        found.setdefault(binascii.crc_hqx(str(number).encode(), 0) % SLOTS, number)
    assert hash_tags(SLOTS) == tuple(str(found[slot]) for slot in range(SLOTS))
