"""Formats results of DuckDB as PostgreSQL rows: types, texts, and binary values, whole columns at a time.

DuckDB casts each column to its text, or to the type whose bytes are sent. NumPy and Arrow then join lengths and values
to `DataRow` messages.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import RequestError
from millpond.service.postgres.array_parameters import elements_of_binary, elements_of_text
from millpond.service.postgres.messages import ResultColumn

TEXT, BINARY = 0, 1

BOOL, BYTEA, INT8, INT2, INT4, TEXT_OID, JSON = 16, 17, 20, 21, 23, 25, 114
FLOAT4, FLOAT8, VARCHAR, DATE, TIME, TIMESTAMP, TIMESTAMPTZ = 700, 701, 1043, 1082, 1083, 1114, 1184
INTERVAL, NUMERIC, UUID = 1186, 1700, 2950

_OIDS = {
    "BOOLEAN": BOOL, "BLOB": BYTEA, "TINYINT": INT2, "SMALLINT": INT2, "INTEGER": INT4, "BIGINT": INT8,
    "UTINYINT": INT2, "USMALLINT": INT4, "UINTEGER": INT8, "UBIGINT": NUMERIC, "HUGEINT": NUMERIC, "UHUGEINT": NUMERIC,
    "FLOAT": FLOAT4, "DOUBLE": FLOAT8, "VARCHAR": TEXT_OID, '"NULL"': TEXT_OID, "DATE": DATE, "TIME": TIME,
    "TIMESTAMP": TIMESTAMP, "TIMESTAMP_S": TIMESTAMP, "TIMESTAMP_MS": TIMESTAMP, "TIMESTAMP_NS": TIMESTAMP,
    "TIMESTAMP WITH TIME ZONE": TIMESTAMPTZ, "INTERVAL": INTERVAL, "UUID": UUID,
}  # fmt: skip

TYPES = {
    BOOL: "BOOLEAN", BYTEA: "BLOB", INT2: "SMALLINT", INT4: "INTEGER", INT8: "BIGINT", TEXT_OID: "VARCHAR",
    VARCHAR: "VARCHAR", FLOAT4: "FLOAT", FLOAT8: "DOUBLE", DATE: "DATE", TIME: "TIME", TIMESTAMP: "TIMESTAMP",
    TIMESTAMPTZ: "TIMESTAMPTZ", INTERVAL: "INTERVAL", NUMERIC: "DECIMAL(38, 10)", UUID: "UUID",
}  # fmt: skip
"""DuckDB's type by object id of a parameter's type; that of a decimal number also depends on its value."""

ARRAYS = {
    1000: BOOL, 1001: BYTEA, 1005: INT2, 1007: INT4, 1009: TEXT_OID, 1015: VARCHAR, 1016: INT8, 1021: FLOAT4,
    1022: FLOAT8, 1115: TIMESTAMP, 1182: DATE, 1183: TIME, 1185: TIMESTAMPTZ, 1187: INTERVAL, 1231: NUMERIC, 2951: UUID,
}  # fmt: skip
"""The object ids of arrays, with those of their elements."""

_NOT_FINITE = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
"""Decimal numbers without digits, by their sign."""

_NUMBERS = {INT2: ">i2", INT4: ">i4", INT8: ">i8", FLOAT4: ">f4", FLOAT8: ">f8"}
_AS_BYTES = (BYTEA, TEXT_OID, JSON, UUID)
_DAYS_TO_2000, _US_TO_2000 = 10_957, 946_684_800_000_000
_DIGITS = 38
"""The most digits of a decimal number in DuckDB."""

_HEAD = np.dtype([("kind", "S1"), ("size", ">i4"), ("columns", ">i2")])


def oid_of(kind: str) -> int:
    """The object id of the PostgreSQL type for a type of DuckDB; nested values are JSON.

    >>> oid_of("BIGINT"), oid_of("DECIMAL(10,2)"), oid_of("INTEGER[]")
    (20, 1700, 114)
    """
    if kind.endswith("]"):
        return JSON
    return _OIDS.get(kind) or (NUMERIC if kind.startswith("DECIMAL") else TEXT_OID if kind.startswith("ENUM") else JSON)


def formats_of(requested: Sequence[int], columns: Sequence[ResultColumn]) -> list[int]:
    """The format of each column, as a client requests it: one for all columns, one for each, or none, which is text.

    Raises:
        RequestError: there is no such format, or the binary format of intervals is requested.
    """
    wanted = list(requested) if len(requested) > 1 else [*(requested or [TEXT])] * len(columns)
    if len(wanted) != len(columns) or any(form not in (TEXT, BINARY) for form in wanted):
        raise RequestError("The formats of the result do not fit its columns.", "Request the text format.")
    for column, form in zip(columns, wanted, strict=True):
        if form == BINARY and column.oid == INTERVAL:
            raise RequestError(f"The interval {column.name} has no binary format here.", "Request the text format.")
    return wanted


def projection(sql: str, columns: Sequence[ResultColumn], formats: Sequence[int]) -> str:
    """The statement whose columns are what is sent: texts, or values of the type with the right bytes."""
    names = [f"c{place}" for place in range(len(columns))]
    shown = ", ".join(
        _value(name, column.oid) if form == BINARY else _text(name, column.oid)
        for name, column, form in zip(names, columns, formats, strict=True)
    )
    return f"SELECT {shown} FROM (\n{sql}\n) AS _({', '.join(names)})"


def _text(name: str, oid: int) -> str:
    if oid == BOOL:
        return f"CASE WHEN {name} THEN 't' WHEN NOT {name} THEN 'f' END"
    if oid == BYTEA:
        return f"'\\x' || lower(hex({name}))"
    if oid == JSON:
        return f"CAST(to_json({name}) AS VARCHAR)"
    if oid in (FLOAT4, FLOAT8):
        return f"replace(replace(CAST({name} AS VARCHAR), 'inf', 'Infinity'), 'nan', 'NaN')"
    return f"CAST({name} AS VARCHAR)"


def _value(name: str, oid: int) -> str:
    if oid == UUID:
        return f"unhex(replace(CAST({name} AS VARCHAR), '-', ''))"
    if oid in (JSON, NUMERIC):
        return _text(name, oid)
    return f"CAST({name} AS {TYPES[oid]})"


def data_rows(batch: pa.RecordBatch, columns: Sequence[ResultColumn], formats: Sequence[int]) -> bytes:
    """The `DataRow` messages of the rows of a projection."""
    rows = batch.num_rows
    sizes = np.full(rows, 6, np.int64)
    pieces: list[pa.Array] = []
    for array, column, form in zip(batch.columns, columns, formats, strict=True):
        cells = _binary(array, column.oid) if form == BINARY else array.cast(pa.large_binary())
        lengths = pc.fill_null(pc.binary_length(cells), -1).to_numpy(zero_copy_only=False)
        sizes += 4 + np.maximum(lengths, 0)
        pieces += [_fixed(lengths.astype(">i4")), pc.fill_null(cells, b"")]
    heads = np.empty(rows, _HEAD)
    heads["kind"], heads["size"], heads["columns"] = b"D", sizes, len(columns)
    joined = pc.binary_join_element_wise(_fixed(heads), *pieces, pa.scalar(b"", pa.large_binary()))
    offsets = np.frombuffer(joined.buffers()[1], np.int64)[joined.offset : joined.offset + rows + 1]
    return bytes(joined.buffers()[2][offsets[0] : offsets[-1]]) if rows else b""


def _fixed(values: npt.NDArray[Any]) -> pa.Array:
    """The bytes of each value."""
    width = values.dtype.itemsize
    offsets = np.arange(len(values) + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers)


def _binary(array: pa.Array, oid: int) -> pa.Array:
    """The binary values of a column, by https://www.postgresql.org/docs/current/protocol-overview.html."""
    if oid in _AS_BYTES:
        return array.cast(pa.large_binary())
    if oid == NUMERIC:
        return pa.array([None if value is None else _numeric(value) for value in array.to_pylist()], pa.large_binary())
    if oid == BOOL:
        form, numbers = ">u1", array.cast(pa.uint8())
    elif oid == DATE:
        form, numbers = ">i4", _since_2000(array.cast(pa.int32()), _DAYS_TO_2000)
    elif oid in (TIMESTAMP, TIMESTAMPTZ):
        form, numbers = ">i8", _since_2000(array.cast(pa.int64()), _US_TO_2000)
    else:
        form, numbers = _NUMBERS.get(oid, ">i8"), array.cast(pa.int64()) if oid == TIME else array
    values = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False).astype(form)
    return pc.if_else(array.is_valid(), _fixed(values), None)


def _since_2000(numbers: pa.Array, to_2000: int) -> pa.Array:
    """Days or microseconds since 1970, as DuckDB counts them, as those since 2000.

    Infinity is the greatest number in both, minus infinity the least number in PostgreSQL and the next one in DuckDB.
    """
    most = 2 ** (numbers.type.bit_width - 1) - 1
    infinite = {edge: pa.scalar(edge, numbers.type) for edge in (most, -most, -most - 1)}
    below = pc.if_else(pc.equal(numbers, infinite[-most]), infinite[-most - 1], pc.subtract(numbers, to_2000))
    return pc.if_else(pc.equal(numbers, infinite[most]), infinite[most], below)


def _numeric(text: str) -> bytes:
    """A decimal number as PostgreSQL sends it: digits to the base 10,000, the weight of the first, sign and scale."""
    sign, digits, exponent = Decimal(text).as_tuple()
    scale = -int(exponent)
    whole = "".join(map(str, digits)).rjust(scale + 1, "0")
    left, right = (whole[:-scale], whole[-scale:]) if scale else (whole, "")
    left, right = left.rjust(-(-len(left) // 4) * 4, "0"), right.ljust(-(-len(right) // 4) * 4, "0")
    groups = [int(group) for group in re.findall("....", left + right)]
    weight = len(left) // 4 - 1
    while groups and not groups[0]:
        groups.pop(0)
        weight -= 1
    while groups and not groups[-1]:
        groups.pop()
    head = (len(groups), weight if groups else 0, 0x4000 if sign else 0, scale, *groups)
    return struct.pack(f">HhHH{len(groups)}H", *head)


def parameter(value: bytes | None, oid: int, form: int) -> str:
    """The value of a parameter, as a client sends it, as a literal of SQL.

    >>> parameter(b"7", 23, 0), parameter(b"it's", 0, 0), parameter((7).to_bytes(8, "big"), 20, 1)
    ("CAST('7' AS INTEGER)", "'it''s'", "CAST('7' AS BIGINT)")

    Raises:
        RequestError: the value is not one, or its type is not known here.
    """
    if oid in ARRAYS:
        return array_literal(value, ARRAYS[oid], form)
    kind = TYPES.get(oid)
    if oid and kind is None:
        raise RequestError(f"Parameters of the type with the object id {oid} are not known.", "Send it as text.")
    if value is None:
        return "NULL" if kind is None else f"CAST(NULL AS {kind})"
    try:
        shown = _of_binary(value, oid) if form == BINARY else value.decode()
    except (ValueError, struct.error, OverflowError) as error:
        raise RequestError(f"The value of a parameter is no {kind or 'text'}.", "Send it as text.") from error
    if oid == NUMERIC:
        kind = _decimal_kind(shown)
    quoted = "'" + shown.replace("\0", "").replace("'", "''") + "'"
    if oid == BYTEA:
        quoted = f"'{shown[2:]}'" if re.fullmatch(r"\\x[0-9a-fA-F]*", shown) else quoted
        return f"unhex({quoted})"
    return quoted if kind is None or kind == "VARCHAR" else f"CAST({quoted} AS {kind})"


def array_literal(value: bytes | None, oid: int, form: int) -> str:
    """The value of an array parameter as a literal of SQL; `oid`: the type of its elements, 0: texts.

    >>> array_literal(b"{a,NULL}", 0, 0), array_literal(b"{}", 23, 0)
    ("['a', NULL]", 'CAST([] AS INTEGER[])')

    Raises:
        RequestError: it is no array of one dimension of such elements.
    """
    if value is None:
        return "NULL"
    try:
        elements = [*(elements_of_binary(value) if form == BINARY else elements_of_text(value.decode()))]
    except (ValueError, struct.error) as error:
        raise RequestError("The value of a parameter is no array of one dimension.", "Send it as text.") from error
    listed = f"[{', '.join('NULL' if one is None else parameter(one, oid, form) for one in elements)}]"
    return listed if elements else f"CAST([] AS {TYPES.get(oid, 'VARCHAR')}[])"


def _decimal_kind(text: str) -> str:
    """DuckDB's type for a number: decimal with its digits after the point, or DOUBLE if that has too few digits.

    >>> _decimal_kind("1.250"), _decimal_kind("1e40"), _decimal_kind("NaN")
    ('DECIMAL(38, 3)', 'DOUBLE', 'DOUBLE')
    """
    try:
        _, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:  # DuckDB says why
        return "DOUBLE"
    if not isinstance(exponent, int):
        return "DOUBLE"
    scale = max(0, -exponent)
    fits = scale + max(0, len(digits) + exponent) <= _DIGITS
    return f"DECIMAL({_DIGITS}, {scale})" if fits else "DOUBLE"


def _of_binary(value: bytes, oid: int) -> str:
    """The text of a binary value."""
    if oid == BOOL:
        return str(value != b"\0")
    if oid in (INT2, INT4, INT8):
        return str(int.from_bytes(value, "big", signed=True))
    if oid in (FLOAT4, FLOAT8):
        (number,) = struct.unpack(">f" if oid == FLOAT4 else ">d", value)
        return repr(number)
    if oid == DATE:
        (days,) = struct.unpack(">i", value)
        return _infinity(days, 31) or str(np.datetime64(days + _DAYS_TO_2000, "D"))
    if oid in (TIMESTAMP, TIMESTAMPTZ):
        (us,) = struct.unpack(">q", value)
        zone = "+00" if oid == TIMESTAMPTZ else ""
        return _infinity(us, 63) or f"{np.datetime64(us + _US_TO_2000, 'us')}{zone}"
    if oid == TIME:
        (time_us,) = struct.unpack(">q", value)
        seconds, us = divmod(time_us, 1_000_000)
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{us:06}"
    if oid == INTERVAL:
        us, days, months = struct.unpack(">qii", value)
        return f"{months} months {days} days {us} microseconds"
    if oid == UUID:
        return str(uuid.UUID(bytes=value))
    if oid == NUMERIC:
        return _of_numeric(value)
    if oid == BYTEA:
        return f"\\x{value.hex()}"
    if oid in (TEXT_OID, VARCHAR, 0):
        return value.decode()
    raise ValueError(oid)


def _infinity(number: int, bits: int) -> str:
    """The text of an infinite date or time; nothing for a finite one."""
    return {2**bits - 1: "infinity", -(2**bits): "-infinity"}.get(number, "")


def _of_numeric(value: bytes) -> str:
    """The text of a decimal number with all of its digits after the point, also if they are zeros."""
    count, weight, sign, scale = struct.unpack_from(">HhHH", value)
    groups = struct.unpack_from(f">{count}H", value, 8)
    if sign in _NOT_FINITE:
        return _NOT_FINITE[sign]
    if sign not in (0, 0x4000):
        raise ValueError("no number")
    whole = max(0, weight + 1)
    left = "".join(f"{group:04}" for group in groups[:whole]).ljust(4 * whole, "0")
    right = "0" * (-4 * (weight + 1)) + "".join(f"{group:04}" for group in groups[whole:])
    return f"{'-' if sign else ''}{left.lstrip('0') or '0'}.{right[:scale].ljust(scale, '0')}".removesuffix(".")
