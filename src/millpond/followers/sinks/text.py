"""Formats Arrow columns as JSON objects and CSV lines, as Spark writes them, without a loop over rows.

    timestamp   2013-01-01T10:00:00.000Z       three digits as Spark writes; six where three would lose some
    date        2013-01-01
    interval    INTERVAL '0 00:10:01.5' DAY TO SECOND
    double      1.5, 3.0, 1.5e+10              the shortest text that reads back as the same double
    NaN, ±∞     "NaN", "Infinity", "-Infinity" quoted in JSON
    NULL        left out of a JSON object (or `null`, on request); an empty field in CSV

Spark truncates microseconds, and writes `1.5E10`; the values read back are otherwise the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import UnsupportedQuery

_SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_SHORT_ESCAPES = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}


def json_objects(table: pa.Table, *, omit_nulls: bool) -> pa.Array:
    """One JSON object per row, as large_utf8; UnsupportedQuery names a column whose type has no text."""
    return _object(table.column_names, [_flat(column) for column in table.columns], omit_nulls, len(table))


def csv_lines(table: pa.Table, separator: str = ",") -> pa.Array:
    """One CSV line per row without its line end, as large_utf8.

    Fields are quoted with `"` if they contain a separator, a quote or a line end, or begin with `#`. Within quotes,
    quotes and backslashes are escaped by a backslash, as Spark's reader expects. An empty text is `""`, and NULL is an
    empty field.
    """
    if not len(table):
        return pa.array([], pa.large_utf8())
    fields = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        text = plain_text(name, _flat(column))
        if _is_text(column.type):
            text = _csv_quoted(text, separator)
        fields.append(pc.fill_null(text, ""))
    return _joined(fields, separator)


def csv_header(names: Sequence[str], separator: str = ",") -> str:
    """The header line with the names of the columns, without its line end.

    >>> csv_header(["customer", "sum(a, b)"])
    'customer,"sum(a, b)"'
    """
    return separator.join(_csv_quoted(pa.array(names, pa.large_utf8()), separator).to_pylist())


def as_lines(texts: pa.Array) -> memoryview:
    """The bytes of a large_utf8 array with a line feed after each value; no copy per row."""
    if not len(texts):
        return memoryview(b"")
    ended = pc.binary_join_element_wise(texts, _large("\n"), _large(""))
    offsets = memoryview(ended.buffers()[1]).cast("q")
    first, last = offsets[ended.offset], offsets[ended.offset + len(ended)]
    return memoryview(ended.buffers()[2])[first:last]


def check_has_text(name: str, kind: pa.DataType, *, nested: bool) -> None:
    """Raise UnsupportedQuery unless a column of this type can be written; `nested`: structs and lists may be."""
    if pa.types.is_struct(kind) and nested:
        for field in kind:
            check_has_text(f"{name}.{field.name}", field.type, nested=True)
    elif pa.types.is_list(kind) and nested:
        check_has_text(name, kind.value_type, nested=True)
    elif not (_is_text(kind) or _is_number(kind) or pa.types.is_temporal(kind) or pa.types.is_boolean(kind)):
        raise UnsupportedQuery(
            f"The column {name} of type {kind} has no text in this format.",
            "Select its parts instead (for a window: window.start, window.end), or write Parquet.",
        )


def _object(names: Sequence[str], columns: Sequence[pa.Array], omit_nulls: bool, rows: int) -> pa.Array:
    if not names:
        return pa.array(["{}"] * rows, pa.large_utf8())
    if not omit_nulls:
        pieces: list[pa.Array | pa.Scalar] = []
        for name, column in zip(names, columns, strict=True):
            before = "," if pieces else "{"
            value = pc.fill_null(_json_value(name, column, omit_nulls), _large("null"))
            pieces += [_large(f"{before}{json.dumps(name, ensure_ascii=False)}:"), value]
        return pc.binary_join_element_wise(*pieces, _large("}"), _large(""))
    members = []
    for name, column in zip(names, columns, strict=True):
        start = _large("," + json.dumps(name, ensure_ascii=False) + ":")
        value = _json_value(name, column, omit_nulls)
        members.append(pc.fill_null(pc.binary_join_element_wise(start, value, _large("")), _large("")))
    # The first comma is removed again, as joining with null_handling="skip" would lose rows that are all NULL.
    inside = pc.utf8_slice_codeunits(_joined(members, ""), 1)
    return pc.binary_join_element_wise(_large("{"), inside, _large("}"), _large(""))


def _json_value(name: str, column: pa.Array, omit_nulls: bool) -> pa.Array:
    kind = column.type
    if pa.types.is_struct(kind):
        check_has_text(name, kind, nested=True)
        parts = column.flatten()
        inside = _object([field.name for field in kind], parts, omit_nulls, len(column))
        return pc.if_else(column.is_valid(), inside, _nothing())
    if pa.types.is_list(kind):
        check_has_text(name, kind, nested=True)
        items = pc.fill_null(_json_value(name, column.flatten(), omit_nulls), _large("null"))
        ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(column), 0))
        # `binary_join` does not support lists of large text
        listed = pa.ListArray.from_arrays(pa.concat_arrays([pa.array([0], pa.int32()), ends]), items.cast(pa.string()))
        inside = pc.binary_join(listed, ",").cast(pa.large_utf8())
        text = pc.binary_join_element_wise(_large("["), inside, _large("]"), _large(""))
        return pc.if_else(column.is_valid(), text, _nothing())
    text = plain_text(name, column)
    if _is_text(kind):
        return _quoted(_escaped(text))
    if pa.types.is_temporal(kind):
        return _quoted(text)
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(column), text, _quoted(text))
    return text


def plain_text(name: str, column: pa.Array) -> pa.Array:
    """The column's values as text without quotes."""
    kind = column.type
    check_has_text(name, kind, nested=False)
    if pa.types.is_timestamp(kind):
        return _timestamps(column)
    if pa.types.is_duration(kind):
        return interval_texts(column)
    if pa.types.is_floating(kind):
        return _floats(column)
    return pc.cast(column, pa.large_utf8())


def _timestamps(column: pa.Array) -> pa.Array:
    distinct = column.dictionary_encode()  # rows that leave together mostly have equal windows
    if len(distinct.dictionary) < len(column) // 4:
        return _timestamps(distinct.dictionary).take(distinct.indices)
    zone = column.type.tz
    micros = pc.cast(pc.cast(column, pa.timestamp("us", zone)), pa.timestamp("us"))
    counts = pc.cast(micros, pa.int64())
    # Before 1970 it truncates towards zero; then it is not exact, and the other text is used.
    millis = pc.divide(counts, 1000)
    exact = pc.equal(pc.multiply(millis, 1000), counts)
    text = pc.cast(pc.cast(millis, pa.timestamp("ms")), pa.large_utf8())
    if not pc.all(exact, min_count=0).as_py():
        text = pc.if_else(exact, text, pc.cast(micros, pa.large_utf8()))
    text = pc.replace_substring(text, " ", "T")
    return text if zone is None else pc.binary_join_element_wise(text, _large("Z"), _large(""))


def interval_texts(column: pa.Array) -> pa.Array:
    """Durations as Spark writes intervals of the type `INTERVAL DAY TO SECOND`."""
    micros = np.asarray(pc.fill_null(pc.cast(column, pa.duration("us")).view(pa.int64()), 0))
    size = np.abs(micros).view(np.uint64)  # also of the least integer, whose absolute value no int64 holds
    parts = []
    for unit, width in ((86_400_000_000, 1), (3_600_000_000, 2), (60_000_000, 2), (1_000_000, 2), (1, 6)):
        whole, size = np.divmod(size, np.uint64(unit))
        parts.append(pc.utf8_lpad(pc.cast(pa.array(whole), pa.large_utf8()), width, "0"))
    days, hours, minutes, seconds, fraction = parts
    exact = pc.utf8_rtrim(pc.binary_join_element_wise(seconds, fraction, _large(".")), "0")
    seconds = pc.if_else(pc.equal(fraction, _large("000000")), seconds, exact)
    sign = pc.if_else(pa.array(micros < 0), _large("INTERVAL '-"), _large("INTERVAL '"))
    clock = pc.binary_join_element_wise(hours, minutes, seconds, _large(":"))
    text = pc.binary_join_element_wise(sign, days, _large(" "), clock, _large("' DAY TO SECOND"), _large(""))
    return pc.if_else(column.is_valid(), text, _nothing())


def _floats(column: pa.Array) -> pa.Array:
    text = pc.cast(column, pa.large_utf8())
    # Arrow writes 3.0 as "3", which a reader that infers types would read as an integer.
    whole = pc.match_substring_regex(text, r"^-?\d+$")
    text = pc.if_else(whole, pc.binary_join_element_wise(text, _large(".0"), _large("")), text)
    if pc.all(pc.is_finite(column), min_count=0).as_py():
        return text
    for arrow, spark in _SPECIAL.items():
        text = pc.if_else(pc.equal(text, _large(arrow)), _large(spark), text)
    return text


def _escaped(text: pa.Array) -> pa.Array:
    signs = _bytes(text)
    has_control = bool((signs < 32).any())
    if not (has_control or (signs == ord('"')).any() or (signs == ord("\\")).any()):
        return text
    text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    if not has_control:
        return text
    for code in range(32):
        text = pc.replace_substring(text, chr(code), _SHORT_ESCAPES.get(code, f"\\u{code:04x}"))
    return text


def _bytes(text: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of all values of a large_utf8 array, and possibly some under NULLs."""
    _, offsets, data = text.buffers()
    if not len(text) or data is None:
        return np.empty(0, np.uint8)
    first, last = np.frombuffer(offsets, np.int64, len(text) + 1, 8 * text.offset)[[0, -1]]
    return np.frombuffer(data, np.uint8)[first:last]


def _csv_quoted(text: pa.Array, separator: str) -> pa.Array:
    special = "".join(f"\\x{{{ord(sign):x}}}" for sign in separator)
    needs = pc.match_substring_regex(text, f'[{special}"\\r\\n]|^#|^$')
    if not pc.any(needs, min_count=0).as_py():
        return text
    inside = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    return pc.if_else(needs, _quoted(inside), text)


def _quoted(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(_large('"'), text, _large('"'), _large(""))


def _joined(columns: Sequence[pa.Array], separator: str) -> pa.Array:
    return pc.binary_join_element_wise(*columns, _large(separator))


def _flat(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _large(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_utf8())


def _nothing() -> pa.Scalar:
    return pa.scalar(None, pa.large_utf8())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
