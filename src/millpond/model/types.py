"""SQL types of columns, as Spark spells them, and how arrays store each type.

A type is the text of Spark's `simpleString`: `bigint`, `double`, `string`, `timestamp`, …
Timestamps are int64 microseconds since 1970-01-01 UTC; dates are int64 days; booleans are bool;
tinyint … bigint are int64 (their own range is checked where arithmetic could exceed it).
`decimal(p,s)` is stored as the 128-bit integer value * 10**s, at most p digits long.
Structs, arrays, maps and bytes stay Arrow columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""Integer types and their width in bits."""

FLOATS = {"float": 32, "double": 64}
"""Floating types and their width in bits."""

TIMES = ("timestamp", "timestamp_ntz", "date")
"""Types that are stored as int64 counts of microseconds or days."""

FARTHEST_US = 1 << 62
"""Event times further than this from 1970 (146 000 years) count as missing, so that no window exceeds int64."""

INTERVAL = "interval day to second"
"""The type of a difference of timestamps, which is only passed through: Arrow has it as `duration[us]`."""

WINDOW = "struct<start:timestamp,end:timestamp>"
"""The type of a window column."""

EVENT_TIME_TYPES = ("timestamp", WINDOW)
"""The types of event times: of an event, and of a row of a window."""

KEY_TYPES = frozenset({*INTEGERS, *FLOATS, *TIMES, "string", "boolean"})
"""The types that a key column may have, besides `decimal(p,s)`."""

MOST_DIGITS = 38
"""The largest precision of a decimal."""


class Digits(NamedTuple):
    """Precision (all digits) and scale (digits after the point) of a decimal type."""

    precision: int
    scale: int

    @property
    def type(self) -> str:
        """The SQL type."""
        return f"decimal({self.precision},{self.scale})"

    def holds(self, other: Digits) -> bool:
        """Whether this type can represent every number of `other`."""
        return self.scale >= other.scale and self.precision - self.scale >= other.precision - other.scale


_NO_JSON = re.compile(r"(?:^|[:<,])(?:map<|binary(?=[,>]|$))")  # a field of a struct may be called `binary`
_QUOTED = re.compile(r"`(?:[^`]|``)*`")
_INTEGER_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


def is_known(kind: str) -> bool:
    """Whether columns of `kind` can be stored in arrays and be keys."""
    return kind in KEY_TYPES or is_decimal(kind)


def has_json(kind: str) -> bool:
    """Whether values of an SQL type can be written as JSON; maps and bytes cannot, not even inside other types.

    >>> has_json("array<binary>"), has_json("struct<binary:int>"), has_json("struct<`a:map<`:int>")
    (False, True, True)
    """
    return _NO_JSON.search(_QUOTED.sub("", kind)) is None


def is_array(kind: str) -> bool:
    """Whether `kind` is an `array<…>`; only results can have such a type."""
    return kind.startswith("array<")


def element_of(kind: str) -> str:
    """The type of the elements of an array."""
    return kind[len("array<") : -1]


def bin_centre_type(kind: str) -> str | None:
    """The type of the centres of a histogram's bins; None if `kind` is not the type of such bins.

    >>> bin_centre_type("struct<x:decimal(4,1),y:double>"), bin_centre_type("double")
    ('decimal(4,1)', None)
    """
    start, end = "struct<x:", ",y:double>"
    return kind[len(start) : -len(end)] if kind.startswith(start) and kind.endswith(end) else None


def is_decimal(kind: str) -> bool:
    """Whether `kind` is a `decimal(p,s)`."""
    return kind.startswith("decimal(")


@cache
def digits_of(kind: str) -> Digits:
    """Precision and scale of a decimal type, or of the decimal that an integer type needs.

    >>> digits_of("decimal(10,2)"), digits_of("int")
    (Digits(precision=10, scale=2), Digits(precision=10, scale=0))
    """
    if kind in _INTEGER_DIGITS:
        return Digits(_INTEGER_DIGITS[kind], 0)
    precision, scale = kind[len("decimal(") : -1].split(",")
    return Digits(int(precision), int(scale))


def exact_digits(op: str, left: Digits, right: Digits) -> Digits:
    """The type that the exact result of `add`, `subtract` or `multiply` needs; up to 38 digits it is Spark's type."""
    if op == "multiply":
        return Digits(left.precision + right.precision + 1, left.scale + right.scale)
    scale = max(left.scale, right.scale)
    return Digits(max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale)


def is_integer(kind: str) -> bool:
    """Whether `kind` is one of tinyint, smallint, int, bigint."""
    return kind in INTEGERS


def is_float(kind: str) -> bool:
    """Whether `kind` is float or double."""
    return kind in FLOATS


def is_number(kind: str) -> bool:
    """Whether `kind` is an integer or floating type, not a decimal."""
    return kind in INTEGERS or kind in FLOATS


def integer_range(kind: str) -> tuple[int, int]:
    """The smallest and largest value of an integer type.

    >>> integer_range("tinyint")
    (-128, 127)
    """
    bits = INTEGERS[kind]
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


class StructField(NamedTuple):
    """A field of a struct: its name, without backticks, and its SQL type."""

    name: str
    type: str


def is_struct(kind: str) -> bool:
    """Whether `kind` is a `struct<…>`."""
    return kind.startswith("struct<")


def is_map(kind: str) -> bool:
    """Whether `kind` is a `map<…>`."""
    return kind.startswith("map<")


@cache
def struct_fields(kind: str) -> tuple[StructField, ...]:
    """The fields of a struct, in order.

    >>> [tuple(field) for field in struct_fields("struct<a:decimal(4,1),`b,``c`:array<struct<d:int>>>")]
    [('a', 'decimal(4,1)'), ('b,`c', 'array<struct<d:int>>')]
    """
    return tuple(map(_field, _split(kind[len("struct<") : -1])))


@cache
def map_parts(kind: str) -> tuple[str, str]:
    """The types of the keys and the values of a map.

    >>> map_parts("map<string,struct<a:int,b:int>>")
    ('string', 'struct<a:int,b:int>')
    """
    key, value = _split(kind[len("map<") : -1])
    return key, value


@cache
def parts_of(kind: str) -> tuple[str, ...]:
    """The types that a type directly contains; none if it is not nested."""
    if is_struct(kind):
        return tuple(field.type for field in struct_fields(kind))
    if is_map(kind):
        return map_parts(kind)
    return (element_of(kind),) if is_array(kind) else ()


@cache
def is_storable(kind: str) -> bool:
    """Whether values of a type can be stored as events and emitted.

    These are known types, bytes, intervals of days to seconds, and types nested of these.

    >>> is_storable("array<struct<a:binary>>"), is_storable("struct<a:interval>"), is_storable("struct<a:int,a:int>")
    (True, False, False)
    """
    parts = parts_of(kind)
    if not parts:
        return kind in ("binary", INTERVAL) or is_known(kind)
    names = [field.name for field in struct_fields(kind)] if is_struct(kind) else []
    return len({*names}) == len(names) and all(map(is_storable, parts))


@cache
def has_floats(kind: str) -> bool:
    """Whether a type is a floating type or contains one, so that equal values may differ in the sign of a zero."""
    return is_float(kind) or any(map(has_floats, parts_of(kind)))


def _field(text: str) -> StructField:
    if not text.startswith("`"):
        name, _, kind = text.partition(":")
        return StructField(name, kind)
    end = 1
    while text[end] != "`" or text[end + 1 : end + 2] == "`":
        end += 2 if text[end] == "`" else 1
    return StructField(text[1:end].replace("``", "`"), text[end + 2 :])


def _split(text: str) -> Iterator[str]:
    """The parts between the commas that are neither in brackets nor in backticks."""
    depth, quoted, start = 0, False, 0
    for i, character in enumerate(text):
        if character == "`":
            quoted = not quoted
        elif not quoted and character in "<(":
            depth += 1
        elif not quoted and character in ">)":
            depth -= 1
        elif not quoted and not depth and character == ",":
            yield text[start:i]
            start = i + 1
    if text:
        yield text[start:]
