"""Maps keys to Redis hash slots, slots to buckets, and buckets to instances, with arithmetic over arrays."""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays import text_bytes

SLOTS = 16384
"""The number of hash slots of a Redis cluster."""

Codes: TypeAlias = npt.NDArray[np.int64]


_BLOCK = 8
"""The number of bytes that are processed together."""


@cache
def _tables() -> tuple[npt.NDArray[np.uint16], ...]:
    """Lookup tables of CRC16/XMODEM, the polynomial of Redis (Redis cluster specification, appendix A).

    Each table is for one pair of bytes of a block, the first one as the low byte, followed by as many zero bytes as the
    block has after the pair. The XOR of all pairs is the CRC of the block, because a CRC with the initial value 0 is
    linear (Kounavis, Berry: Novel Table Lookup-Based Algorithms for High-Performance CRC Generation).
    """
    crc = np.arange(256, dtype=np.uint16) << np.uint16(8)
    for _ in range(8):
        crc = (crc << np.uint16(1)) ^ np.where(crc & np.uint16(0x8000), np.uint16(0x1021), np.uint16(0))
    followed = [crc]
    while len(followed) < _BLOCK:
        followed.append((followed[-1] << np.uint16(8)) ^ crc[followed[-1] >> np.uint16(8)])
    pairs = ((followed[after], followed[after - 1]) for after in range(_BLOCK - 1, 0, -2))
    return tuple((low ^ high[:, None]).reshape(-1).astype(np.uint16) for low, high in pairs)


def slots_of(texts: pa.Array) -> Codes:
    """The Redis hash slot of each text (a string array without NULLs), by its UTF-8 bytes.

    >>> slots_of(pa.array(["123456789", ""])).tolist()
    [12739, 0]
    """
    found = text_bytes(texts)
    words, starts, lengths = found.words, found.starts, found.lengths
    # the first block is the partial one, because zeros before a text do not change its CRC
    first = (lengths - 1) % _BLOCK + 1
    block = words[starts] << (8 * (_BLOCK - first)).astype(np.uint64)
    block[lengths == 0] = 0
    crc = _crc_of(block)
    at, ends = starts + first, starts + lengths
    rows = np.flatnonzero(at < ends)
    while len(rows):
        crc[rows] = _crc_of(words[at[rows]] ^ crc[rows].byteswap())
        at[rows] += _BLOCK
        rows = rows[at[rows] < ends[rows]]
    return crc.astype(np.int64) % SLOTS


def _crc_of(blocks: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint16]:
    pairs = blocks.view(np.uint16).reshape(-1, _BLOCK // 2)
    crc = np.zeros(len(blocks), np.uint16)
    for place, table in enumerate(_tables()):
        crc ^= table[pairs[:, place]]
    return crc


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
