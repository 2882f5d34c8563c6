"""Reads files of JSON objects, one a line, into Arrow, with the values of Spark's reader in its mode `PERMISSIVE`.

`formats.json_values` parses the lines. `tests/spark/test_text_files.py` compares both readers on random files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from millpond.formats.json_checks import Doubt, TextColumn
from millpond.formats.json_values import Mode, parse_texts
from millpond.runtime.inputs.file_parts import FilePart, NotEqual
from millpond.runtime.inputs.text_blocks import blocks_of


def read_lines(part: FilePart, columns: Sequence[TextColumn], zone: str) -> Iterator[tuple[list[pa.Array], int]]:
    """The declared columns of the lines of a part, in batches, with the number of rows; `zone`: see `parse_texts`.

    Raises:
        NotEqual: the file is not known to be read as Spark reads it; batches may have been returned before.
    """
    try:
        for block in blocks_of(part):
            texts = _lines(block)
            parsed = parse_texts(texts, columns, zone, Mode.LINES)
            yield parsed.columns, len(texts)
    except Doubt as doubt:
        raise NotEqual(f"may be read differently by Spark: {doubt}") from doubt


def _lines(block: bytes) -> pa.BinaryArray:
    """The lines of a block that are not empty, which are no rows for Spark, either."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")).astype(np.int32)
    if not block.endswith(b"\n"):
        ends = np.append(ends, np.int32(len(block)))
    starts = np.concatenate([np.zeros(1, np.int32), ends[:-1] + 1])
    # An array of texts and line feeds in turns, of which every second one is taken.
    offsets = np.append(np.stack([starts, ends], axis=1).ravel(), np.int32(len(block)))
    turns = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(block)])
    return turns.take(pa.array(2 * np.flatnonzero(ends > starts)))
