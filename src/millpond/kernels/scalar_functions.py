"""Functions of Spark over whole columns, for expressions that Spark would evaluate in the read.

They are no operators of the model, and no stored query contains them: `spark.reading.arrow_expressions` makes them
from an expression that the model leaves to Spark, if the events are read with Arrow. Each function equals Spark's, or
raises `Uncovered`. `tests/spark/test_scalar_functions.py` compares all of them with Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints
from millpond.kernels.columns import Array, Values, with_null_rule
from millpond.model.calendars.zone_offsets import DAY_US, local_times
from millpond.model.expressions import Call

_HOUR_US, _MINUTE_US, _SECOND_US = 3_600_000_000, 60_000_000, 1_000_000
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
"""The days from 0001-01-01 to 9999-12-31, in which Java, NumPy and Arrow count and write dates in the same way."""
_INT64_MIN = np.iinfo(np.int64).min


class Uncovered(Exception):
    """The values are not known to be computed as Spark computes them; the text is the reason."""


def is_function(op: str) -> bool:
    """Whether an operator of a `Call` is a function of this module."""
    return op in _FUNCTIONS


def apply(node: Call, args: list[Values]) -> Values:
    """The values of a function; its first argument is no constant.

    Raises:
        Uncovered: they may be others than Spark's.
    """
    try:
        return _FUNCTIONS[node.op](node, args)
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        raise Uncovered(f"{node.op} is not computed with Arrow: {str(error).splitlines()[0][:200]}") from error


# --- times: the last argument is a time zone, of which the offset is fixed -----------------------------------


def _filled(values: Values) -> Ints:
    """Integers, with 0 in place of NULLs and errors."""
    missing = values.null | values.error
    filled: Ints = np.where(missing, 0, values.data) if missing.any() else np.asarray(values.data)
    return filled


def _local(args: list[Values]) -> Ints:
    times = _filled(args[0])
    if len(times) and not (times.min() >= _FIRST_DAY * DAY_US + DAY_US and times.max() < (_END_DAY - 1) * DAY_US):
        raise Uncovered("a time is outside of the years 1 to 9999")
    return local_times(args[-1].data.as_py(), times)


def _of_time(part: Callable[[Ints], Ints]) -> Callable[[Call, list[Values]], Values]:
    return lambda _, args: with_null_rule(args[:1], part(_local(args)))


def _of_date(part: Callable[[Array], Ints]) -> Callable[[Call, list[Values]], Values]:
    def apply(_: Call, args: list[Values]) -> Values:
        days = _filled(args[0])
        if len(days) and not (days.min() >= _FIRST_DAY and days.max() < _END_DAY):
            raise Uncovered("a date is outside of the years 1 to 9999")
        return with_null_rule(args, part(days))

    return apply


def _months(days: Array) -> Ints:
    """Months since January 1970."""
    months: Ints = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    return months


def _day_of_month(days: Array) -> Ints:
    return days - _months(days).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) + 1


def _day_of_year(days: Array) -> Ints:
    first = (_months(days) // 12 * 12).astype("datetime64[M]").astype("datetime64[D]")
    return days - first.astype(np.int64) + 1


_UNITS_US = {
    "MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": _SECOND_US, "MINUTE": _MINUTE_US, "HOUR": _HOUR_US,
    "DAY": DAY_US, "DD": DAY_US,
}  # fmt: skip
_UNITS_MONTHS = {"MON": 1, "MONTH": 1, "MM": 1, "QUARTER": 3, "YEAR": 12, "YYYY": 12, "YY": 12}
TRUNCATED = frozenset({*_UNITS_US, *_UNITS_MONTHS, "WEEK"})
"""The units to which times are truncated, in upper case."""


def _truncated(_: Call, args: list[Values]) -> Values:
    unit, local = args[1].data.as_py(), _local(args)
    offset = local - _filled(args[0])
    if unit in _UNITS_US:
        local = local - local % _UNITS_US[unit]
    elif unit == "WEEK":
        days = local // DAY_US
        local = (days - (days + 3) % 7) * DAY_US
    else:
        months = _months(local // DAY_US)
        months = months - months % _UNITS_MONTHS[unit]
        local = months.astype("datetime64[M]").astype("datetime64[us]").astype(np.int64)
    return with_null_rule(args[:1], local - offset)


FORMATS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
"""Parts of Spark's patterns of times, and those of Arrow's."""
_FINEST = (("%S", _SECOND_US), ("%M", _MINUTE_US), ("%H", _HOUR_US), ("", DAY_US))


def _formatted(_: Call, args: list[Values]) -> Values:
    """Each distinct time, in the finest unit of the pattern, is written once."""
    pattern, local = args[1].data.as_py(), _local(args)
    unit = next(unit for part, unit in _FINEST if part in pattern)
    encoded = pa.array(local // unit).dictionary_encode()
    seconds = pc.multiply(encoded.dictionary, unit // _SECOND_US)
    texts = pc.strftime(seconds.cast(pa.timestamp("s")), format=pattern)
    return with_null_rule(args[:1], texts.take(encoded.indices))


def _scaled(factor: int) -> Callable[[Call, list[Values]], Values]:
    """A time from a number of units of `factor` microseconds."""

    def apply(_: Call, args: list[Values]) -> Values:
        data = _filled(args[0])
        if len(data) and not (data.min() >= -(2**63 // factor) and data.max() < 2**63 // factor):
            raise Uncovered("a number is too large for a time")
        return with_null_rule(args, data * factor)

    return apply


def _plus_days(sign: int) -> Callable[[Call, list[Values]], Values]:
    def apply(_: Call, args: list[Values]) -> Values:
        days = _filled(args[0]) + sign * _filled(args[1])
        if len(days) and not (days.min() >= -(2**31) and days.max() < 2**31):
            raise Uncovered("a number of days is too large for a date")
        return with_null_rule(args, days)

    return apply


# --- numbers -------------------------------------------------------------------------------------------------


def _integral_divide(_: Call, args: list[Values]) -> Values:
    """DIV of bigints, which rounds towards zero; its divisor is evaluated first."""
    left, right = args[0].data, args[1].data
    overflow = (left == _INT64_MIN) & (right == -1)
    zero = right == 0
    divisor = np.where(zero | overflow, 1, right)
    quotient = np.floor_divide(left, divisor)
    inexact = (quotient * divisor != left) & ((left < 0) != (divisor < 0))
    return with_null_rule(args[::-1], quotient + inexact, zero | overflow)


def _positive_remainder(_: Call, args: list[Values]) -> Values:
    left, right = args[0].data, args[1].data
    zero = right == 0
    divisor = np.where(zero, 1, right)
    remainder = np.fmod(left, divisor)
    # r + n and its remainder, as Spark computes it, stays below |n|
    return with_null_rule(args[::-1], np.where(remainder < 0, np.fmod(remainder + divisor, divisor), remainder), zero)


def _nanvl(_: Call, args: list[Values]) -> Values:
    first, other = args
    replaced = np.isnan(first.data) & ~first.null & ~first.error
    return Values(
        np.where(replaced, other.data, first.data),
        np.where(replaced, other.null, first.null),
        first.error | (other.error & replaced),
    )


# --- text ----------------------------------------------------------------------------------------------------


def _text(values: Values) -> pa.Array:
    """A column of texts, which are valid UTF-8."""
    text = values.data
    if pc.all(pc.string_is_ascii(text), min_count=0).as_py() is False:
        try:
            text.validate(full=True)
        except pa.ArrowInvalid as error:
            raise Uncovered("a text is not valid UTF-8") from error
    return text


def _constant(values: Values) -> Any:
    return values.data.as_py() if isinstance(values.data, pa.Scalar) else values.data.item()


def _of_text(function: Callable[..., pa.Array]) -> Callable[[Call, list[Values]], Values]:
    """A function of a text and constants."""
    return lambda _, args: with_null_rule(args[:1], function(_text(args[0]), *map(_constant, args[1:])))


def _to_ints(found: pa.Array) -> Ints:
    numbers: Ints = np.asarray(pc.fill_null(found, 0)).astype(np.int64)
    return numbers


def _to_mask(found: pa.Array) -> Array:
    return np.asarray(pc.fill_null(found, False))


def _substring(text: pa.Array, position: int, length: int) -> pa.Array:
    """A position counts from 1, or from the end if it is negative; 0 is the first one, too."""
    if length <= 0:
        return pc.utf8_slice_codeunits(text, 0, 0)
    if position >= 0:
        start = max(position - 1, 0)
        return pc.utf8_slice_codeunits(text, start, min(start + length, 2**31))
    end = position + length
    return pc.utf8_slice_codeunits(text, position, end if end < 0 else None)


def _position(text: pa.Array, part: str) -> Ints:
    """The position of the first occurrence in characters, from 1; 0 if there is none."""
    found = pc.find_substring(text, part)
    if pc.all(pc.string_is_ascii(text), min_count=0).as_py() is not False:
        return _to_ints(found) + 1
    before = pc.utf8_length(pc.list_element(pc.split_pattern(text, part, max_splits=1), 0))
    position: Ints = np.where(_to_mask(pc.greater_equal(found, 0)), _to_ints(before) + 1, 0)
    return position


def _element(otherwise: str | None) -> Callable[[Call, list[Values]], Values]:
    """An element of lists by a constant position; where there is none, `otherwise`, or an error if that is None.

    With `otherwise`, positions count from 1, or from the end if they are negative; else they count from 0.
    """

    def apply(_: Call, args: list[Values]) -> Values:
        lists, position = args[0].data, _constant(args[1])
        offsets = np.asarray(lists.offsets)
        first, end = offsets[:-1], offsets[1:]
        at = first + position if otherwise is None else (first + position - 1 if position > 0 else end + position)
        there = (at >= first) & (at < end)
        if len(lists.values):
            found = lists.values.take(pa.array(np.where(there, at, 0)))
        else:
            found = pa.array([""] * len(lists), pa.string())
        if otherwise is None:
            return with_null_rule(args[:1], found, ~there)
        return with_null_rule(args[:1], pc.if_else(pa.array(there), found, otherwise))

    return apply


def _extracted(text: pa.Array, pattern: str) -> pa.Array:
    """What the group `g` of a pattern matches; a text without a match, or without the group, gives an empty text."""
    return pc.fill_null(pc.extract_regex(text, pattern).field("g"), "")


_FUNCTIONS: dict[str, Callable[[Call, list[Values]], Values]] = {
    "hour": _of_time(lambda local: local // _HOUR_US % 24),
    "minute": _of_time(lambda local: local // _MINUTE_US % 60),
    "second": _of_time(lambda local: local // _SECOND_US % 60),
    "date": _of_time(lambda local: local // DAY_US),
    "truncate": _truncated,
    "format_time": _formatted,
    "year": _of_date(lambda days: _months(days) // 12 + 1970),
    "quarter": _of_date(lambda days: _months(days) % 12 // 3 + 1),
    "month": _of_date(lambda days: _months(days) % 12 + 1),
    "day": _of_date(_day_of_month),
    "day_of_year": _of_date(_day_of_year),
    "day_of_week": _of_date(lambda days: (days + 4) % 7 + 1),
    "weekday": _of_date(lambda days: (days + 3) % 7),
    "add_days": _plus_days(1),
    "subtract_days": _plus_days(-1),
    "days_between": lambda _, args: with_null_rule(args, args[0].data - args[1].data),
    "units_of": lambda _, args: with_null_rule(args[:1], args[0].data // _constant(args[1])),
    "time_of_seconds": _scaled(_SECOND_US),
    "time_of_milliseconds": _scaled(1_000),
    "time_of_microseconds": _scaled(1),
    "div": _integral_divide,
    "pmod": _positive_remainder,
    "nanvl": _nanvl,
    "replace": _of_text(lambda text, part, other: pc.replace_substring(text, pattern=part, replacement=other)),
    "substring": _of_text(_substring),
    "trim": _of_text(lambda text, characters: pc.utf8_trim(text, characters=characters)),
    "trim_left": _of_text(lambda text, characters: pc.utf8_ltrim(text, characters=characters)),
    "trim_right": _of_text(lambda text, characters: pc.utf8_rtrim(text, characters=characters)),
    "reverse": _of_text(pc.utf8_reverse),
    "position": _of_text(_position),
    "split": _of_text(lambda text, part: pc.split_pattern(text, pattern=part)),
    "part": _element(""),
    "item": _element(None),
    "size": lambda _, args: with_null_rule(args, _to_ints(pc.list_value_length(args[0].data))),
    "extract": _of_text(_extracted),
    "matches": _of_text(lambda text, pattern: _to_mask(pc.match_substring_regex(text, pattern))),
    "like": _of_text(lambda text, pattern: _to_mask(pc.match_like(text, pattern))),
}  # fmt: skip
