"""Compresses bytes in independent blocks, so that a part can be read without the rest.

    packed     = sizes *block
    sizes      = *u32, little-endian            stored size of each block in bytes
    block      = zstd frame                     of the next 65 536 bytes; the last block is of the remaining bytes

Empty input gives an empty result. The number of blocks follows from the unpacked size, which the record
stores in its own `sizes`.
"""

from __future__ import annotations

import struct
from itertools import accumulate

import pyarrow as pa

BLOCK_BYTES = 1 << 16
_SIZE_BYTES = 4
# The next level takes three times as long, and saves only a twentieth of the size.
_CODEC = pa.Codec("zstd", compression_level=3)


def pack(data: bytes) -> bytes:
    """Compresses bytes; equal input gives equal output."""
    blocks = [_CODEC.compress(data[at : at + BLOCK_BYTES], asbytes=True) for at in range(0, len(data), BLOCK_BYTES)]
    return b"".join((struct.pack(f"<{len(blocks)}I", *map(len, blocks)), *blocks))


class Packed:
    """Reads `size` bytes that `pack` has compressed; each block is unpacked once, when a part of it is first read.

    Raises:
        ValueError: the stored bytes do not fit `size`.
    """

    def __init__(self, stored: memoryview, size: int) -> None:
        count = -(-size // BLOCK_BYTES)
        self.size = size
        self._stored, self._blocks = stored, dict[int, memoryview]()
        table = stored[: count * _SIZE_BYTES]
        sizes = struct.unpack(f"<{count}I", table) if len(table) == count * _SIZE_BYTES else ()
        self._starts = [*accumulate(sizes, initial=count * _SIZE_BYTES)]
        if len(sizes) != count or self._starts[-1] != len(stored):
            raise ValueError(f"{len(stored)} bytes are not {size} that were packed")

    def read(self, offset: int, size: int) -> memoryview:
        """Returns `size` bytes at `offset`, or fewer at the end.

        Raises:
            ValueError: a block cannot be unpacked.
        """
        end = min(offset + size, self.size)
        if end <= offset:
            return memoryview(b"")
        first, last = offset // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        blocks = [self._block(number) for number in range(first, last + 1)]
        whole = blocks[0] if len(blocks) == 1 else memoryview(b"".join(blocks))
        return whole[offset - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def _block(self, number: int) -> memoryview:
        block = self._blocks.get(number)
        if block is None:
            size = min(BLOCK_BYTES, self.size - number * BLOCK_BYTES)
            stored = self._stored[self._starts[number] : self._starts[number + 1]]
            try:
                block = memoryview(_CODEC.decompress(stored, size, asbytes=True))
            except OSError as error:
                raise ValueError(str(error)) from error
            self._blocks[number] = block
        return block
