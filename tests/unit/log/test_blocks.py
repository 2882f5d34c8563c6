"""Packed content is read back, completely or in part, and only the needed blocks are unpacked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.log.blocks import BLOCK_BYTES, Packed, pack


def of(size: int) -> bytes:
    return b"".join(b"%07d " % at for at in range(size // 8 + 1))[:size]


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 5])
@given(data=st.data())
def test_any_part_is_read_as_it_was(size: int, data: st.DataObject) -> None:
    whole = of(size)
    packed = Packed(memoryview(pack(whole)), size)
    assert bytes(packed.read(0, size)) == whole
    offset, count = data.draw(st.integers(0, size)), data.draw(st.integers(0, size + 3))
    assert bytes(packed.read(offset, count)) == whole[offset : offset + count]


def test_only_requested_parts_are_unpacked() -> None:
    whole = of(3 * BLOCK_BYTES)
    stored = bytearray(pack(whole))
    stored[-20:] = bytes(20)
    packed = Packed(memoryview(stored), len(whole))
    assert bytes(packed.read(BLOCK_BYTES, 8)) == whole[BLOCK_BYTES:][:8]
    with pytest.raises(ValueError):
        packed.read(3 * BLOCK_BYTES - 1, 1)


@pytest.mark.parametrize("size", [0, 5, 2 * BLOCK_BYTES])
def test_another_size_is_reported(size: int) -> None:
    with pytest.raises(ValueError):
        Packed(memoryview(pack(of(BLOCK_BYTES + 1)) + b"more"), size)
