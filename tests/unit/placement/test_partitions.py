"""Buckets by the key of a topic: each lies in one partition, for every count of partitions that a pond can follow."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.naive.placement import hash_of, partition_of
from millpond.placement import partitions
from millpond.placement.partitions import (
    buckets_by_partition,
    hashes_of,
    homes,
    owners_by_partition,
    remainders,
    why_not,
)
from millpond.placement.slots import even_owners

BUCKETS = st.sampled_from([1, 8, 64, 1024])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=24)


@pytest.mark.parametrize("text, hashed", [
    ("21", -973932308), ("foobar", -790332482), ("a-little-bit-long-string", -985981536),
    ("a-little-bit-longer-string", -1486304829), ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    ("abc", 479470107),
])  # fmt: skip
def test_hashes_that_kafka_documents(text: str, hashed: int) -> None:
    assert hashes_of(pa.array([text])).tolist() == [hashed & 0x7FFFFFFF] == [hash_of(text.encode())]


@given(st.lists(TEXT, max_size=30), st.integers(0, 3), st.integers(0, 30))
def test_hashes_are_those_of_the_twin(texts: list[str], skipped: int, few: int) -> None:
    cut = pa.array(["left out"] * skipped + texts, pa.string()).slice(skipped)
    with mock.patch.object(partitions, "_FEW", few):
        assert hashes_of(cut).tolist() == [hash_of(text.encode()) for text in texts]
        assert hashes_of(cut.cast(pa.large_string())).tolist() == hashes_of(cut).tolist()


@given(st.lists(TEXT, min_size=1, max_size=30), st.integers(1, 40), st.integers(1, 48), BUCKETS)
def test_owners_by_partition_have_keys_of_one_partition(
    texts: list[str], partitions: int, instances: int, buckets: int
) -> None:
    if why_not(buckets, instances, partitions):
        return
    owners = owners_by_partition(buckets, instances, partitions)
    found = homes(owners, instances, partitions)
    assert found is not None and {*found} >= {*range(partitions)}
    for text, bucket in zip(texts, buckets_by_partition(pa.array(texts), buckets).tolist(), strict=True):
        assert found[owners[bucket]] == partition_of(text.encode(), partitions)
    number = remainders(buckets)
    shares = Counter(owners[-(-place * buckets // number)] for place in range(number))  # the others have no keys
    for partition in range(partitions):
        sizes = [shares[instance] for instance, home in enumerate(found) if home == partition]
        assert max(sizes) - min(sizes) <= 1


def test_buckets_are_even_in_contiguous_ranges_too() -> None:
    buckets = buckets_by_partition(pa.array([f"customer-{number}" for number in range(100_000)]), 1024)
    for instances in (2, 7, 16):
        shares = np.bincount(np.array(even_owners(1024, instances))[buckets])
        assert shares.min() > 0.9 * shares.mean()


def test_other_owners_do_not_fit() -> None:
    assert homes(even_owners(64, 4), 4, 4) is None
    assert homes(owners_by_partition(64, 4, 4), 4, 2) == (0, 1, 0, 1)
    assert homes(owners_by_partition(64, 2, 2), 2, 4) is None
    assert homes(owners_by_partition(64, 4, 4), 4, 7) is None
    assert why_not(1024, 8, 7) == "7 partitions do not divide 960, by which buckets are made"
    assert why_not(1024, 2, 4) == "4 partitions, and only 2 instances"
    assert [remainders(buckets) for buckets in (1, 7, 12, 59, 120)] == [1, 4, 12, 48, 120]
