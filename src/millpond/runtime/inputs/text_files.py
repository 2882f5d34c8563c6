"""Reads files of JSON lines and of CSV into Arrow, with the values of Spark's reader in its mode `PERMISSIVE`.

Files are plain or compressed, and are divided into lines as by Spark. A large plain file is divided among tasks by
bytes: a line belongs to the share in which it begins. `formats.json_values` and `formats.csv_values` parse the lines;
CSV has Spark's default quotes. `tests/spark/test_text_files.py` compares both readers on random files.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa

from millpond.formats.csv_values import parse_lines
from millpond.formats.json_checks import Doubt, TextColumn
from millpond.formats.json_values import Mode, parse_texts
from millpond.runtime.inputs.file_parts import CsvForm, FilePart, NotEqual

GZIP = ".gz"
"""The suffix of files that Spark and this module decompress; such a file is not divided."""

_OTHERS = (".bz2", ".deflate", ".lz4", ".snappy", ".zst", ".zstd", ".lzo", ".xz")
"""Suffixes of files that Spark may decompress, in lower case."""

BLOCK_BYTES = 16 << 20
"""Bytes that are read at once."""

_LONGEST_LINE = 1 << 20


def read_lines(part: FilePart, columns: Sequence[TextColumn], zone: str) -> Iterator[tuple[list[pa.Array], int]]:
    """The declared columns of the lines of a part, in batches, with the number of rows; `zone`: see `parse_texts`.

    Raises:
        NotEqual: the file is not known to be read as Spark reads it; batches may have been returned before.
    """
    try:
        for block in _blocks_of(part):
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


def read_csv(
    part: FilePart, form: CsvForm, columns: Sequence[TextColumn], zone: str
) -> Iterator[tuple[list[pa.Array], int]]:  # fmt: skip
    """The needed columns of the lines of a part, in batches, with the number of rows.

    `zone`: the session's time zone, to which times without an offset refer.

    Raises:
        NotEqual: the file is not known to be read as Spark reads it; batches may have been returned before.
    """
    if not columns:
        raise NotEqual("is read without a column")
    header = form.header and not part.share
    for block in _blocks_of(part):
        if header:
            block, header = _without_header(block), False
        if block.strip(b"\n"):
            try:
                yield parse_lines(block, form.names, columns, form.separator, zone)
            except Doubt as doubt:
                raise NotEqual(f"may be read differently by Spark: {doubt}") from doubt


def _without_header(block: bytes) -> bytes:
    """The lines after the first one that is not empty, of the first block of a file."""
    line, _, rest = block.lstrip(b"\n").partition(b"\n")
    if line[:1] <= b" ":
        raise NotEqual("has a header that begins with a blank, or none")
    return rest


def _blocks_of(part: FilePart) -> Iterator[bytes]:
    """The lines that begin in a part, several at once; each line ends with a line feed, but the last one need not.

    Spark takes a carriage return as the end of a line, too.

    Raises:
        NotEqual: Spark may divide the file differently, or it cannot be read; blocks may have been returned before.
    """
    try:
        for block in _raw_blocks(part):
            plain = block.replace(b"\r\n", b"\n") if b"\r" in block else block
            if b"\r" in plain:
                raise NotEqual("has a carriage return that does not end a line")
            yield plain
    except (OSError, EOFError, zlib.error) as error:
        raise NotEqual(f"cannot be read: {error}") from error


def _raw_blocks(part: FilePart) -> Iterator[bytes]:
    """The lines, with the line ends of the file."""
    _, suffix = os.path.splitext(part.path)
    if suffix != GZIP and suffix.lower() in (GZIP, *_OTHERS):
        raise NotEqual(f"is compressed as {suffix}")
    with open(part.path, "rb") if part.content is None else io.BytesIO(part.content) as file:
        if part.content is None and os.fstat(file.fileno()).st_size != part.size:
            raise NotEqual("has changed since it was listed")
        if suffix == GZIP:
            if not part.share:
                with closing(gzip.GzipFile(fileobj=file)) as unzipped:
                    yield from _between(cast(BinaryIO, unzipped), 0, None)
            return
        start, end = (part.size * share // part.shares for share in (part.share, part.share + 1))
        if start:
            file.seek(start - 1)  # a line that begins before the share belongs to the share before it
            start += len(_rest_of_line(file)) - 1
        yield from _between(file, start, end)


def _between(file: BinaryIO, start: int, end: int | None) -> Iterator[bytes]:
    """The lines that begin from `start`, where the file is, to before `end`, or to the end of the file."""
    while end is None or start < end:
        block = file.read(BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - start))
        if not block:
            return
        if not block.endswith(b"\n"):
            block += _rest_of_line(file)
        start += len(block)
        yield block


def _rest_of_line(file: BinaryIO) -> bytes:
    rest = file.readline(_LONGEST_LINE)
    if len(rest) == _LONGEST_LINE:
        raise NotEqual("has a long line")
    return rest
