"""Decides what Spark's `from_json` makes of single JSON texts, and finds texts of a batch that need such a decision."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.formats.malformed_reasons import NO_OBJECT, misfit_reason
from millpond.model.types import is_decimal, is_float, parts_of

LONGEST = 50_000
"""Longest text in bytes; Jackson limits names to as many characters, and strings to more."""

_LIMIT = 1000
"""Jackson's limit of nested levels, and of the digits of a number."""

_NUMERIC = np.isin(np.arange(256), np.frombuffer(b"0123456789.eE+-", np.uint8))
"""By byte, whether it may be a part of a number."""

_WIDE = r'\s*("?[-+]?[0-9.]{39}|"[-+]?[0-9.]+[eE]\+?[0-9]+"|[-+]?[0-9.]+[eE]\+?[0-9])'
"""Numbers, also in quotes, of more than 38 digits, or with an exponent that is not negative."""
_PLAIN_NAME = re.compile(r"[ !#-%(-.0-;?-\[\]-~]+")
_ESCAPED_NAME = r"\\u00(2[013-589a-eA-E]|3[0-9abABfF]|[46][0-9a-fA-F]|5[0-9abdefABDEF]|7[0-9a-eA-E])"
"""A character of a plain name that is written as an escape, as no producer does. Some do for quotes, / & < = and >."""
_STEP = 13

RANGES = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_INF = r"[:\[,]\s*(-NaN|-?Inf([^i]|$))"
"""Numbers that `pyarrow.json` takes and Jackson does not."""

_LENIENT = re.compile(r"['+]|INF|Inf|NaN|^\ufeff")
"""Parts of texts that Jackson may take although they are not JSON."""

_BEGINS = frozenset(bytes([byte]) for byte in b"{[\"'/+-.0123456789NItfn\xef")
"""First bytes of the texts that Jackson may take."""

_DIGIT = re.compile("[0-9]")
NUMBER_WORDS = {"", "nan", "inf", "infinity"}


class Doubt(Exception):
    """It is not known that a result would equal Spark's; the text is the reason."""


class TextColumn(NamedTuple):
    """A field of the objects: its exact name, and its SQL type."""

    name: str
    kind: str


class TextClass(Enum):
    """What is known of a text: it has no token, is not JSON, is an object with a value that does not fit, is an object
    without members, or is an object whose values may fit."""

    BLANK = 1
    NOT_JSON = 2
    MISFIT = 3
    EMPTY = 4
    OBJECT = 5


class Verdict(NamedTuple):
    """The class of a text, and the reason why it is malformed in the strict sense, if it is."""

    kind: TextClass
    reason: str | None = None


def check_utf8(texts: pa.BinaryArray) -> None:
    """Check that all texts are UTF-8.

    Raises:
        Doubt: one is not.
    """
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise Doubt("a value is not UTF-8") from error


def check_limits(texts: pa.BinaryArray) -> None:
    """Check a batch for what would end or change a parse, without parsing.

    Raises:
        Doubt: a text is not UTF-8, has a zero byte, or may exceed a limit of Jackson.
    """
    check_utf8(texts)
    offsets, data = bytes_of(texts)
    if data.min() == 0:
        raise Doubt("a value has a zero byte")
    if np.diff(offsets).max() <= _LIMIT:
        return
    levels = np.add.reduceat(((data == ord("[")) | (data == ord("{"))).astype(np.int32), offsets[:-1])
    if levels.max() > _LIMIT:
        raise Doubt("a value may be nested deeply")
    # a number of more digits than the limit has two sampled bytes in sequence, each a digit, point, sign or exponent
    step = _LIMIT // 2
    sampled = _NUMERIC[data[::step]]
    for place in np.flatnonzero(sampled[1:] & sampled[:-1]).tolist():
        if _NUMERIC[data[place * step : (place + 1) * step]].all():
            raise Doubt("a value may have a number of many digits")


def check_decimals(texts: pa.BinaryArray, columns: Sequence[TextColumn]) -> None:
    """Check the decimals of a batch for numbers that may not fit the 76 digits as which decimals are parsed.

    Arrow does not check that: it would take such a number modulo 2^256.

    Raises:
        Doubt: there may be one.
    """
    kinds = {column.name: column.kind for column in columns if "decimal(" in column.kind}
    if not kinds:
        return
    _, data = bytes_of(texts)
    if not _has_exponent(data) and not _has_many_digits(data):
        return
    plain = all(_PLAIN_NAME.fullmatch(name) and is_decimal(kind) for name, kind in kinds.items())
    wide = rf'"({"|".join(map(re.escape, kinds))})"\s*:{_WIDE}|{_ESCAPED_NAME}' if plain else rf"[:\[,]{_WIDE}"
    if pc.any(pc.match_substring_regex(texts, wide)).as_py():
        raise Doubt("a decimal may have more than 38 digits, or an exponent")


def _has_exponent(data: npt.NDArray[np.uint8]) -> bool:
    places = np.flatnonzero((data[1:-1] | 32) == ord("e")) + 1
    return bool((_digits(data[places - 1]) & (_digits(data[places + 1]) | (data[places + 1] == ord("+")))).any())


def _has_many_digits(data: npt.NDArray[np.uint8]) -> bool:
    """Whether 39 bytes in sequence are digits or points; every 13th of them is looked at first."""
    sampled = _digits(data[::_STEP])
    places = np.flatnonzero(sampled[:-2] & sampled[1:-1] & sampled[2:]) * _STEP
    return bool(_digits(data[places[:, None] + np.arange(2 * _STEP)]).all(axis=1).any())


def _digits(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = ((data >= ord("0")) & (data <= ord("9"))) | (data == ord("."))
    return found


def doubtful_numbers(texts: pa.BinaryArray) -> list[int]:
    """The texts that may have numbers such as `Inf`, which `pyarrow.json` takes and Spark does not.

    Raises:
        Doubt: there are many.
    """
    _, data = bytes_of(texts)
    places = np.flatnonzero(data[:-1] == ord("I"))
    if not (data[places + 1] == ord("n")).any() and not _has_nan(data):
        return []
    found: list[int] = np.flatnonzero(np.asarray(pc.match_substring_regex(texts, _INF))).tolist()
    if len(found) > 8 + len(texts) // 100:
        raise Doubt("many values may have numbers such as Inf")
    return found


def _has_nan(data: npt.NDArray[np.uint8]) -> bool:
    places = np.flatnonzero(data[:-1] == ord("N"))
    return bool(((data[places + 1] == ord("a")) & (data[places - 1] == ord("-"))).any())


def bytes_of(texts: pa.BinaryArray | pa.StringArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """The bytes of all texts, and where each text begins among them and the last one ends."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return offsets - offsets[0], np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]


def judged(text: bytes, columns: Sequence[TextColumn]) -> Verdict:
    """What Spark makes of a text; one value that does not fit its column makes a text malformed.

    Raises:
        Doubt: it is not known.
    """
    begun = text.lstrip(b" \t\r\n")
    if not begun:
        return Verdict(TextClass.BLANK, NO_OBJECT)
    if not text.strip(bytes(range(33))) or begun[:1] not in _BEGINS:
        return Verdict(TextClass.NOT_JSON, NO_OBJECT)
    try:
        decoded = text.decode()
        parsed = json.loads(decoded, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        if begun[:1] in (b"[", b'"', b"/") or error.msg == "Extra data" or _LENIENT.search(decoded):
            raise Doubt("a value is not plain JSON") from error
        return Verdict(TextClass.NOT_JSON, NO_OBJECT)
    except UnicodeDecodeError as error:
        raise Doubt("a value is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise Doubt("a value has a number of many digits, or is nested deeply") from error
    if not isinstance(parsed, _Pairs):
        raise Doubt("a value is not an object")
    if not parsed:
        return Verdict(TextClass.EMPTY)
    values = dict(parsed)
    if len(values) < len(parsed):
        raise Doubt("a value has a name twice")
    for column in columns:
        if column.name in values and _fits(values[column.name], column.kind) is False:
            return Verdict(TextClass.MISFIT, misfit_reason(column.name, column.kind))
    return Verdict(TextClass.OBJECT)


class _Pairs(list[tuple[str, Any]]):
    """The members of an object, in order."""


def _fits(value: Any, kind: str) -> bool | None:
    """Whether a member fits a column; None if this is not known."""
    if value is None:
        return True
    if kind == "string":
        return True if isinstance(value, str) else None
    if parts_of(kind):
        return None
    if isinstance(value, list):  # an object or an array
        return False
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind in RANGES:
        if not isinstance(value, int):
            return False
        top = 1 << (RANGES[kind] - 1)
        return None if kind == "tinyint" and top <= value < 2 * top else -top <= value < top
    if is_decimal(kind):
        return None
    if is_float(kind):
        return True if not isinstance(value, str) else None if value.lower().lstrip("+-") in NUMBER_WORDS else False
    if isinstance(value, str):  # of a date or a timestamp
        return None if _DIGIT.search(value) or not value else False
    return None if isinstance(value, int) else False
