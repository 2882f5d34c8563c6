"""Reads text files in blocks of complete lines, plain or compressed, as Spark divides them into lines.

A large plain file is divided among tasks by bytes: a line belongs to the share in which it begins.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import BinaryIO, cast

from millpond.runtime.inputs.file_parts import FilePart, NotEqual

GZIP = ".gz"
"""The suffix of files that Spark and this module decompress; such a file is not divided."""

_OTHERS = (".bz2", ".deflate", ".lz4", ".snappy", ".zst", ".zstd", ".lzo", ".xz")
"""Suffixes of files that Spark may decompress, in lower case."""

BLOCK_BYTES = 16 << 20
"""Bytes that are read at once."""

_LONGEST_LINE = 1 << 20


def blocks_of(part: FilePart) -> Iterator[bytes]:
    """The lines that begin in a part, several at once; each line ends with a line feed, but the last one need not.

    Spark takes a carriage return as the end of a line, too.

    Raises:
        NotEqual: Spark may divide the file differently, or it cannot be read; blocks may have been returned before.
    """
    try:
        for block in _blocks(part):
            plain = block.replace(b"\r\n", b"\n") if b"\r" in block else block
            if b"\r" in plain:
                raise NotEqual("has a carriage return that does not end a line")
            yield plain
    except (OSError, EOFError, zlib.error) as error:
        raise NotEqual(f"cannot be read: {error}") from error


def _blocks(part: FilePart) -> Iterator[bytes]:
    """The lines as they are in the file."""
    _, suffix = os.path.splitext(part.path)
    if suffix != GZIP and suffix.lower() in (GZIP, *_OTHERS):
        raise NotEqual(f"is compressed as {suffix}")
    with open(part.path, "rb") as file:
        if os.fstat(file.fileno()).st_size != part.size:
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
