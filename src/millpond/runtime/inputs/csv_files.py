"""Reads CSV files into Arrow, with the values of Spark's reader in its mode `PERMISSIVE` and with its default quotes.

`formats.csv_values` parses the lines. `tests/spark/test_text_files.py` compares both readers on random files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from millpond.formats.csv_values import parse_lines
from millpond.formats.json_checks import Doubt, TextColumn
from millpond.runtime.inputs.file_parts import CsvForm, FilePart, NotEqual
from millpond.runtime.inputs.text_blocks import blocks_of


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
    for block in blocks_of(part):
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
