"""Keys to Redis hash slots, slots to buckets, buckets to instances: plain arithmetic over arrays."""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays import text_bytes

SLOTS = 16384
"""Hash slots of a Redis cluster."""

Codes: TypeAlias = npt.NDArray[np.int64]


def _table() -> npt.NDArray[np.uint16]:
    """The table of CRC16/XMODEM, the polynomial Redis uses (Redis cluster specification, appendix A)."""
    rows = []
    for byte in range(256):
        crc = byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ (0x1021 if crc & 0x8000 else 0)
        rows.append(crc & 0xFFFF)
    return np.array(rows, np.uint16)


_CRC = _table()


def slots_of(texts: pa.Array) -> Codes:
    """The Redis hash slot of each text (a string array without NULLs), by its UTF-8 bytes.

    >>> slots_of(pa.array(["123456789", ""])).tolist()
    [12739, 0]
    """
    data, starts, lengths = text_bytes(texts)
    crc = np.zeros(len(starts), np.uint16)
    rows = np.arange(len(starts))
    for position in range(int(lengths.max()) if len(lengths) else 0):
        rows = rows[lengths[rows] > position]
        byte = data[starts[rows] + position]
        crc[rows] = (crc[rows] << 8) ^ _CRC[(crc[rows] >> 8) ^ byte]
    return crc.astype(np.int64) % SLOTS


def buckets_of(slots: Codes, buckets: int) -> Codes:
    """The bucket, a contiguous range of slots, that owns each slot."""
    return slots * buckets // SLOTS


def even_owners(buckets: int, instances: int) -> tuple[int, ...]:
    """The instance of each bucket when every instance takes a contiguous, equal range.

    >>> even_owners(8, 3)
    (0, 0, 0, 1, 1, 1, 2, 2)
    """
    return tuple(bucket * instances // buckets for bucket in range(buckets))


def hash_tags(buckets: int) -> tuple[str, ...]:
    """For each bucket the hash tag of its keys on a server: it lies in the first hash slot of the bucket's range.

    A tag is the smallest number whose decimal digits have that slot, so a bucket is where the slots of its keys are.

    >>> hash_tags(4), slots_of(pa.array(hash_tags(4))).tolist()
    (('3560', '4129', '8209', '356'), [0, 4096, 8192, 12288])
    """
    first = [min(-(-bucket * SLOTS // buckets), SLOTS - 1) for bucket in range(buckets)]
    return tuple(map(str, _smallest_numbers()[first].tolist()))


@cache
def _smallest_numbers() -> Codes:
    # 109757 is the last that is needed
    slots = slots_of(pa.array(range(1 << 17)).cast(pa.string()))
    found: Codes = np.unique(slots, return_index=True)[1]
    return found
