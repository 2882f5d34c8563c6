"""Reads CSV files into Arrow, with the values of Spark's reader in its mode `PERMISSIVE` and with its default quotes.

`pyarrow.csv` divides lines into fields, which are converted here. A field is in quotes completely, or has no quote;
a value is written as nearly every program writes it. `NotEqual` is raised for everything else.
`tests/spark/test_text_files.py` compares both readers on random files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from millpond.formats.json_checks import Column, Doubt
from millpond.formats.json_times import dates, timestamps
from millpond.formats.json_values import final_type
from millpond.model.types import is_decimal, is_float
from millpond.runtime.inputs.file_parts import CsvForm, FilePart, NotEqual
from millpond.runtime.inputs.text_blocks import blocks_of

Bytes = npt.NDArray[np.uint8]

_LINE_FEED, _BLANK, _QUOTE = (np.uint8(ord(char)) for char in '\n "')
_UNUSUAL = (b"\\", b"\0", b"\xef\xbb\xbf")
"""Bytes that the parser of Spark may take in a special way: escapes, zero bytes and marks of the encoding."""


def read_csv(
    part: FilePart, form: CsvForm, columns: Sequence[Column], zone: str
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
                table = _fields(block, form, columns)
                yield [_converted(column, table[column.name], zone) for column in columns], table.num_rows
            except (Doubt, pa.ArrowInvalid) as error:
                raise NotEqual(f"may be read differently by Spark: {str(error).splitlines()[0][:200]}") from error


def _without_header(block: bytes) -> bytes:
    """The lines after the first one that is not empty, of the first block of a file."""
    line, _, rest = block.lstrip(b"\n").partition(b"\n")
    if line[:1] <= b" ":
        raise NotEqual("has a header that begins with a blank, or none")
    return rest


def _fields(block: bytes, form: CsvForm, columns: Sequence[Column]) -> pa.Table:
    """The needed fields of all lines as strings; a field without characters is NULL."""
    if any(one in block for one in _UNUSUAL):
        raise Doubt("it has a backslash, a zero byte or a byte order mark")
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == _LINE_FEED)
    firsts = data[np.concatenate([np.zeros(1, np.int64), ends + 1])[: len(ends) + (data[-1] != _LINE_FEED)]]
    if ((firsts <= _BLANK) & (firsts != _LINE_FEED)).any():
        raise Doubt("a line begins with a blank")
    _check_quotes(data, ends, ord(form.separator))
    numbers = [f"c{place}" for place in range(len(form.names))]
    names = dict(zip(form.names, numbers, strict=True))
    needed = [names[column.name] for column in columns]
    table = pv.read_csv(
        pa.BufferReader(block),
        pv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=numbers),
        pv.ParseOptions(delimiter=form.separator, double_quote=False),
        pv.ConvertOptions(
            column_types=dict.fromkeys(needed, pa.string()), include_columns=needed, null_values=[""],
            strings_can_be_null=True,
        ),
    )  # fmt: skip
    return table.rename_columns([column.name for column in columns])


def _check_quotes(data: Bytes, ends: npt.NDArray[np.int64], separator: int) -> None:
    """Check that each quote begins or ends a field, in the same line.

    Raises:
        Doubt: one does not.
    """
    quotes = np.flatnonzero(data == _QUOTE)
    if not len(quotes):
        return
    around = np.concatenate([[_LINE_FEED], data, [_LINE_FEED]])
    opening, closing = quotes[::2], quotes[1::2]
    if len(opening) == len(closing):
        before, after = around[opening], around[closing + 2]
        bounded = ((before == separator) | (before == _LINE_FEED)) & ((after == separator) | (after == _LINE_FEED))
        if bounded.all() and (np.searchsorted(ends, opening) == np.searchsorted(ends, closing)).all():
            return
    raise Doubt("it has quotes within a field")


_INTEGER, _DECIMAL, _FLOAT = b"-0123456789", b"-.0123456789", b"+-.0123456789Ee"


def _converted(column: Column, texts: pa.ChunkedArray, zone: str) -> pa.Array:
    """The values of a column; errors of Arrow are values that do not fit it."""
    array = texts.combine_chunks()
    if column.kind == "string":
        return array
    if column.kind == "date":
        return dates(array)
    if column.kind == "timestamp":
        return timestamps(array, zone).cast(final_type(column.kind, zone))
    if column.kind == "boolean":
        lower = pc.utf8_lower(array)
        if not pc.all(pc.is_in(lower, pa.array(["true", "false", None]))).as_py():
            raise Doubt(f"a value of {column.name} is not true or false")
        return pc.equal(lower, "true")
    known = _DECIMAL if is_decimal(column.kind) else _FLOAT if is_float(column.kind) else _INTEGER
    if not np.isin(_bytes_of(array), np.frombuffer(known, np.uint8)).all():
        raise Doubt(f"a value of {column.name} is not a plain number")
    made = array.cast(final_type(column.kind, zone))
    made.validate(full=True)
    return made


def _bytes_of(texts: pa.StringArray) -> Bytes:
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
