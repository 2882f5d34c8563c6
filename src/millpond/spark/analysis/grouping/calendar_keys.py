"""Reads windows from grouping keys that are the event time: itself, its date, or `date_trunc('DAY', ts)`.

Such a key is constant within a day, week or month of the time zone in which the text was analysed. So its groups are
complete when the watermark passes the end of this unit. Units that always have the same length are plain tumbling
windows, which share slices with all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from millpond.errors import UnsupportedQuery
from millpond.model.calendars.grids import Dates, Unit, repeats_midnight
from millpond.model.calendars.zone_offsets import DAY_US, remainders
from millpond.model.expressions import Column
from millpond.model.windows import Calendar, Sliced, Sliding
from millpond.spark.analysis.aggregation_input import InputPlan
from millpond.spark.analysis.result_expressions import projected_above
from millpond.spark.catalyst.data_types import counts_months
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    delay_ms,
    id_of,
    kind_of,
    type_of,
)
from millpond.spark.catalyst.spark_expressions import Projected

_HOUR_US = 3_600_000_000
_FIXED = {
    "MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": 1_000_000, "MINUTE": 60_000_000, "HOUR": _HOUR_US,
}  # fmt: skip
_UNITS: dict[str, Unit] = {
    "DAY": "day", "DD": "day", "WEEK": "week", "MON": "month", "MONTH": "month", "MM": "month", "QUARTER": "quarter",
    "YEAR": "year", "YYYY": "year", "YY": "year",
}  # fmt: skip
_MONTHS: dict[int, Unit] = {1: "month", 3: "quarter", 12: "year"}
_WHOLE_DAYS: dict[int, Unit] = {DAY_US: "date"}
_DAYS: dict[Unit, tuple[int, int]] = {"day": (1, 0), "date": (1, 0), "week": (7, 4)}
"""The length of a unit and its first begin, in days since 1970-01-01."""


class CalendarKey(NamedTuple):
    """The grouping key `group` as a window over the event time `time`.

    `value`: the key as an expression over the event time, if it is not the start of the window itself.
    """

    group: int
    time: JavaObject
    window: Sliced
    value: JavaObject | None = None


def calendar_key(catalyst: Catalyst, plan: InputPlan, groups: Sequence[JavaObject]) -> CalendarKey | None:
    """The grouping key with the shortest windows among those that are the event time or truncate it; None: there is
    none.

    Raises:
        UnsupportedQuery: it truncates to hours or minutes that have no regular length in the time zone.
    """
    found = [key for group in groups if (key := _key_of(catalyst, plan, group)) is not None]
    return min(found, key=lambda key: key.window.longest_us, default=None)


def _key_of(catalyst: Catalyst, plan: InputPlan, group: JavaObject) -> CalendarKey | None:
    if kind_of(group) == "AttributeReference" and delay_ms(group) is not None:
        return CalendarKey(id_of(group), group, Sliding(1, 1))
    node = plan.unaliased(group)
    if kind_of(node) == "TruncTimestamp":
        level, time = _level(catalyst, children(node)[0]), _event_time(plan, children(node)[1])
        if time is None:
            return None
        if level in _FIXED:
            return CalendarKey(id_of(group), time, _regular(_FIXED[level], _zone_of(node), level))
        return CalendarKey(id_of(group), time, _calendar(_UNITS[level], _zone_of(node))) if level in _UNITS else None
    if kind_of(node) == "TimeBucket":
        return _bucket_key(catalyst, plan, group, node)
    unit: Unit | None = "date"
    cast = node
    if kind_of(node) == "TruncDate":
        unit, cast = _UNITS.get(_level(catalyst, children(node)[1])), plan.unaliased(children(node)[0])
    if unit in (None, "day") or kind_of(cast) != "Cast" or type_of(cast) != "date":
        return None
    time = _event_time(plan, cast.child())
    if time is None or unit is None:
        return None
    return CalendarKey(id_of(group), time, Calendar(unit, _zone_of(cast)), node)


def _bucket_key(catalyst: Catalyst, plan: InputPlan, group: JavaObject, bucket: JavaObject) -> CalendarKey | None:
    """The key `time_bucket(length, t)`, if its length is less than a day, or a unit of the calendar."""
    length, time, origin = bucket.bucketSize(), _event_time(plan, bucket.ts()), bucket.originTs()
    if time is None or not (length.foldable() and origin.foldable()):
        return None
    size, origin_us, zone = catalyst.constant(length), catalyst.constant(origin), _zone_of(bucket)
    if not (isinstance(size, int) and isinstance(origin_us, int) and size > 0):
        return None
    in_months = counts_months(type_of(length))
    if not in_months and (size < DAY_US or _is_fixed(zone)):
        return CalendarKey(id_of(group), time, Sliding(size, size, origin_us % size))
    unit = (_MONTHS if in_months else _WHOLE_DAYS).get(size)
    if unit is None or repeats_midnight(zone) or Dates(unit, zone).floor(np.array([origin_us]))[0] != origin_us:
        return None
    return CalendarKey(id_of(group), time, Calendar(unit, zone), bucket)


def of_start(catalyst: Catalyst, value: JavaObject) -> Projected:
    """The `value` of a key at the start of the window."""
    start = Column("window.start", "timestamp")
    return projected_above(catalyst, value, value, lambda _column: start)


def _level(catalyst: Catalyst, node: JavaObject) -> str:
    """The unit that an expression is truncated to, if it is constant; else an empty text."""
    value = catalyst.constant(node) if kind_of(node) == "Literal" else None
    return value.upper() if isinstance(value, str) else ""


def _event_time(plan: InputPlan, node: JavaObject) -> JavaObject | None:
    """The column with the watermark that an expression is, under any name; None if it is another expression."""
    while kind_of(node) in ("AttributeReference", "Alias"):
        if kind_of(node) == "Alias":
            node = node.child()
        elif delay_ms(node) is not None:
            return node if type_of(node) == "timestamp" else None
        elif id_of(node) in plan.definitions:
            node = plan.definitions[id_of(node)]
        else:
            return None
    return None


def _zone_of(node: JavaObject) -> str:
    """The time zone of an expression."""
    return zone_name(node.zoneId())


def zone_name(zone_id: JavaObject) -> str:
    """The name of Java's time zone: that of a region, or an offset."""
    zone = str(zone_id.normalized().getId())
    return "UTC" if zone in ("Z", "GMT") else zone


def _regular(length_us: int, zone: str, level: str) -> Sliding:
    phases = remainders(zone, length_us)
    if len(phases) > 1:
        raise UnsupportedQuery(
            f"In the time zone {zone}, clocks were changed by part of a {level}, so the length of a {level} varies.",
            "Use window(ts, …), or truncate to days.",
        )
    return Sliding(length_us, length_us, -phases[0] % length_us)


def _is_fixed(zone: str) -> bool:
    return zone[:1] in "+-" or zone == "UTC"


def _calendar(unit: Unit, zone: str) -> Sliced:
    if not _is_fixed(zone) or unit not in _DAYS:
        return Calendar(unit, zone)
    days, first = _DAYS[unit]
    length = days * DAY_US
    return Sliding(length, length, (first * DAY_US - remainders(zone, length)[0]) % length)
