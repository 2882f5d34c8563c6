"""Windows by the calendar of a time zone are those that a clock shows, on both sides of every change of the clock."""

from __future__ import annotations

import itertools
import random
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from kit.naive.calendar import naive_before, naive_window
from millpond.errors import QueryTypeError
from millpond.model.calendars.grids import Dates, Regular, Unit
from millpond.model.calendars.months import Months
from millpond.model.calendars.zone_offsets import first_instants, last_instants, local_times
from millpond.model.windows import Calendar, Cumulating, Interval

HOUR = 3_600_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

CHANGES = {
    "Europe/Berlin": ((2026, 3, 29), (2026, 10, 25), (1980, 4, 6), (2050, 3, 27), (2437, 10, 25)),
    "America/Havana": ((2025, 3, 9), (2025, 11, 2)),  # midnight is skipped, and repeated
    "America/Sao_Paulo": ((2018, 11, 4), (2018, 2, 18)),  # at midnight
    "Australia/Lord_Howe": ((2026, 4, 5), (2026, 10, 4)),  # by half an hour
    "Pacific/Apia": ((2011, 12, 30),),  # a day is skipped
    "Africa/Casablanca": ((2026, 2, 15), (2026, 3, 22)),
    "Asia/Kathmandu": ((1986, 1, 1), (2026, 1, 1)),
    "Asia/Kolkata": ((2026, 1, 1), (2436, 12, 31)),
}
UNITS: tuple[Unit, ...] = ("day", "date", "week", "month", "quarter", "year")


def us(*parts: int) -> int:
    return (datetime(*parts, tzinfo=timezone.utc) - EPOCH) // timedelta(microseconds=1)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize("zone", CHANGES)
def test_windows_around_changes_of_the_clock_are_the_naive_ones(zone: str) -> None:
    dice = random.Random(zone)
    for change in CHANGES[zone]:
        times = [us(*change) + dice.randint(-40 * HOUR, 40 * HOUR) for _ in range(12)]
        for unit in ("day", "date", dice.choice(UNITS[2:4])):
            grid, array = Dates(unit, zone), np.array(times)
            expected = [naive_window(unit, zone, time) for time in times]
            assert list(zip(grid.floor(array).tolist(), grid.after(array).tolist(), strict=True)) == expected
            bounds = sorted({bound for window in expected for bound in window})
            edges = grid.between(min(times), max(times)).tolist()
            assert (edges[0], edges[-1]) == (bounds[0], bounds[-1])
            assert {*bounds} <= {*edges}
            assert all(naive_window(unit, zone, one) == (one, next_) for one, next_ in itertools.pairwise(edges))


@pytest.mark.parametrize("zone", CHANGES)
def test_times_some_months_earlier_are_the_naive_ones(zone: str) -> None:
    dice = random.Random(zone)
    for number in (1, 8, 25):
        months = Months(number, zone)
        changes = [us(*change) for change in CHANGES[zone]] + [us(2024, 3, 31), us(2025, 3, 29)]
        later = [change + (30 * number + number // 2) * 24 * HOUR for change in changes]
        times = [at + dice.randint(-240, 240) * HOUR // 4 for at in later for _ in range(60)]
        expected = [naive_before(months, time) for time in times]
        assert months.before(np.array(times)).tolist() == expected
        assert all(0 < time - before <= months.longest_us for time, before in zip(times, expected, strict=True))


@pytest.mark.parametrize("unit", UNITS[2:])
def test_long_windows_begin_at_local_midnight(unit: Unit) -> None:
    window = Calendar(unit, "Europe/Berlin")
    start, end = window.assign(us(2026, 10, 25, 12))[0]
    assert (start, end) == naive_window(unit, "Europe/Berlin", us(2026, 10, 25, 12))
    assert end - start <= window.longest_us


def test_a_day_of_berlin_has_23_24_or_25_hours() -> None:
    days = Calendar("date", "Europe/Berlin")
    spring = [days.assign(us(2026, 3, day, 9))[0] for day in (28, 29)]
    lengths = [(window.end_us - window.start_us) // HOUR for window in spring]
    assert lengths == [24, 23]
    assert days.assign(us(2026, 10, 25, 9)) == [Interval(us(2026, 10, 24, 22), us(2026, 10, 25, 23))]


def test_a_repeated_midnight_begins_another_day_but_not_another_date() -> None:
    #   Havana on 2025-11-02      00:00 … 01:00 | 00:00 … 24:00
    noon = us(2025, 11, 2, 17)
    assert Calendar("date", "America/Havana").assign(noon) == [Interval(us(2025, 11, 2, 4), us(2025, 11, 3, 5))]
    assert Calendar("day", "America/Havana").assign(noon) == [Interval(us(2025, 11, 2, 5), us(2025, 11, 3, 5))]


def test_local_times_and_instants_are_inverse_also_far_away_and_for_offsets() -> None:
    for zone in ("Europe/Berlin", "+05:45", "-00:00:25", "UTC", "America/St_Johns"):
        times = np.array([-(1 << 62), us(1799, 1, 1), us(1893, 4, 1, 12), 0, us(2026, 7, 1), us(9999, 12, 31), 1 << 62])
        local = local_times(zone, times)
        assert (first_instants(zone, local) == times).all()
        assert (last_instants(zone, local) == times).all()
    assert local_times("Europe/Berlin", np.array([us(9999, 7, 1)])).tolist() == [us(9999, 7, 1, 2)]


def test_no_times_have_no_dates() -> None:
    for unit in UNITS:
        grid, none = Dates(unit, "Europe/Berlin"), np.zeros(0, np.int64)
        assert (len(grid.floor(none)), len(grid.after(none))) == (0, 0)


def test_a_grid_contains_those_that_begin_only_where_it_does() -> None:
    date, month, week = (Dates(unit, "Europe/Berlin") for unit in ("date", "month", "week"))
    assert date.contains(month)
    assert date.contains(week)
    assert not month.contains(date)
    assert not week.contains(month)
    assert not date.contains(Dates("date", "Europe/Paris"))
    assert not date.contains(Regular(0, 24 * HOUR))
    assert not Regular(0, HOUR).contains(date)
    assert Regular(0, 10).contains(Regular(20, 30))
    assert not Regular(0, 10).contains(Regular(5, 30))


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", ""])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(QueryTypeError, match="not in the time zone database"):
        Calendar("day", zone)


def test_windows_grow_by_steps() -> None:
    #   [2 . 12) [2 .. 22) [2 ... 32) | [32 . 42) …
    window = Cumulating(30, 10, 2)
    assert window.assign(12) == [Interval(2, 22), Interval(2, 32)]
    assert window.assign(1) == [Interval(-28, 2)]
    for end in range(-8, 62, 10):
        assert Interval(window.start_of(end), end) in window.assign(end - 1)
        assert window.next_end(end - 1) == end
    assert [window.first_open(mark) for mark in (1, 2, 31, 32)] == [-28, 2, 2, 32]
    assert [window.next_start(time) for time in (1, 2, 3)] == [2, 2, 32]
    assert window.last_ends(np.array([2, 31, 32])).tolist() == [32, 32, 62]


@pytest.mark.parametrize(("size", "step", "offset"), [(30, 0, 0), (30, 20, 0), (10, 20, 0), (30, 10, 30)])
def test_windows_that_do_not_grow_to_their_size_are_refused(size: int, step: int, offset: int) -> None:
    with pytest.raises(QueryTypeError):
        Cumulating(size, step, offset)
