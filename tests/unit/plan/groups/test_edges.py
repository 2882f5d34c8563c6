"""Edges cut event time where windows start or end, and every event finds its slice."""

from __future__ import annotations

import random

import numpy as np
import pytest

from millpond.model.calendars.zone_offsets import DAY_US
from millpond.model.windows import Calendar, Cumulating, Sliced, Sliding
from millpond.plan.groups.edges import edges_between, slice_of, slices_of

S = 1_000_000


def naive_edges(windows: list[Sliding], first: int, last: int) -> list[int]:
    longest = max(window.size_us for window in windows) + max(window.slide_us for window in windows)
    found = set()
    for window in windows:
        start = first - 2 * longest
        start += (window.offset_us - start) % window.slide_us
        while start <= last + 2 * longest:
            found |= {start, start + window.size_us}
            start += window.slide_us
    before = max(edge for edge in found if edge <= first)
    after = min(edge for edge in found if edge > last)
    return sorted(edge for edge in found if before <= edge <= after)


def naive_sliced_edges(windows: list[Sliced], first: int, last: int) -> list[int]:
    """The same from the windows of every moment; for windows of few microseconds, or of days."""
    found: set[int] = set()
    for window in windows:
        reach = window.longest_us
        times = range(first - reach, last + reach + 1, DAY_US // 3 if isinstance(window, Calendar) else 1)
        found |= {bound for time in times for bounds in window.assign(time) for bound in bounds}
    before = max(edge for edge in found if edge <= first)
    after = min(edge for edge in found if edge > last)
    return sorted(edge for edge in found if before <= edge <= after)


def random_windows(dice: random.Random) -> list[Sliding]:
    windows = []
    for _ in range(dice.randint(1, 4)):
        slide = dice.randint(1, 12)
        windows.append(Sliding(dice.randint(slide, 40), slide, dice.randint(0, slide - 1)))
    return windows


def test_edges_of_two_windows() -> None:
    #   45 every 15   ..0....15....30....45          start and end of each fall on multiples of 15
    #   20 every 20   ..0......20......40
    #   requested             [21 ..... 39]
    windows = [Sliding(45, 15), Sliding(20, 20)]
    assert edges_between(windows, 21, 39).tolist() == [20, 30, 40]
    assert edges_between(windows, 20, 20).tolist() == [20, 30]
    assert edges_between(windows, -1, -1).tolist() == [-15, 0]


def test_a_window_that_is_no_multiple_of_its_slide_cuts_at_its_ends_too() -> None:
    #   7 every 3     0  3  6 7 9 10 12 13     ends at 7, 10, 13, … = 1 modulo 3
    assert edges_between([Sliding(7, 3)], 0, 8).tolist() == [0, 1, 3, 4, 6, 7, 9]


@pytest.mark.parametrize("seed", range(100))
def test_edges_and_slices_are_the_naive_ones_also_before_1970(seed: int) -> None:
    dice = random.Random(seed)
    windows = random_windows(dice)
    first = dice.randint(-200, 100)
    last = first + dice.randint(0, 120)
    edges = edges_between(windows, first, last)
    assert edges.tolist() == naive_edges(windows, first, last)
    times = np.array([first, last, *(dice.randint(first, last) for _ in range(30))])
    expected = [max(i for i, edge in enumerate(edges) if edge <= time) for time in times]
    assert slice_of(times, edges).tolist() == expected


@pytest.mark.parametrize("seed", range(40))
def test_slices_of_events_far_apart_are_the_same_few(seed: int) -> None:
    #   events   ||| . . . . . . a million slides . . . . . . |||
    dice = random.Random(seed)
    windows = random_windows(dice)
    near = [dice.randint(-50, 50) for _ in range(20)]
    times = np.array([*near, *(time + dice.choice((0, 10**9, -(10**9))) for time in near)])
    found = slices_of(windows, times)
    assert (found.starts_us[found.position] <= times).all()
    assert (times < found.ends_us[found.position]).all()
    for start, end in zip(found.starts_us.tolist(), found.ends_us.tolist(), strict=True):
        assert naive_edges(windows, start, start) == [start, end]
    assert len(found.starts_us) <= 70_000


def test_slices_of_events_close_together_are_those_between_their_edges() -> None:
    found = slices_of([Sliding(10, 10)], np.array([25, 3, 29]))
    assert (found.starts_us.tolist(), found.ends_us.tolist(), found.position.tolist()) == (
        [0, 10, 20],
        [10, 20, 30],
        [2, 0, 2],
    )


@pytest.mark.parametrize("seed", range(30))
def test_growing_windows_cut_at_every_step(seed: int) -> None:
    dice = random.Random(seed)
    step = dice.randint(1, 6)
    size = step * dice.randint(1, 5)
    windows = [Cumulating(size, step, dice.randrange(size)), *random_windows(dice)[:1]]
    times = [dice.randint(-60, 60) for _ in range(9)]
    first, last = min(times), max(times)
    assert edges_between(windows, first, last).tolist() == naive_sliced_edges(windows, first, last)
    far = slices_of(windows, np.array([*times, *(time + 10**9 for time in times)]))
    slices = [[int(far.starts_us[i]), int(far.ends_us[i])] for i in far.position[:9]]
    assert slices == [naive_sliced_edges(windows, time, time) for time in times]


def test_days_of_two_zones_cut_each_other() -> None:
    #   Berlin   22 22 22 23 …      New York    4 4 4 4 5 …      (hours UTC of midnight, October 2026)
    windows: list[Sliced] = [Calendar("date", "Europe/Berlin"), Calendar("day", "America/New_York")]
    first = 1_792_700_000 * S
    last = first + 15 * DAY_US
    assert edges_between(windows, first, last).tolist() == naive_sliced_edges(windows, first, last)
    centuries = np.array([first, last, first + 200_000 * DAY_US, first - 200_000 * DAY_US])
    far = slices_of([*windows, Sliding(S, S)], centuries)
    assert (far.starts_us[far.position] == centuries).all()
    found = slices_of(windows, centuries[:2])
    assert [found.starts_us[i] for i in found.position] == [naive_sliced_edges(windows, t, t)[0] for t in (first, last)]


def test_an_event_in_1970_and_one_today_share_a_chunk_in_little_memory() -> None:
    times = np.array([0, 1_700_000_000 * S + 1])
    found = slices_of([Sliding(S, S), Sliding(7 * S, 3 * S)], times)
    assert found.starts_us.tolist() == [0, 1_700_000_000 * S]
    assert found.ends_us.tolist() == [S, 1_700_000_001 * S]
    assert found.position.tolist() == [0, 1]


def test_edges_without_a_common_grid_are_searched() -> None:
    # gcd of the steps is 1 microsecond over three hours: a table would have 10^10 cells
    windows = [Sliding(3600 * S, 3600 * S), Sliding(3599 * S + 1, 3599 * S + 1)]
    times = np.array([0, 3600 * S, 3599 * S, 10_000 * S])
    edges = edges_between(windows, 0, 10_000 * S)
    assert slice_of(times, edges).tolist() == [int(np.searchsorted(edges, time, "right")) - 1 for time in times]


def test_many_events_are_looked_up_in_a_table_as_in_a_search() -> None:
    dice = np.random.default_rng(1)
    times = dice.integers(-50 * S, 50 * S, 50_000)
    edges = edges_between([Sliding(S, S), Sliding(700_000, 700_000, 3)], int(times.min()), int(times.max()))
    assert (slice_of(times, edges) == np.searchsorted(edges, times, "right") - 1).all()
