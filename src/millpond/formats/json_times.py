"""Parses dates and timestamps in the ISO forms that Spark and Arrow read alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.formats.json_checks import Doubt

_SECONDS = 19
"""Length of `2026-01-31T12:30:00`."""

_NO_OFFSET = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")


def dates(texts: pa.StringArray) -> pa.Array:
    """Dates of the form `2026-01-31`.

    Raises:
        Doubt: one has another form.
    """
    try:
        return texts.cast(pa.date32())
    except pa.ArrowInvalid as error:
        raise Doubt("a date has not the form 2026-01-31") from error


def timestamps(texts: pa.StringArray, zone: str) -> pa.Array:
    """Timestamps of the form `2026-01-31T12:30:00.123456+01:00`.

    The T may be a blank, the fraction may be absent or shorter, and the offset may be Z. It may be absent, for all, if
    the session's time zone is UTC.

    Raises:
        Doubt: one has another form.
    """
    rows = texts.drop_null() if texts.null_count else texts
    if not len(rows):
        return pa.nulls(len(texts), pa.timestamp("us", "UTC"))
    offset = _has_offset(rows)
    if not offset and zone not in _NO_OFFSET:
        raise Doubt("a timestamp has no offset from UTC, and the session's time zone is not UTC")
    try:
        if offset:
            return texts.cast(pa.timestamp("us", "UTC"))
        return pc.assume_timezone(texts.cast(pa.timestamp("us")), "UTC")
    except pa.ArrowInvalid as error:
        raise Doubt("a timestamp has not the form 2026-01-31T12:30:00Z") from error


def _has_offset(texts: pa.StringArray) -> bool:
    """Whether each timestamp has an offset from UTC; otherwise none has one.

    Arrow itself checks the digits. It also takes other forms, which are doubted here.
    """
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2], np.uint8)
    starts, ends = offsets[:-1], offsets[1:]
    lengths = ends - starts
    if lengths.min() < _SECONDS or not (_is(data, starts + 13, ":") & _is(data, starts + 16, ":")).all():
        raise Doubt("a timestamp has not the form 2026-01-31T12:30:00Z")
    zulu = _is(data, ends - 1, "Z")
    if zulu.all():
        return True
    signed = _is(data, ends - 6, "+") | _is(data, ends - 6, "-")
    signed &= _is(data, ends - 3, ":") & (lengths >= _SECONDS + 6)
    hours = (data[ends - 5].astype(int) - ord("0")) * 10 + data[ends - 4] - ord("0")
    if (hours[signed] >= 18).any():
        raise Doubt("a timestamp has an offset of 18 hours or more")
    found = zulu | signed
    plain = lengths == _SECONDS
    plain |= _is(data, starts + np.minimum(lengths - 1, _SECONDS), ".") & _digit(data, ends - 1) & ~found
    plain &= lengths <= _SECONDS + 7
    if not (found | plain).all() or (found.any() and plain.any()):
        raise Doubt("timestamps have several forms")
    return bool(found.any())


def _is(data: npt.NDArray[np.uint8], places: npt.NDArray[np.int32], char: str) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = data[places] == ord(char)
    return found


def _digit(data: npt.NDArray[np.uint8], places: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (data[places] >= ord("0")) & (data[places] <= ord("9"))
    return found
