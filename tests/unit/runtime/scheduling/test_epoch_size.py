"""The number of records per epoch: soon near the target time, and rarely changed."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from kit.inputs.committed_epochs import committed
from millpond.log.records import EpochRecord
from millpond.runtime.scheduling.committed_epoch import CommittedEpoch
from millpond.runtime.scheduling.epoch_size import FIRST, Pace


def run(target: float, each: float, fixed: float, epochs: int, seed: int, cold: float = 0.0) -> list[tuple[int, float]]:
    """Epochs of a pond with a backlog, as (records, seconds); a changed limit holds from the next but one on. The first
    take `1 + cold` times as long, and that passes in some ten epochs.
    """
    dice, pace = random.Random(seed), Pace()
    found, limit, coming = [], pace.begun({"tx": target})["tx"], 0
    for _ in range(epochs):
        warmed = 1 + cold * math.exp(-len(found) / 5)
        seconds = warmed * (fixed + each * limit) * dice.uniform(0.9, 1.1) + (2.0 if not found or coming else 0.0)
        found.append((limit, seconds))
        if coming:
            limit, coming = pace.begun({"tx": target})["tx"], 0
        elif pace.observe({"tx": limit}, seconds):
            coming = pace.limits["tx"]
    return found


@pytest.mark.parametrize("each", [1e-7, 1e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("fixed", [0.02, 0.3])
@pytest.mark.parametrize("target", [1.0, 5.0])
def test_epochs_of_a_backlog_come_to_take_their_time(each: float, fixed: float, target: float) -> None:
    """Or up to four times as long, for it never ends."""
    epochs = run(target, each, fixed, 60, 1)
    last = [seconds for _, seconds in epochs[-20:]]
    assert target / 2 < sorted(last)[10] < target * 4 * 1.3
    changes = sum(one[0] != two[0] for one, two in pairwise(epochs))
    assert changes <= 10


def loaded(
    rate: float, each: float, fixed: float, gap: float, seconds: float, seed: int = 1
) -> tuple[float, list[int]]:
    """Seconds of records that wait in the end, and the limits that there were, of a topic that grows at a rate; its
    pond begins cold.
    """
    dice, pace = random.Random(seed), Pace()
    limit, now, read, limits, coming = pace.begun({"tx": 1.0})["tx"], 12.0, 0, [FIRST], False
    while now < seconds:
        took = min(limit, int(rate * now) - read)
        lasted = (fixed + each * took) * dice.uniform(0.9, 1.1) * (1 + 2 * math.exp(-now / 10))
        read, now = read + took, now + lasted + gap
        if coming:
            limit, now, coming = pace.begun({"tx": 1.0})["tx"], now + 1.0, False
            limits.append(limit)
        else:
            coming = pace.observe({"tx": took}, lasted, gap)
    return now - read / rate, limits


@pytest.mark.parametrize("rate", [20_000.0, 60_000.0, 100_000.0, 120_000.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_load_that_longer_epochs_keep_up_with_is_kept_up_with(rate: float, seed: int) -> None:
    """At most 100,000 records a second are read by epochs of one second; of any length, 140,000."""
    waits, limits = loaded(rate, 7e-6, 0.2, 0.1, 400.0, seed)
    assert waits < 6
    assert len(limits) < 16


def test_an_epoch_is_not_cut_to_pieces_for_its_overhead() -> None:
    epochs = run(0.5, 1e-5, 2.0, 60, 2)
    assert epochs[-1][0] * 1e-5 > 0.8
    assert sum(one[0] != two[0] for one, two in pairwise(epochs)) <= 8


def test_overhead_that_makes_an_epoch_about_as_long_as_meant_is_not_taken_for_records() -> None:
    """0.6 of 0.7 seconds are fixed costs: epochs of one size would not show it, and a backlog would remain."""
    epochs = run(1.0, 5e-6, 0.6, 60, 3)
    assert epochs[10][0] >= 2 * FIRST
    assert epochs[-1][0] * 5e-6 > 0.4
    assert sum(one[0] != two[0] for one, two in pairwise(epochs)) <= 8


def test_what_was_slow_when_all_was_cold_is_not_remembered_for_ever() -> None:
    epochs = run(1.0, 5e-6, 0.35, 60, 5, cold=4.0)
    assert epochs[25][0] >= 2 * FIRST
    assert sum(one[0] != two[0] for one, two in pairwise(epochs)) <= 8


def test_more_is_tried_rarely_where_records_are_what_takes_the_time() -> None:
    epochs = run(1.0, 4.5e-5, 0.0, 60, 4)
    assert sum(seconds > 6 for _, seconds in epochs[10:]) <= 4
    assert 1.0 < sorted(seconds for _, seconds in epochs[-20:])[10] < 5.0


def test_nothing_changes_without_a_backlog() -> None:
    pace = Pace()
    pace.begun({"tx": 1.0})
    assert not any(pace.observe({"tx": 50}, 0.2) for _ in range(20))
    assert pace.limits == {"tx": FIRST}


def test_streams_share_by_what_they_had() -> None:
    pace = Pace()
    assert pace.begun({"a": 1.0, "b": 9.0}) == {"a": FIRST // 2, "b": FIRST // 2}
    counts = {"a": FIRST // 2, "b": 0}
    assert not pace.observe(counts, 9.0)
    assert pace.observe(counts, 0.01)
    assert pace.limits["a"] == 9 * pace.limits["b"]
    assert pace.limits["a"] + pace.limits["b"] == 8 * FIRST
    assert pace.begun({}) == {} and not pace.observe({"a": 1 << 40}, 99.0)


def test_limits_that_an_epoch_changed_differ_until_a_read_begins_with_them() -> None:
    def read(records: int, seconds: float) -> CommittedEpoch:
        record = EpochRecord(
            n=1, writer="w", prev="", at=0, spark_query="", batch=0, start={"tx": '{"t":{"0":0}}'},
            end={"tx": f'{{"t":{{"0":{records}}}}}'},
        )  # fmt: skip
        return committed(record, seconds=seconds)

    pace = Pace()
    first = pace.begun({"tx": 1.0})
    pace.committed(read(FIRST, 9.0))  # the first epoch of a read says little
    assert not pace.has_changed and pace.limits == first
    pace.committed(read(FIRST, 9.0))
    assert pace.has_changed and pace.limits["tx"] < first["tx"]
    assert pace.begun({"tx": 1.0}) == pace.limits and not pace.has_changed
