"""Array parameters, as in `page = ANY($1)`, as list literals of DuckDB.

Source: https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO and `array_send` of PostgreSQL
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

_ELEMENT = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^",{}\\\s](?:[^",{}\\]|\\.)*?))\s*(,|\Z)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def elements_of_text(text: str) -> Iterator[bytes | None]:
    r"""The texts of the elements of an array, None for NULL.

    >>> [*elements_of_text('{1, NULL,"NULL","a, \\"b"}')], [*elements_of_text("{}")]
    ([b'1', None, b'NULL', b'a, "b'], [])

    Raises:
        ValueError: it is no array of one dimension.
    """
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("no array")
    inner = text[1:-1].strip()
    at, last = 0, ","
    while inner and last:
        found = _ELEMENT.match(inner, at)
        if found is None:
            raise ValueError("no array of one dimension")
        quoted, plain, last = found.groups()
        at = found.end()
        is_null = quoted is None and plain.upper() == "NULL"
        yield None if is_null else _ESCAPED.sub(r"\1", plain if quoted is None else quoted).encode()


def elements_of_binary(value: bytes) -> Iterator[bytes | None]:
    """The values of the elements of an array in the binary format, None for NULL.

    >>> [*elements_of_binary(struct.pack(">iiiiiih", 1, 1, 21, 1, 1, 2, 7))], [*elements_of_binary(bytes(12))]
    ([b'\\x00\\x07'], [])

    Raises:
        ValueError, struct.error: it is no array of one dimension.
    """
    dimensions, _, _ = struct.unpack_from(">iii", value)
    if dimensions not in (0, 1):
        raise ValueError("no array of one dimension")
    number, at = struct.unpack_from(">i", value, 12)[0] if dimensions else 0, 20
    for _ in range(number):
        (size,) = struct.unpack_from(">i", value, at)
        at += 4 + max(0, size)
        if at > len(value):
            raise ValueError("too short")
        yield None if size < 0 else value[at - size : at]
