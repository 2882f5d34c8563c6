"""Naive twins of windows by the calendar, whose bounds are searched in steps, and of months."""

from __future__ import annotations

from calendar import monthrange
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from millpond.model.calendars.grids import Unit
from millpond.model.calendars.months import Months

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
STEP = timedelta(minutes=15)


def naive_window(unit: Unit, zone: str, time_us: int) -> tuple[int, int]:
    """The window [start, end) of a time, found in steps of 15 minutes: changes of the clock must be at such minutes."""
    rules = ZoneInfo(zone)
    time = EPOCH + timedelta(microseconds=time_us)
    at = time - timedelta(minutes=time.minute % 15, seconds=time.second, microseconds=time.microsecond)
    start = at
    while not _begins(unit, rules, start):
        start -= STEP
    end = at + STEP
    while not _begins(unit, rules, end):
        end += STEP
    return (start - EPOCH) // timedelta(microseconds=1), (end - EPOCH) // timedelta(microseconds=1)


def naive_before(length: Months, time_us: int) -> int:
    """The time that is some months earlier; of a repeated time that with the same offset, or else the first one."""
    local = (EPOCH + timedelta(microseconds=time_us)).astimezone(ZoneInfo(length.zone))
    months = local.year * 12 + local.month - 1 - length.number
    year, month = months // 12, months % 12 + 1
    moved = local.replace(year=year, month=month, day=min(local.day, monthrange(year, month)[1]))
    first, second = moved.replace(fold=0), moved.replace(fold=1)
    moment = first.astimezone(timezone.utc).astimezone(moved.tzinfo)
    skipped = moment.replace(tzinfo=None) != moved.replace(tzinfo=None)
    same = second if not skipped and second.utcoffset() == local.utcoffset() else moment
    return (same - EPOCH) // timedelta(microseconds=1)


def _begins(unit: Unit, rules: ZoneInfo, instant: datetime) -> bool:
    """Whether the local clock shows another unit than a moment before; a day also begins at a repeated midnight."""
    before, now = (at.astimezone(rules) for at in (instant - timedelta(microseconds=1), instant))
    if unit == "day" and (now.hour, now.minute) == (0, 0):
        return True
    return _unit(unit, before) != _unit(unit, now)


def _unit(unit: Unit, local: datetime) -> tuple[int, ...]:
    if unit == "week":
        return local.isocalendar()[:2]
    months = {"month": 1, "quarter": 3, "year": 12}
    if unit in months:
        return (local.year, (local.month - 1) // months[unit])
    return (local.year, local.month, local.day)
