"""Lengths of time in months, which are counted by the calendar of a time zone."""

from __future__ import annotations

import msgspec
import numpy as np

from millpond.arrays import Ints
from millpond.model.calendars.grids import LONGEST_DAYS
from millpond.model.calendars.zone_offsets import DAY_US, check_zone, instants_of, local_times


class Months(msgspec.Struct, frozen=True):
    """A number of months on the local clock of a time zone.

    Raises:
        QueryTypeError: this host does not know the zone.
    """

    number: int
    zone: str

    def __post_init__(self) -> None:
        check_zone(self.zone)

    @property
    def longest_us(self) -> int:
        """A time that the months never exceed."""
        return self.number * LONGEST_DAYS["month"] * DAY_US

    def before(self, times_us: Ints) -> Ints:
        """For each instant, the one that is earlier by these months, as Spark computes it.

        >>> day = 86_400_000_000
        >>> (Months(1, "UTC").before(np.array([59 * day, 58 * day])) // day).tolist()  # 1970-03-01 and 02-28
        [31, 27]
        """
        local = local_times(self.zone, times_us)
        return instants_of(self.zone, _earlier(local, self.number), local - times_us)


def _earlier(local_us: Ints, months: int) -> Ints:
    """Local times some months earlier; a day that the month does not have becomes its last day."""
    days = np.floor_divide(local_us, DAY_US)
    dates = days.astype("datetime64[D]")
    month = dates.astype("datetime64[M]")
    first, earlier = month.astype("datetime64[D]"), month - months
    begin, end = earlier.astype("datetime64[D]"), (earlier + 1).astype("datetime64[D]")
    moved = begin + np.minimum(dates - first, end - begin - 1)
    shown: Ints = moved.astype(np.int64) * DAY_US + (local_us - days * DAY_US)
    return shown
