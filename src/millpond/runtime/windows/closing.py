"""Finds the windows that close when a watermark advances; visits only windows that touch a slice with events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from millpond.arrays import Ints, ordered
from millpond.model.windows import Sliced
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.task.task_values import SectionPlace, Watermark

WINDOWS_AT_ONCE = 512
"""The most windows that are computed from the same arrays, which are filled once for all of them."""

EVENTS_AT_ONCE = 1 << 24
"""The most pairs of a window and an event of the log that are processed at once; bounds memory."""


class Closing(NamedTuple):
    """A window [start, end) that closes now, for the queries of window position `window` and delay `delay`."""

    end_us: int
    start_us: int
    window: int
    delay: int


def closing_windows(
    group: GroupPlan, starts_us: Ints, ends_us: Ints, before: Watermark, after: Watermark
) -> list[Closing]:
    """The windows of the group that contain a slice [start, end) and whose end the watermark passes, ordered by end.

    Windows of queries with updating results are not included; `rows.window_updates` emits them.
    """
    windows = []
    for (position, delay), (from_us, before_us) in sorted(_windows_by_delay(group).items()):
        passed = _passed(group, delay, before, after)
        if passed is None:
            continue
        window = group.sliding[position]
        for end in ends_over(window, starts_us, ends_us, *passed):
            if from_us <= (start := window.start_of(end)) < before_us:
                windows.append(Closing(end, start, position, delay))
    return sorted(windows)


def touched(group: GroupPlan, places: Sequence[SectionPlace], before: Watermark, after: Watermark) -> list[int]:
    """The positions of the segments that may contain a slice of a window that closes; no other segment is read."""
    spans = list(_spans(group, before, after))
    return [i for i, place in enumerate(places) if place.rows and any(_meets(place, *span) for span in spans)]


def may_close(group: GroupPlan, before: Watermark, after: Watermark) -> bool:
    """Whether the watermark passes the end of some window, which closes if it contains slices."""
    return any(True for _ in _spans(group, before, after))


def each_closes(group: GroupPlan, before: Watermark, after: Watermark) -> bool:
    """Whether the previous and the next epoch may close windows too, if event time advances in them as in this."""
    if before.max_time_us is None or after.max_time_us is None:
        return False
    gained = after.max_time_us - before.max_time_us
    earlier = Watermark(before.max_time_us - gained, before.floor_us)
    return may_close(group, earlier, before) and may_close(group, after, after.advanced(after.max_time_us + gained))


def _spans(group: GroupPlan, before: Watermark, after: Watermark) -> Iterator[tuple[int | None, int]]:
    """For each window and delay with passed ends, the range (low, high] of the slices of the closing windows."""
    for position, delay in _windows_by_delay(group):
        passed, window = _passed(group, delay, before, after), group.sliding[position]
        if passed is not None:
            low, high = passed
            if low is None or window.next_end(low) <= high:
                yield None if low is None else low - window.longest_us, high


def _windows_by_delay(group: GroupPlan) -> dict[tuple[int, int], tuple[int, int]]:
    """The sliding windows of queries without updating results, by position and delay.

    The values are the range of window starts that these queries answer, [first, until).
    """
    pairs: dict[tuple[int, int], tuple[int, int]] = {}
    for plan in group.celled:
        if plan.query.changing or not isinstance(plan.query.window, Sliced):
            continue
        pair = group.windows.index(plan.query.window), plan.delay
        first, until = pairs.get(pair, (plan.from_us, plan.before_us))
        pairs[pair] = min(plan.from_us, first), max(plan.before_us, until)
    return pairs


def _passed(group: GroupPlan, delay: int, before: Watermark, after: Watermark) -> tuple[int | None, int] | None:
    """The range (low, high] of the window ends that the watermark passes; None if it does not advance."""
    low, high = before.at(group.delays_us[delay]), after.at(group.delays_us[delay])
    return None if high is None or (low is not None and low >= high) else (low, high)


def _meets(place: SectionPlace, low_us: int | None, high_us: int) -> bool:
    """Whether a segment may contain slices within (low, high]; TRUE if its times are unknown."""
    if place.first_us is None or place.last_us is None:
        return True
    return place.first_us < high_us and (low_us is None or place.last_us > low_us)


def ends_over(window: Sliced, starts_us: Ints, ends_us: Ints, low_us: int | None, high_us: int) -> list[int]:
    """The ends in (low, high] of windows that contain one of the slices, ascending."""
    grid, near = window.ends, ends_us <= high_us
    if low_us is not None:
        near &= starts_us > low_us - window.longest_us
    starts_us, ends_us = starts_us[near], ends_us[near]  # few of all stored slices are near a watermark
    first = grid.after(ends_us - 1)  # at or after the slice's end
    last = np.minimum(window.last_ends(starts_us), high_us)
    if low_us is not None:
        first = np.maximum(first, window.next_end(low_us))
    ranges = np.stack([first, last], axis=1)[first <= last]
    ends: list[int] = []
    for begin, end in _overlapping(ranges):
        begin = begin if not ends else max(begin, window.next_end(ends[-1]))
        if begin <= end:
            ends.extend(grid.between(begin, end)[:-1].tolist())
    return ends


def _overlapping(ranges: Ints) -> Iterator[tuple[int, int]]:
    """The inclusive ranges in the order of their begin, without those that lie within previous ranges."""
    begins, ends = ranges[ordered(ranges[:, 0])].T
    new = np.ones(len(ends), bool)
    new[1:] = ends[1:] > np.maximum.accumulate(ends)[:-1]
    yield from zip(begins[new].tolist(), ends[new].tolist(), strict=True)


def at_once(events: int) -> int:
    """The number of windows to compute together, so that each of `events` is not handed to too many windows at once."""
    return max(1, min(WINDOWS_AT_ONCE, EVENTS_AT_ONCE // max(1, events)))


def batches(closing: Sequence[Closing], most: int) -> Iterator[Sequence[Closing]]:
    """Closing windows in runs of at most `most`, in order."""
    for start in range(0, len(closing), most):
        yield closing[start : start + most]


def together(group: GroupPlan, run: Sequence[Closing]) -> list[list[Closing]]:
    """Divides windows into those that share dense arrays: of one delay and, in a group with signatures, of one size."""
    kinds: dict[tuple[int, int], list[Closing]] = {}
    for window in run:
        kinds.setdefault((window.delay, window.window if group.signed else 0), []).append(window)
    return list(kinds.values())
