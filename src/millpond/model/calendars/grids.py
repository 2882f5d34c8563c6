"""Grids: the times at which windows begin or end, at equal distances or by the calendar of a time zone."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from millpond.arrays import Ints, distinct_of
from millpond.model.calendars.zone_offsets import DAY_US, first_instants, last_instants, local_times

Unit = Literal["day", "date", "week", "month", "quarter", "year"]
"""A unit of the calendar. A `date` is one interval; a `day` begins again when clocks repeat its midnight, as Spark's
`date_trunc('DAY', …)` does. A week begins on Monday."""

LONGEST_DAYS: dict[Unit, int] = {"day": 2, "date": 2, "week": 8, "month": 32, "quarter": 93, "year": 367}
"""By unit, a number of days that no window exceeds."""

SHORTEST_DAYS: dict[Unit, int] = {"day": 1, "date": 1, "week": 7, "month": 28, "quarter": 90, "year": 365}
"""By unit, the length of the shortest window in days. A change of the clock can make a window shorter."""

_MONTHS: dict[Unit, int] = {"month": 1, "quarter": 3, "year": 12}
_FORECAST_DAYS = 100 * 366
_MONDAY = 4
"""The first Monday, in days after 1970-01-01."""


class Regular(NamedTuple):
    """Times that are `phase_us` modulo `step_us`."""

    phase_us: int
    step_us: int

    @property
    def typical_us(self) -> int:
        """The least distance of adjacent times of the grid, without changes of the clock."""
        return self.step_us

    def floor(self, times_us: Ints) -> Ints:
        """For each time, the last time of the grid at or before it."""
        floor: Ints = times_us - (times_us - self.phase_us) % self.step_us
        return floor

    def after(self, times_us: Ints) -> Ints:
        """For each time, the first time of the grid after it."""
        return self.floor(times_us) + self.step_us

    def between(self, first_us: int, last_us: int) -> Ints:
        """The times of the grid from the last one at or before `first_us` to the first one after `last_us`.

        >>> Regular(0, 15).between(21, 39).tolist()
        [15, 30, 45]
        """
        low = first_us - (first_us - self.phase_us) % self.step_us
        high = last_us - (last_us - self.phase_us) % self.step_us + self.step_us
        # exact, however long a step
        return low + self.step_us * np.arange((high - low) // self.step_us + 1, dtype=np.int64)

    def contains(self, other: EdgeGrid) -> bool:
        """Whether this grid has all times of another one."""
        if not isinstance(other, Regular):
            return False
        return other.step_us % self.step_us == 0 and (other.phase_us - self.phase_us) % self.step_us == 0


class Dates(NamedTuple):
    """The instants at which a unit of the calendar begins in a time zone."""

    unit: Unit
    zone: str

    @property
    def typical_us(self) -> int:
        """The least distance of adjacent times of the grid, without changes of the clock."""
        return SHORTEST_DAYS[self.unit] * DAY_US

    def floor(self, times_us: Ints) -> Ints:
        """For each time, the last time of the grid at or before it."""
        near = self._near(times_us)
        floor: Ints = np.where(near <= times_us, near, near[0]).max(axis=0)
        return floor

    def after(self, times_us: Ints) -> Ints:
        """For each time, the first time of the grid after it."""
        near = self._near(times_us)
        after: Ints = np.where(near > times_us, near, near[-1]).min(axis=0)
        return after

    def between(self, first_us: int, last_us: int) -> Ints:
        """The times of the grid from the last one at or before `first_us` to the first one after `last_us`.

        >>> hour = 3_600_000_000
        >>> days = Dates("date", "Europe/Berlin").between(0, 24 * hour)
        >>> (days // hour).tolist()
        [-1, 23, 47]
        """
        low, high = self._numbers(np.array([first_us, last_us])).tolist()
        begins = self._begins(np.arange(low - 2, high + 4))
        found = distinct_of(np.concatenate(begins))
        begin = int(np.searchsorted(found, first_us, "right")) - 1
        return found[begin : int(np.searchsorted(found, last_us, "right")) + 1]

    def contains(self, other: EdgeGrid) -> bool:
        """Whether this grid has all times of another one.

        >>> Dates("date", "UTC").contains(Dates("month", "UTC")), Dates("week", "UTC").contains(Dates("month", "UTC"))
        (True, False)
        """
        if not isinstance(other, Dates) or other.zone != self.zone:
            return False
        return other.unit == self.unit or other.unit in _FINER_THAN[self.unit]

    def _near(self, times_us: Ints) -> Ints:
        """For each time, the begins of its unit and of the next two; the first is not later than the time."""
        # Three units are enough, because no clock jumps back by more than a day.
        numbers = self._numbers(times_us)
        return np.stack([begin for later in range(3) for begin in self._begins(numbers + later)])

    def _numbers(self, times_us: Ints) -> Ints:
        """The number of the unit that the local clock shows at each time."""
        local = local_times(self.zone, times_us)
        if self.unit in _MONTHS:
            months = local.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
            return np.floor_divide(months, _MONTHS[self.unit])
        days = np.floor_divide(local, DAY_US)
        return np.floor_divide(days - _MONDAY, 7) if self.unit == "week" else days

    def _begins(self, numbers: Ints) -> tuple[Ints, ...]:
        """The instants at which the units with these numbers first begin and, for days, also last begin."""
        if self.unit in _MONTHS:
            months = (numbers * _MONTHS[self.unit]).astype("datetime64[M]")
            local = months.astype("datetime64[us]").astype(np.int64)
        else:
            local = (numbers * 7 + _MONDAY if self.unit == "week" else numbers) * DAY_US
        first = first_instants(self.zone, local)
        return (first, last_instants(self.zone, local)) if self.unit == "day" else (first,)


@lru_cache(1 << 8)
def repeats_midnight(zone: str) -> bool:
    """Whether the clock of a zone has shown a midnight twice since 1970, or will.

    >>> repeats_midnight("Europe/Berlin"), repeats_midnight("America/Havana")
    (False, True)
    """
    since_us, until_us = 0, _FORECAST_DAYS * DAY_US
    days, dates = (Dates(unit, zone).between(since_us, until_us) for unit in ("day", "date"))
    return len(days) != len(dates)


_FINER_THAN: dict[Unit, tuple[Unit, ...]] = {
    "day": ("date", "week", "month", "quarter", "year"), "date": ("week", "month", "quarter", "year"), "week": (),
    "month": ("quarter", "year"), "quarter": ("year",), "year": (),
}  # fmt: skip
"""By unit, the longer units that begin only where it begins."""

EdgeGrid: TypeAlias = Regular | Dates
"""The times at which windows begin or end."""
