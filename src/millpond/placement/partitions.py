"""Maps keys of a partitioned topic to the partitions that Kafka producers choose, to buckets, and to fitting owners.

A bucket is the remainder of the partitioner's hash by a number that most partition counts divide. So all keys of a
bucket are in one partition, for any such number of partitions, also after partitions were added.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays import text_bytes
from millpond.placement.alignment import Owners
from millpond.placement.slots import Codes

_FEW = 16
"""Up to this number of texts, a loop over the words of each is faster than a step over all of them."""

_SEED, _M, _R = 0x9747B28C, np.uint32(0x5BD1E995), np.uint32(24)


def hashes_of(texts: pa.Array) -> Codes:
    """The hash whose remainder is the partition that Kafka's Java producers choose.

    It is MurmurHash2 of the UTF-8 bytes, without its sign (org.apache.kafka.common.utils.Utils.murmur2).

    >>> hashes_of(pa.array(["21", "foobar", "a-little-bit-long-string"])).tolist()
    [1173551340, 1357151166, 1161502112]
    """
    data, starts, lengths = text_bytes(texts)
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    rows = np.arange(len(starts))
    for position in range(0, int(lengths.max()) if len(lengths) else 0, 4):
        rows = rows[lengths[rows] >= position + 4]
        if len(rows) <= _FEW:
            for row in rows.tolist():
                begin = int(starts[row]) + position
                end = begin + (int(lengths[row]) - position) // 4 * 4
                hashes[row] = _continued(int(hashes[row]), data[begin:end].copy().view(np.uint32))
            break
        at = starts[rows] + position
        word = sum((data[at + i].astype(np.uint32) << np.uint32(8 * i) for i in range(4)), np.uint32(0)) * _M
        hashes[rows] = (hashes[rows] * _M) ^ ((word ^ (word >> _R)) * _M)
    remainders = lengths % 4
    for i in (2, 1, 0):
        rows = np.flatnonzero(remainders > i)
        at = starts[rows] + (lengths[rows] - remainders[rows]) + i
        hashes[rows] ^= data[at].astype(np.uint32) << np.uint32(8 * i)
    rows = np.flatnonzero(remainders)
    hashes[rows] *= _M
    hashes = (hashes ^ (hashes >> np.uint32(13))) * _M
    positive: Codes = ((hashes ^ (hashes >> np.uint32(15))) & np.uint32(0x7FFFFFFF)).astype(np.int64)
    return positive


def _continued(found: int, words: npt.NDArray[np.uint32]) -> int:
    """The hash after further words of a text."""
    multiplier, every = int(_M), (1 << 32) - 1
    for word in words.data:
        word = word * multiplier & every
        found = (found * multiplier ^ (word ^ word >> 24) * multiplier) & every
    return found


def remainders(buckets: int) -> int:
    """The divisor of hashes: it has at most one remainder per bucket, and most partition counts divide it.

    >>> remainders(1024), remainders(64), remainders(16), remainders(8)
    (960, 60, 12, 8)
    """
    base = next(base for base in (60, 12, 1) if base <= buckets)
    return base << ((buckets // base).bit_length() - 1)


def buckets_by_partition(texts: pa.Array, buckets: int) -> Codes:
    """The bucket of each key, for a topic that is partitioned by the key; some buckets have no keys."""
    divisor = remainders(buckets)
    found: Codes = -(-(hashes_of(texts) % divisor) * buckets // divisor)
    return found


def homes(owners: Sequence[int], instances: int, partitions: int) -> tuple[int, ...] | None:
    """The single partition with all keys of each instance (-1: it has no keys).

    None if some instance has keys of several partitions.
    """
    divisor, held = remainders(len(owners)), np.array(owners)
    if divisor % partitions:
        return None
    every = np.arange(divisor)
    of = held[-(-every * len(owners) // divisor)]
    found = np.full(instances, -1)
    found[of] = every % partitions
    return tuple(found.tolist()) if bool((found[of] == every % partitions).all()) else None


def owners_by_partition(buckets: int, instances: int, partitions: int) -> Owners:
    """Assigns buckets to instances so that each instance has keys of a single partition.

    The instances of one partition differ by at most one bucket with keys.

    >>> owners_by_partition(8, 2, 2), owners_by_partition(8, 3, 2)
    ((0, 1, 0, 1, 0, 1, 0, 1), (0, 1, 2, 1, 0, 1, 2, 1))
    """
    number = np.arange(buckets) * remainders(buckets) // buckets
    partition = number % partitions
    shared = (instances - partition - 1) // partitions + 1
    owned: npt.NDArray[np.int64] = partition + partitions * (number // partitions % shared)
    return tuple(owned.tolist())


def why_not(buckets: int, instances: int, partitions: int) -> str:
    """The reason why no owners fit the partitions, as text; "" if some do."""
    if remainders(buckets) % partitions:
        return f"{partitions} partitions do not divide {remainders(buckets)}, by which buckets are made"
    if instances < partitions:
        return f"{partitions} partitions, and only {instances} instances"
    return ""
