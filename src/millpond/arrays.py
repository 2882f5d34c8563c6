"""Forms of arrays that several parts share: text columns as raw bytes, 128-bit integers as pairs of words."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

WIDE = np.dtype([("low", "<u8"), ("high", "<i8")])
"""A 128-bit integer in two's complement, in the layout of Arrow's decimal128."""

Wide: TypeAlias = npt.NDArray[np.void]
"""An array of dtype `WIDE`."""


class TextBytes(NamedTuple):
    """UTF-8 bytes of a text column: row i is `data[starts[i] : starts[i] + lengths[i]]`; 8 bytes of padding follow."""

    data: npt.NDArray[np.uint8]
    starts: Ints
    lengths: Ints


def text_bytes(texts: pa.Array) -> TextBytes:
    """The bytes of a string array; what a NULL row holds is arbitrary but within bounds."""
    if not len(texts):
        return TextBytes(np.zeros(8, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64))
    wide: Any = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    offsets = np.frombuffer(texts.buffers()[1], wide)[texts.offset : texts.offset + len(texts) + 1]
    held = texts.buffers()[2]
    first, end = int(offsets[0]), int(offsets[-1])
    data = np.zeros(end - first + 8, np.uint8)
    if held is not None:
        data[: end - first] = np.frombuffer(held, np.uint8)[first:end]
    starts = offsets[:-1].astype(np.int64) - first
    return TextBytes(data, starts, np.diff(offsets).astype(np.int64))
