"""Parses JSON texts into Arrow columns, a batch at a time, with the results of Spark's `from_json`.

`pyarrow.json` parses all texts of a batch at once. It is used only where its result is known to equal Spark's. Texts
that it rejects are checked one by one (`formats.json_checks`): a text that Spark rejects too is malformed. `Doubt` is
raised if it is not known what Spark does.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import Enum, auto

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from millpond.formats.json_checks import (
    LONGEST,
    Doubt,
    TextClass,
    TextColumn,
    check_decimals,
    check_limits,
    doubtful_numbers,
    judged,
)
from millpond.formats.json_times import dates, timestamps
from millpond.formats.suspect_patterns import json_misfit, matching
from millpond.formats.text_parser import Mask, Parsed, Positions, TextParser
from millpond.model.types import (
    digits_of,
    element_of,
    has_floats,
    is_array,
    is_decimal,
    is_struct,
    parts_of,
    struct_fields,
)

_TYPES = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "string": pa.string(), "date": pa.string(), "timestamp": pa.string(),
}  # fmt: skip
"""The Arrow type as which a column of each SQL type is parsed; decimals, and structs and arrays, are parsed too."""

KINDS = frozenset(_TYPES)
"""The SQL types of columns whose values are parsed here, besides decimals, structs and arrays."""

_BLOCK_ROWS, _BLOCK_BYTES = 1 << 15, 1 << 26
_MARK = secrets.token_urlsafe(9)
_PREFIX = f'\n{{"{_MARK}":true,'.encode()
"""Replaces the first brace of every text. No producer knows the random name. If each parsed object has it, and there
are as many objects as texts, then no text has several objects, and no object spans several texts."""


class Mode(Enum):
    """What becomes of a text that does not fit its columns."""

    STRICT = auto()
    """It is malformed."""
    PERMISSIVE = auto()
    """It is a `Doubt`, because Spark keeps the values that do fit."""
    LINES = auto()
    """As `PERMISSIVE`, but each text is a line of a file, and a line that is not JSON is a row of NULLs."""


def parse_texts(
    texts: pa.BinaryArray | pa.LargeBinaryArray, columns: Sequence[TextColumn], zone: str, mode: Mode = Mode.STRICT
) -> Parsed:  # fmt: skip
    """Parse one JSON object per text; `zone` is the session's time zone, to which times without an offset refer.

    A text that is NULL or empty is malformed. `mode`: what becomes of other texts that do not fit the columns.

    Raises:
        Doubt: a result that equals Spark's is not known for some text.
    """
    lengths = np.asarray(pc.fill_null(pc.binary_length(texts), 0))
    malformed = lengths == 0
    longest = int(lengths.max(initial=0))
    if longest > LONGEST:
        raise Doubt(f"a value is longer than {LONGEST:,} bytes")
    parser = _Parser(texts, columns, zone, mode)
    rows = np.flatnonzero(~malformed & ~np.asarray(pc.fill_null(pc.equal(texts, b"{}"), False)))
    block = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, longest)))
    for start in range(0, len(rows), block):
        parser.parse(rows[start : start + block])
    return parser.result(malformed)


def final_type(kind: str, zone: str) -> pa.DataType:
    """The Arrow type of the values of a column."""
    return {"date": pa.date32(), "timestamp": pa.timestamp("us", zone)}.get(kind) or _parsed_type(kind)


def _parsed_type(kind: str, *, wide: bool = False) -> pa.DataType:
    """The type as which `pyarrow.json` parses values; `wide`: decimals of 76 digits, which hold 38 at every scale."""
    if is_decimal(kind):
        precision, scale = digits_of(kind)
        return wide_decimal(scale) if wide else pa.decimal128(precision, scale)
    if is_struct(kind):
        return pa.struct([(field.name, _parsed_type(field.type, wide=wide)) for field in struct_fields(kind)])
    return pa.list_(pa.field("element", _parsed_type(element_of(kind), wide=wide))) if is_array(kind) else _TYPES[kind]


def wide_decimal(scale: int) -> pa.DataType:
    """The type in which a decimal text of up to 38 digits can be parsed.

    Arrow multiplies the digits by a power of ten without a check, modulo 2^128 in the type of the column.
    """
    return pa.decimal256(76, scale)


def _negative_zeros(values: pa.Array) -> Mask:
    """The rows of numbers that are -0.0, or for nested values, one row if there is such a number."""
    if pa.types.is_nested(values.type):
        parts = values.flatten() if pa.types.is_struct(values.type) else [values.flatten()]
        return np.array([any(_negative_zeros(part).any() for part in parts)])
    if not pa.types.is_floating(values.type):
        return np.zeros(0, bool)
    numbers = np.asarray(values.fill_null(1.0))
    zeros: Mask = (numbers == 0) & np.signbit(numbers)
    return zeros


class _Parser(TextParser):
    """Parses texts with `pyarrow.json`."""

    def __init__(
        self, texts: pa.BinaryArray | pa.LargeBinaryArray, columns: Sequence[TextColumn], zone: str, mode: Mode
    ) -> None:
        super().__init__(texts, [final_type(column.kind, zone) for column in columns])
        self._columns, self._zone, self._mode = columns, zone, mode
        fields = [(_MARK, pa.bool_()), *((column.name, _parsed_type(column.kind, wide=True)) for column in columns)]
        self._options = pj.ParseOptions(pa.schema(fields), unexpected_field_behavior="ignore")

    def _parsed(self, rows: Positions, texts: pa.BinaryArray) -> tuple[Positions, list[pa.Array]]:
        if not pc.all(pc.starts_with(texts, b"{")).as_py():
            raise Doubt("a value does not begin with a brace")
        check_limits(texts)
        check_decimals(texts, self._columns)
        for row in doubtful_numbers(texts):
            judged(texts[row].as_py(), self._columns)  # doubts a text with such a number
        marked = pc.binary_join_element_wise(b"", pc.binary_slice(texts, 1, LONGEST), _PREFIX).buffers()[2]
        options = pj.ReadOptions(use_threads=False, block_size=marked.size + 1)
        try:
            table = pj.read_json(pa.BufferReader(marked), options, self._options)
        except pa.ArrowInvalid as error:
            raise Doubt("a value is unusual JSON, or does not have the type of its column") from error
        marks = table[_MARK]
        if table.num_rows != len(texts) or marks.null_count or not pc.all(marks).as_py():
            raise Doubt("a value is not one object")
        return rows, [self._column(column, table[column.name].combine_chunks(), texts) for column in self._columns]

    def _unusual(self, texts: pa.BinaryArray) -> Mask:
        return matching(texts, json_misfit(self._columns))

    def _column(self, column: TextColumn, values: pa.Array, texts: pa.BinaryArray) -> pa.Array:
        """The values in the type of their column; Spark takes -0 as 0.0, and `pyarrow.json` as -0.0."""
        if column.kind == "date":
            return dates(values)
        if column.kind == "timestamp":
            return timestamps(values, self._zone).cast(final_type(column.kind, self._zone))
        if is_decimal(column.kind) or parts_of(column.kind):
            try:
                values = values.cast(final_type(column.kind, self._zone))
            except pa.ArrowInvalid as error:
                raise Doubt("a decimal has more digits than its column") from error
        if has_floats(column.kind):
            zeros = np.flatnonzero(_negative_zeros(values))
            if len(zeros) and parts_of(column.kind):
                raise Doubt("a nested value may have the number -0")
            if len(zeros) and pc.any(pc.match_substring_regex(texts.take(pa.array(zeros)), r"-0\s*[,}]")).as_py():
                raise Doubt("a value has the number -0")
        return values

    def _judge(self, row: int, text: bytes, doubt: Doubt) -> None:
        kind, reason = judged(text, self._columns)
        if reason is not None and self._mode is Mode.STRICT:
            self._malformed[row] = reason
        elif kind is TextClass.EMPTY or (kind is TextClass.NOT_JSON and self._mode is Mode.LINES):
            self._add(np.array([row]), [pa.nulls(1, kind) for kind in self._types])
        else:
            raise doubt
