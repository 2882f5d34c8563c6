"""Parses lines of CSV into Arrow columns, with the values of Spark in its mode `PERMISSIVE` and with default quotes.

`pyarrow.csv` divides lines into fields, which are converted here. A field is in quotes completely, or has no quote;
a value is written as nearly every program writes it. `Doubt` is raised for everything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from millpond.formats.json_checks import NUMBER_WORDS, RANGES, Doubt, TextColumn, bytes_of, check_utf8
from millpond.formats.json_times import dates, timestamps
from millpond.formats.json_values import final_type, wide_decimal
from millpond.formats.malformed_reasons import field_count_reason, misfit_reason
from millpond.formats.suspect_patterns import csv_line, matching
from millpond.formats.text_parser import Mask, Parsed, Positions, TextParser
from millpond.model.types import digits_of, is_decimal, is_float

Bytes = npt.NDArray[np.uint8]

_LINE_FEED, _RETURN, _BLANK, _QUOTE = (np.uint8(ord(char)) for char in '\n\r "')
_UNUSUAL = (b"\\", b"\0", b"\xef\xbb\xbf")
"""Bytes that the parser of Spark may take in a special way: escapes, zero bytes and marks of the encoding."""

_MOST_BYTES = 1 << 30


def parse_lines(
    block: bytes, names: Sequence[str], columns: Sequence[TextColumn], separator: str, zone: str,
    skip: Callable[[pv.InvalidRow], str] | None = None,
) -> tuple[list[pa.Array], int]:  # fmt: skip
    """The needed columns of the lines of a block, and the number of rows; empty lines are no rows.

    `names`: of all fields of a line. `zone`: the session's time zone, to which times without an offset refer. `skip`:
    called for a line with another number of fields, see `pyarrow.csv.ParseOptions`.

    Raises:
        Doubt: the lines are not known to be read as Spark reads them.
    """
    try:
        table = _fields(block, names, columns, separator, skip)
        return [_converted(column, table[column.name], zone) for column in columns], table.num_rows
    except pa.ArrowInvalid as error:
        raise Doubt(str(error).splitlines()[0][:200]) from error


def parse_csv(
    texts: pa.BinaryArray | pa.LargeBinaryArray, columns: Sequence[TextColumn], zone: str, separator: str, *,
    strict: bool,
) -> Parsed:  # fmt: skip
    """Parse one line of CSV per text, which has a field for each column.

    A text that is NULL is malformed; if texts are parsed `strict`, so is one with another number of fields, or with a
    value that does not fit its column. The values of an empty text are NULL.

    Raises:
        Doubt: a result that equals Spark's `from_csv` is not known for some text.
    """
    if texts.nbytes > _MOST_BYTES:
        raise Doubt("the values of a batch have more than a gigabyte")
    parser = _Parser(texts, columns, zone, separator, strict=strict)
    rows = np.flatnonzero(np.asarray(pc.fill_null(pc.binary_length(texts), 0)))
    if len(rows):
        parser.parse(rows)
    return parser.result(np.array(texts.is_null()))


class _Parser(TextParser):
    """Parses texts as the lines of one block."""

    def __init__(
        self, texts: pa.BinaryArray | pa.LargeBinaryArray, columns: Sequence[TextColumn], zone: str, separator: str, *,
        strict: bool,
    ) -> None:  # fmt: skip
        super().__init__(texts, [final_type(column.kind, zone) for column in columns])
        self._columns, self._names, self._zone = columns, [column.name for column in columns], zone
        self._separator, self._strict = separator, strict

    def _parsed(self, rows: Positions, texts: pa.BinaryArray) -> tuple[Positions, list[pa.Array]]:
        check_utf8(texts)
        block = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), b"\n")[0].as_py()
        data, skipped = np.frombuffer(block, np.uint8), list[int]()
        if np.count_nonzero(data == _LINE_FEED) != len(rows) - 1 or (data == _RETURN).any():
            raise Doubt("a value has several lines")

        def skip(row: pv.InvalidRow) -> str:
            skipped.append(row.number - 1)
            return "skip" if self._strict else "error"

        found, count = parse_lines(block, self._names, self._columns, self._separator, self._zone, skip)
        if count + len(skipped) != len(rows):
            raise Doubt("a value is not one line")
        self._malformed |= dict.fromkeys(rows[skipped].tolist(), field_count_reason(len(self._names)))
        return np.delete(rows, skipped), found

    def _unusual(self, texts: pa.BinaryArray) -> Mask:
        return ~matching(texts, csv_line(self._columns, self._separator))

    def _judge(self, row: int, text: bytes, doubt: Doubt) -> None:
        """Of a strict stream, a text is malformed if a field has no form of its type that Spark takes."""
        if not self._strict or b"\n" in text or b"\r" in text:
            raise doubt
        try:
            fields = _fields(text, self._names, self._columns, self._separator, None)
        except pa.ArrowInvalid:
            raise doubt from None
        for column, value in zip(self._columns, fields.columns, strict=True):
            if is_misfit(value[0].as_py() or "", column.kind):
                self._malformed[row] = misfit_reason(column.name, column.kind)
                return
        raise doubt


_NO_INTEGER = re.compile(r"(?![+-]?[0-9]+$).+", re.DOTALL)
_NO_DECIMAL = re.compile(r"[^0-9]+|.*[^-+0-9.,eE].*", re.DOTALL)
_NO_FLOAT = re.compile(r"[^0-9]+|.*[^-+0-9.xXpPa-fA-F\0-\x20].*", re.DOTALL)
_NO_TIME = re.compile(r"[^0-9]+", re.DOTALL)

_TRIMMED = bytes(range(33)).decode()
"""Characters that Java removes from both ends of a number."""


def is_misfit(text: str, kind: str) -> bool:
    """Whether it is known that Spark takes a field for no value of its type; an empty field is NULL.

    >>> is_misfit("a", "int"), is_misfit("99999999999", "int"), is_misfit("+1", "int"), is_misfit("", "int")
    (True, True, False, False)
    """
    if kind == "string" or not text or not text.isascii():
        return False
    if kind == "boolean":
        return text.lower() not in ("true", "false")
    if kind in RANGES:
        top = 1 << (RANGES[kind] - 1)
        return bool(_NO_INTEGER.fullmatch(text)) or (len(text) < 40 and not -top <= int(text) < top)
    if is_float(kind):
        return bool(_NO_FLOAT.fullmatch(text)) and text.strip(_TRIMMED).lower().lstrip("+-") not in NUMBER_WORDS
    return bool((_NO_DECIMAL if is_decimal(kind) else _NO_TIME).fullmatch(text))


def _fields(
    block: bytes, names: Sequence[str], columns: Sequence[TextColumn], separator: str,
    skip: Callable[[pv.InvalidRow], str] | None,
) -> pa.Table:  # fmt: skip
    """The needed fields of all lines as strings; a field without characters is NULL."""
    if any(one in block for one in _UNUSUAL):
        raise Doubt("it has a backslash, a zero byte or a byte order mark")
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == _LINE_FEED)
    firsts = data[np.concatenate([np.zeros(1, np.int64), ends + 1])[: len(ends) + (data[-1] != _LINE_FEED)]]
    if ((firsts <= _BLANK) & (firsts != _LINE_FEED)).any():
        raise Doubt("a line begins with a blank")
    _check_quotes(data, ends, ord(separator))
    numbers = [f"c{place}" for place in range(len(names))]
    number_of = dict(zip(names, numbers, strict=True))
    needed = [number_of[column.name] for column in columns]
    table = pv.read_csv(
        pa.BufferReader(block),
        pv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=numbers),
        pv.ParseOptions(delimiter=separator, double_quote=False, invalid_row_handler=skip),
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


def _converted(column: TextColumn, texts: pa.ChunkedArray, zone: str) -> pa.Array:
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
    if not np.isin(bytes_of(array)[1], np.frombuffer(known, np.uint8)).all():
        raise Doubt(f"a value of {column.name} is not a plain number")
    if not is_decimal(column.kind):
        return array.cast(final_type(column.kind, zone))
    if (pc.max(pc.binary_length(array)).as_py() or 0) > 38:
        raise Doubt(f"a value of {column.name} may have more than 38 digits")
    return array.cast(wide_decimal(digits_of(column.kind)[1])).cast(final_type(column.kind, zone))
