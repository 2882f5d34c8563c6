"""Windows close when the watermark passes their end, each once, and only those that hold a slice with events."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from millpond.arrays import Ints
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.windows import Cumulating, Sliced, Sliding
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.edges import slices_of
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.task.task_values import SectionPlace, Watermark
from millpond.runtime.windows.closing import Closing, batches, closing_windows, touched

S = 1_000_000


def group_of(*windows: tuple[Sliced, int]) -> GroupPlan:
    count = Aggregate("count", None, None, "bigint")
    output = (Named("n", Column("agg:0", "bigint")),)
    queries = [
        Query(f"q{i}", "s", "ts", delay, window, (), (count,), output) for i, (window, delay) in enumerate(windows)
    ]
    return build_plan(queries).groups[0]


def naive(group: GroupPlan, times: list[int], before: Watermark, after: Watermark) -> set[Closing]:
    found = set()
    for plan in group.queries:
        low, high = before.at(plan.query.delay_us), after.at(plan.query.delay_us)
        for time in times:
            for start, end in plan.query.window.assign(time):
                if high is not None and end <= high and (low is None or end > low):
                    found.add(Closing(end, start, group.windows.index(plan.query.window), plan.delay))
    return found


def slices(group: GroupPlan, times: list[int]) -> tuple[Ints, Ints]:
    found = slices_of(group.windows, np.array(times))
    used = np.unique(found.position)
    return found.starts_us[used], found.ends_us[used]


def test_a_window_closes_once_when_the_watermark_reaches_its_end() -> None:
    #   windows      [0 ....... 10)[10 ...... 20)
    #   event            3
    #   watermark          7 | 10 | 12 | 25
    group = group_of((Sliding(10, 10), 0))
    marks = [Watermark(None), Watermark(7), Watermark(10), Watermark(12), Watermark(25)]
    steps = itertools.pairwise(marks)
    closed = [closing_windows(group, *slices(group, [3]), before, after) for before, after in steps]
    assert closed == [[], [Closing(10, 0, 0, 0)], [], []]


def test_windows_come_in_the_order_of_their_ends() -> None:
    #   45 every 15   [-30 .. 15) [-15 .. 30) [0 .. 45)       20 every 20   [0 .. 20)       event at 3
    group = group_of((Sliding(45, 15), 0), (Sliding(20, 20), 5))
    found = closing_windows(group, *slices(group, [3]), Watermark(), Watermark(100))
    assert [(window.start_us, window.end_us, window.delay) for window in found] == [
        (-30, 15, 0), (0, 20, 1), (-15, 30, 0), (0, 45, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(150))
def test_closing_windows_are_the_naive_ones(seed: int) -> None:
    dice = random.Random(seed)
    windows = []
    for _ in range(dice.randint(1, 4)):
        slide = dice.randint(1, 12)
        window: Sliced = Sliding(dice.randint(slide, 40), slide, dice.randint(0, slide - 1))
        if dice.random() < 0.3:
            window = Cumulating(slide * dice.randint(1, 6), slide, dice.randint(0, slide - 1))
        windows.append((window, dice.choice((0, 3, 20))))
    group = group_of(*windows)
    times = [dice.randint(-60, 60) for _ in range(dice.randint(1, 8))]
    marks = sorted(dice.randint(-80, 150) for _ in range(4))
    steps = [Watermark(), *(Watermark(mark) for mark in marks), Watermark(marks[-1], marks[-1] + 100)]
    for before, after in itertools.pairwise(steps):
        found = closing_windows(group, *slices(group, times), before, after)
        assert len(found) == len(set(found))
        assert found == sorted(found)
        assert set(found) == naive(group, times, before, after)
        bounds = list(zip(*map(np.ndarray.tolist, slices(group, times)), strict=True))
        parts = [bounds[i::3] for i in range(3) if bounds[i::3]]
        places = [SectionPlace("", "", False, 0, 0, 1, last_us=max(ends), first_us=min(starts))
                  for starts, ends in (zip(*part, strict=True) for part in parts)]  # fmt: skip
        near = touched(group, places, before, after)
        read = [one for i in near for one in parts[i]]
        for window in found:
            held = [one for one in bounds if window.start_us <= one[0] and one[1] <= window.end_us]
            assert {*held} <= {*read}, "all that a window is made of is read"
        assert bool(near) >= bool(found)


def test_what_is_far_from_a_watermark_is_not_read() -> None:
    #   watermark 5000 -> 5010; windows of 10, and of 3600 that are open for another 100,000
    group = group_of((Sliding(10, 10), 0), (Sliding(3600, 3600), 100_000))
    bounds = (0, 3600, 1), (4980, 4990, 1), (5000, 5010, 1), (5010, 5020, 1), (0, 9000, 1), (5000, 5010, 0)
    places = [SectionPlace("", "", False, 0, 0, rows, last_us=last, first_us=first) for first, last, rows in bounds]
    assert touched(group, places, Watermark(5000), Watermark(5010)) == [2, 4]
    assert touched(group, places, Watermark(5010), Watermark(5010)) == []
    assert touched(group, places, Watermark(), Watermark(5010)) == [0, 1, 2, 4]
    unknown = [SectionPlace("", "", False, 0, 0, 1)]
    assert touched(group, unknown, Watermark(5000), Watermark(5010)) == [0]


def test_nothing_is_read_where_no_window_ends() -> None:
    group = group_of((Sliding(10, 10), 0), (Sliding(3600, 3600, 5), 0))
    bounds = (0, 3600), (4980, 4990), (5000, 5010)
    places = [SectionPlace("", "", False, 0, 0, 1, last_us=last, first_us=first) for first, last in bounds]
    assert touched(group, places, Watermark(5001), Watermark(5009)) == []
    assert touched(group, places, Watermark(5001), Watermark(5010)) == [2]
    assert touched(group, places, Watermark(3601), Watermark(3604)) == []
    assert touched(group, places, Watermark(3601), Watermark(3605)) == [0]


def test_a_long_silence_visits_no_empty_window() -> None:
    #   events at 0 and 3 s, then nothing for fifty years
    group = group_of((Sliding(10 * S, S), 5 * S), (Sliding(S, S), 0))
    found = closing_windows(group, *slices(group, [0, 3 * S]), Watermark(4 * S), Watermark(50 * 365 * 86_400 * S))
    assert len([window for window in found if group.windows[window.window].size_us == 10 * S]) == 13
    assert len(found) == 13  # those of a second had closed before


def test_seven_days_by_one_second_with_few_slices() -> None:
    day = 86_400 * S
    group = group_of((Sliding(7 * day, S), 0))
    times = [0, day // 2 + 1, 2 * day + 5]
    found = closing_windows(group, *slices(group, times), Watermark(2 * day + 5), Watermark(2 * day + 10 * S))
    assert [window.end_us for window in found] == [2 * day + k * S for k in range(1, 11)]
    everything = closing_windows(group, *slices(group, times), Watermark(), Watermark(30 * day))
    assert len(everything) == 7 * 86_400 + 2 * 86_400
    assert all(b.end_us - a.end_us == S for a, b in itertools.pairwise(everything))


def test_no_slices_close_nothing() -> None:
    none = np.zeros(0, np.int64)
    assert closing_windows(group_of((Sliding(10, 10), 0)), none, none, Watermark(), Watermark(100)) == []


def test_windows_far_from_1970_stay_in_int64() -> None:
    far = 1 << 62
    group = group_of((Sliding(7 * S, 3 * S), 0))
    for time in (far, -far):
        found = closing_windows(group, *slices(group, [time]), Watermark(), Watermark(far + 100 * S))
        assert set(found) == naive(group, [time], Watermark(), Watermark(far + 100 * S))


def test_batches_cover_all_windows_in_order() -> None:
    windows = [Closing(i, 0, 0, 0) for i in range(10)]
    assert [len(run) for run in batches(windows, 4)] == [4, 4, 2]
    assert [window for run in batches(windows, 4) for window in run] == windows
    assert list(batches([], 4)) == []
