"""CRC16 checksums of texts and of texts that are joined by a separator, over whole arrays.

It is the CRC of Redis's hash slots (XMODEM: polynomial 0x1021, initial value 0). Such a CRC is linear, and zero bytes
before a text do not change it. So the checksum of a joined text follows from those of its parts and their lengths, and
a part that occurs in many joined texts is read once.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays import Ints, text_bytes

Checksums: TypeAlias = npt.NDArray[np.uint16]

_POLYNOMIAL = 0x1021

_FEW = 256
"""Up to this number of texts, a loop is faster than the lookup tables."""

_LONG = 1024
"""A text of more bytes is processed alone: the lookup tables take as many steps as the longest text has words."""

_AT_ONCE = 1 << 14
"""Texts that are processed at once, so that intermediate arrays stay in the CPU cache."""

LONGEST = 256
"""The largest length in bytes of a text that can be appended to another one by its checksum."""


class Part(NamedTuple):
    """Texts with their checksums and lengths in bytes."""

    checksums: Checksums
    lengths: Ints

    def take(self, positions: npt.NDArray[np.integer]) -> Part:
        """The texts at these positions."""
        return Part(self.checksums[positions], self.lengths[positions])


def checksums_of(texts: pa.Array) -> Checksums:
    """The CRC16 of each text (a string array without NULLs), by its UTF-8 bytes.

    >>> [hex(checksum) for checksum in checksums_of(pa.array(["123456789", ""])).tolist()]
    ['0x31c3', '0x0']
    """
    if len(texts) <= _FEW:
        return np.array([crc_hqx(text, 0) for text in texts.cast(pa.large_binary()).to_pylist()], np.uint16)
    data, starts, lengths = text_bytes(texts)
    long = np.flatnonzero(lengths > _LONG)
    of_long = [crc_hqx(data.data[starts[row] : starts[row] + lengths[row]], 0) for row in long.tolist()]
    lengths[long] = 0
    padded = np.concatenate([np.zeros(8, np.uint8), data])
    words = np.lib.stride_tricks.as_strided(padded[:8].view(np.uint64), (len(padded) - 7,), (1,))
    ends = starts + lengths + 8
    parts = [slice(first, first + _AT_ONCE) for first in range(0, len(texts), _AT_ONCE)]
    found = np.concatenate([_checksums(words, ends[part], lengths[part]) for part in parts])
    found[long] = of_long
    return found


def part_of(texts: pa.Array) -> Part:
    """The checksums and lengths of texts (a string array without NULLs)."""
    return Part(checksums_of(texts), text_bytes(texts).lengths)


def joined_checksums(parts: Sequence[Part], separator: str) -> Checksums:
    """The checksums of the texts that have a text of each part, joined by a separator of one byte.

    Parts after the first must have at most `LONGEST` bytes.

    >>> parts = [part_of(pa.array(["12"])), part_of(pa.array(["456"]))]
    >>> joined_checksums(parts, "3") == checksums_of(pa.array(["123456"]))
    array([ True])
    """
    between = np.uint16(crc_hqx(separator.encode(), 0))
    found = parts[0].checksums
    for part in parts[1:]:
        found = _shifted(found, part.lengths + 1) ^ _shifted(between, part.lengths) ^ part.checksums
    return found


def _shifted(checksums: Checksums | np.uint16, by: Ints) -> Checksums:
    """The checksums of the same texts with `by` zero bytes appended."""
    high, low = _shifts()
    shifted: Checksums = high[by, checksums >> 8] ^ low[by, checksums & 0xFF]
    return shifted


def _checksums(words: npt.NDArray[np.uint64], ends: Ints, lengths: Ints) -> Checksums:
    """Checksums, eight bytes at a time; `words` are the eight bytes from each position, `ends` where the texts end."""
    tables = _words()
    found = np.zeros(len(ends), np.uint16)
    for left in range(-(-int(lengths.max()) // 8), 0, -1):
        before = np.clip(8 * left - lengths, 0, 8)  # bytes of the word that are before the text
        word = words[np.maximum(ends - 8 * left, 0)] & _WITHOUT[before]
        pairs = word.view(np.uint16).reshape(-1, 4)
        found = tables[3][pairs[:, 0] ^ found.byteswap()]
        for position in (1, 2, 3):
            found ^= tables[3 - position][pairs[:, position]]
    return found


_WITHOUT = ~np.array([(1 << (8 * n)) - 1 for n in range(8)] + [(1 << 64) - 1], np.uint64)
"""A mask for little-endian words without their first n bytes."""


@cache
def _words() -> Checksums:
    """For k = 0 … 3 and two bytes (as a little-endian integer): their checksum with 2 k zero bytes appended."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    checksums = codes.copy()
    for _ in range(16):
        checksums = (checksums << 1) ^ np.where(checksums & 0x8000, np.uint16(_POLYNOMIAL), np.uint16(0))
    tables = [checksums]
    for _ in range(3):
        tables.append(checksums[tables[-1]])
    return np.stack(tables)[:, codes.byteswap()]


@cache
def _shifts() -> tuple[Checksums, Checksums]:
    """For n = 0 … LONGEST + 1 and the high or the low byte of a checksum: the checksum with n zero bytes appended."""
    single = np.array([crc_hqx(bytes([byte]), 0) for byte in range(256)], np.uint16)
    bytes_alone = np.arange(256, dtype=np.uint16)
    tables: tuple[list[Checksums], list[Checksums]] = ([bytes_alone * np.uint16(256)], [bytes_alone])
    for table in tables:
        for _ in range(LONGEST + 1):
            table.append((table[-1] << 8) ^ single[table[-1] >> 8])
    return np.stack(tables[0]), np.stack(tables[1])
