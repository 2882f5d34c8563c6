"""SQL types of columns, as Spark spells them, and how each is held in arrays.

A type is the text of Spark's `simpleString`: `bigint`, `double`, `string`, `timestamp`, …
Timestamps are int64 microseconds since 1970-01-01 UTC; dates are int64 days; booleans are bool;
tinyint … bigint are int64 (their own range is checked where arithmetic could leave it).
"""

from __future__ import annotations

INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""Integer types and their width in bits."""

FLOATS = {"float": 32, "double": 64}
"""Floating types and their width in bits."""

TIMES = ("timestamp", "timestamp_ntz", "date")
"""Types held as int64 counts of microseconds or days."""

FARTHEST_US = 1 << 62
"""Event times further than this from 1970 (146 000 years) count as missing, so that no window leaves int64."""

WINDOW = "struct<start:timestamp,end:timestamp>"
"""The type of a window column."""

KEY_TYPES = frozenset({*INTEGERS, *FLOATS, *TIMES, "string", "boolean"})
"""Types a key column may have."""


def is_integer(kind: str) -> bool:
    """Whether `kind` is one of tinyint, smallint, int, bigint."""
    return kind in INTEGERS


def is_float(kind: str) -> bool:
    """Whether `kind` is float or double."""
    return kind in FLOATS


def is_number(kind: str) -> bool:
    """Whether `kind` is an integer or floating type (decimals are not: they are not answered yet)."""
    return kind in INTEGERS or kind in FLOATS


def integer_range(kind: str) -> tuple[int, int]:
    """Smallest and largest value of an integer type.

    >>> integer_range("tinyint")
    (-128, 127)
    """
    bits = INTEGERS[kind]
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
