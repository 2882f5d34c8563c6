"""A step of a move waits while windows close, for a limited time."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.windows import Counted, Range, Session, Sliding, Window
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.scheduling.quiet_epochs import QuietEpochs, is_behind
from millpond.runtime.task.task_values import Watermark


def group_of(*windows: tuple[Window, int]) -> GroupPlan:
    count = Aggregate("count", None, None, "bigint")
    output = (Named("n", Column("agg:0", "bigint")),)
    queries = [
        Query(f"q{i}", "s", "ts", delay, window, (), (count,), output) for i, (window, delay) in enumerate(windows)
    ]
    return build_plan(queries).groups[0]


def waits_before(group: GroupPlan, times: list[int]) -> list[bool]:
    """Before each epoch but the first: whether a step waits; the epochs end at `times`."""
    epochs = QuietEpochs()
    waits = [epochs.decide_next([group], {"s": Watermark(time)}).step for time in times[:-1]]
    assert all(waited for taken, waited in itertools.pairwise(waits) if not taken), "no step follows another"
    return waits


def every_second(waits: list[bool]) -> bool:
    """Whether a step waits for nothing but the one before."""
    return all(waited == bool(place % 2) for place, waited in enumerate(waits))


@pytest.mark.parametrize("seed", range(5))
def test_a_step_waits_for_epochs_that_close_windows(seed: int) -> None:
    """Of windows that are no multiple of their slide, too, and of each delay."""
    group, dice = group_of((Sliding(500, 200, 30), 7), (Sliding(200, 200, 20), 7)), random.Random(seed)
    times = [1_000]
    while len(times) < 2_000:
        times.append(times[-1] + dice.randint(2, 3))
    waits = waits_before(group, times)
    closes = [
        any(end % 200 in (20, 130) for end in range(before - 7 + 1, after - 7 + 1))
        for before, after in itertools.pairwise(times)
    ]
    assert any(closes) and not all(waits)
    assert sum(a and b for a, b in zip(waits, closes, strict=True)) > 0.95 * sum(closes)
    assert waits.count(False) > 0.45 * (len(waits) - 5 * sum(closes))


@pytest.mark.parametrize("seed", range(5))
def test_a_step_waits_where_epochs_read_one_file_or_two(seed: int) -> None:
    group, dice, times = group_of((Sliding(500, 500), 0)), random.Random(seed), [25, 50, 100, 125]
    while len(times) < 4_000:
        times.append(times[-1] + 25 * dice.randint(1, 2))
    waits = waits_before(group, times)
    closes = [before // 500 < after // 500 for before, after in itertools.pairwise(times)]
    assert sum(a and b for a, b in zip(waits, closes, strict=True)) > 0.95 * sum(closes)
    assert waits.count(False) > 0.45 * (len(waits) - 5 * sum(closes))


def test_a_window_closes_by_the_delay_of_its_own_query_only() -> None:
    group = group_of((Sliding(10_000, 10_000), 500), (Sliding(200, 200), 20))
    waits = waits_before(group, list(range(1_000, 2_000, 10)))
    taken = [time % 200 for time, waited in zip(range(1_000, 2_000, 10), waits, strict=False) if not waited]
    # neither the epoch that closes it, nor the one before or after
    assert not {*taken[1:]} & {0, 10, 20} and len(taken) > 0.45 * (len(waits) - 15)


@pytest.mark.parametrize("window", [Session(5), Counted(3, 1), Range(5)])
def test_no_step_waits_for_windows_whose_ends_no_watermark_predicts(window: Window) -> None:
    assert every_second(waits_before(group_of((window, 0)), list(range(0, 100, 4))))


def test_steps_are_taken_where_each_epoch_closes_windows() -> None:
    waits = waits_before(group_of((Sliding(1, 1), 0)), list(range(0, 1_000, 4)))
    assert all(waits[1:7]) and 0.35 < waits.count(False) / len(waits) < 0.45


def test_a_step_does_not_wait_if_event_time_does_not_advance_or_is_unknown() -> None:
    group = group_of((Sliding(1, 1), 0))
    assert every_second(waits_before(group, [5] * 10))
    epochs = QuietEpochs()
    assert every_second([epochs.decide_next([group], {"s": Watermark(None)}).step for _ in range(4)])
    assert not epochs.decide_next([group], {"other": Watermark(7)}).step


def test_steps_and_merges_wait_until_an_epoch_has_waited_for_what_it_reads() -> None:
    """A file comes every second; its offsets are taken within 0.1 s, and planned in 0.08 s more."""
    epochs, group, dice = QuietEpochs(), group_of((Sliding(10_000, 10_000), 0)), random.Random(1)
    ended, unread, steps, merges, behind, waited_too_long = 0.0, 0, 0, 0, 0, 0
    for _ in range(2_000):
        taken = max(ended + 0.1 * dice.uniform(0.7, 1.1), unread + 0.05)
        began = taken + 0.08 * dice.uniform(0.9, 1.1)
        ended_us, taken_us, began_us = (int(at * 1e6) for at in (ended, taken, began))
        found = is_behind(ended_us, lambda: 90_000, taken_us, began_us)
        waits = epochs.decide_next([group], {"s": Watermark(5)}, found, int(began * 1e6))
        steps, merges = steps + (not waits.step), merges + (not waits.merges)
        behind += unread < ended
        waited_too_long += not waits.step and unread < ended - 0.1
        unread = math.floor(taken) + 1
        ended = began + (0.6 + 0.35 * (not waits.step) + 0.05 * (not waits.merges)) * dice.uniform(0.9, 1.1)
    assert 100 < behind < 1_400, "it may be either"
    assert steps > 300 and waited_too_long < 0.05 * steps and merges > 700


@pytest.mark.parametrize(("epoch_s", "step_in", "merges_in"), [(0.25, 16, 4), (0.5, 8, 2), (2.0, 2, 1), (9.0, 2, 1)])
def test_steps_and_merges_are_made_where_no_epoch_has_to_wait(epoch_s: float, step_in: int, merges_in: int) -> None:
    """The shorter an epoch is, the more does a step make of it; none follows another."""
    epochs, group = QuietEpochs(), group_of((Sliding(10_000, 10_000), 0))
    now = [int(1e9 + 1e6 * epoch_s * i) for i in range(100 * step_in)]
    waits = [epochs.decide_next([group], {"s": Watermark(5)}, True, at) for at in now]
    assert [waited.step for waited in waits].count(False) == 100
    assert [waited.merges for waited in waits].count(False) == len(waits) // merges_in
    assert not any(epochs.decide_next([group], {"s": Watermark(5)}, False, now[-1]).merges for _ in range(9))
