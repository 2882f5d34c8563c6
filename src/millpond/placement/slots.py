"""Maps keys to Redis hash slots, slots to buckets, and buckets to instances."""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.placement.checksums import Checksums, checksums_of

SLOTS = 16384
"""The number of hash slots of a Redis cluster."""

Codes: TypeAlias = npt.NDArray[np.int64]


def slots_of(texts: pa.Array) -> Codes:
    """The Redis hash slot of each text (a string array without NULLs), by its UTF-8 bytes.

    >>> slots_of(pa.array(["123456789", ""])).tolist()
    [12739, 0]
    """
    return slots_of_checksums(checksums_of(texts))


def slots_of_checksums(checksums: Checksums) -> Codes:
    """The Redis hash slot of each text with such a checksum."""
    return checksums.astype(np.int64) % SLOTS


def buckets_of(slots: Codes, buckets: int) -> Codes:
    """The bucket (a contiguous range of slots) of each slot."""
    return slots * buckets // SLOTS


def even_owners(buckets: int, instances: int) -> tuple[int, ...]:
    """The instance of each bucket if every instance owns a contiguous range of equal size.

    >>> even_owners(8, 3)
    (0, 0, 0, 1, 1, 1, 2, 2)
    """
    return tuple(bucket * instances // buckets for bucket in range(buckets))


def hash_tags(buckets: int) -> tuple[str, ...]:
    """The hash tag of each bucket's keys on a server; its hash slot is the first slot of the bucket's range.

    A tag is the smallest number whose decimal digits have that slot. So a bucket is stored where the slots of its keys
    are.

    >>> hash_tags(4), slots_of(pa.array(hash_tags(4))).tolist()
    (('3560', '4129', '8209', '356'), [0, 4096, 8192, 12288])
    """
    first = [min(-(-bucket * SLOTS // buckets), SLOTS - 1) for bucket in range(buckets)]
    return tuple(map(str, _smallest_numbers()[first].tolist()))


@cache
def _smallest_numbers() -> Codes:
    # 109757 is the largest number that is needed
    slots = slots_of(pa.array(range(1 << 17)).cast(pa.string()))
    found: Codes = np.unique(slots, return_index=True)[1]
    return found
