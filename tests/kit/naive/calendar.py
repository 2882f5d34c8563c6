"""The naive twin of windows by the calendar: adds seconds to a time until the local clock shows another unit."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from millpond.model.calendars.grids import Unit

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
