"""The number of records per epoch: within a few epochs near the target time, under noise and changing speed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from kit.inputs.committed_epochs import committed
from millpond.log.records import EpochRecord
from millpond.runtime.scheduling.epoch_size import FIRST, Pace

LONGEST = 4 * 1.5
"""The factor by which an epoch of a long backlog may exceed its target: four, and the noise of what was measured."""


class Machine:
    """A naive model of what epochs cost: overhead and time per record, with noise, rare pauses, and a cold start."""

    def __init__(self, each: float, fixed: float, seed: int, *, cold: float = 0.0) -> None:
        self.each, self.fixed, self._cold, self._dice = each, fixed, cold, random.Random(seed)
        self._epochs = 0

    def steady(self, records: float) -> float:
        return self.fixed + self.each * records

    def seconds(self, records: float) -> float:
        noise = math.exp(self._dice.gauss(0, 0.15)) * (3 if self._dice.random() < 0.03 else 1)
        self._epochs += 1
        return self.steady(records) * noise * (1 + self._cold * math.exp(-self._epochs / 3))


def backlog(
    machine: Machine, target: float, epochs: int, at: Callable[[int], None] = lambda _epoch: None
) -> list[float]:
    """The steady durations of epochs of an endless backlog, in targets, and without the noise."""
    pace, found = Pace(), list[float]()
    pace.begun({"tx": target})
    for epoch in range(epochs):
        at(epoch)
        limit = pace.limits["tx"]
        found.append(machine.steady(limit) / target)
        pace.observe({"tx": limit}, machine.seconds(limit))
    return found


@pytest.mark.parametrize("each", [1e-7, 1e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("fixed", [0.02, 0.3])
@pytest.mark.parametrize("target", [1.0, 5.0])
def test_epochs_of_a_backlog_come_to_take_their_time(each: float, fixed: float, target: float) -> None:
    """From both sides: the first epochs of 100,000 records take from 0.03 to 10 seconds."""
    for seed in range(10):
        found = backlog(Machine(each, fixed, seed), target, 60)
        assert any(0.6 < one < LONGEST for one in found[2:6])
        assert sum(not 0.6 < one < LONGEST for one in found[6:]) <= 1


def test_epochs_follow_a_machine_that_becomes_slow_and_fast_again() -> None:
    for seed in range(10):
        machine = Machine(1e-5, 0.2, seed)

        def change(epoch: int, machine: Machine = machine) -> None:
            machine.each = 6e-5 if 20 <= epoch < 40 else 1e-5

        found = backlog(machine, 1.0, 60, change)
        assert all(0.6 < one < LONGEST for one in found[25:40] + found[45:])


def loaded(
    machine: Machine, rate: float, seconds: float, slow: tuple[float, float] = (0, 0)
) -> list[tuple[int, float]]:
    """Records and delay in seconds of each epoch of a topic that grows at a rate; 12 seconds of it exist at first.

    `slow`: a time in which epochs take four times as long.
    """
    pace, now, read, found, gap = Pace(), 12.0, 0, list[tuple[int, float]](), 0.1
    pace.begun({"tx": 1.0})
    while now < seconds:
        records = min(pace.limits["tx"], int(rate * now) - read)
        lasted = machine.seconds(records) * (4 if slow[0] < now < slow[1] else 1)
        found.append((records, now + lasted - read / rate))
        read, now = read + records, now + lasted + gap
        pace.observe({"tx": records}, lasted, gap)
    return found


@pytest.mark.parametrize("rate", [20_000.0, 60_000.0, 100_000.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_load_that_longer_epochs_keep_up_with_is_kept_up_with(rate: float, seed: int) -> None:
    """At most 100,000 records a second are read by epochs of one second; of any length, 140,000."""
    found = loaded(Machine(7e-6, 0.2, seed, cold=2.0), rate, 300.0)
    assert max(delay for _, delay in found[-10:]) < 7


def test_contention_makes_epochs_longer_but_leaves_no_lasting_backlog() -> None:
    for seed in range(4):
        found = loaded(Machine(7e-6, 0.2, seed), 20_000.0, 120.0, (40.0, 70.0))
        assert max(delay for _, delay in found[-20:]) < 2


def test_an_epoch_is_not_cut_to_pieces_for_its_overhead() -> None:
    for seed in range(4):
        found = backlog(Machine(1e-5, 2.0, seed), 0.5, 60)
        assert sum(found[-20:]) / 20 > 1.15 * 2.0 / 0.5


def test_nothing_changes_without_a_backlog() -> None:
    pace = Pace()
    pace.begun({"tx": 1.0})
    for _ in range(20):
        pace.observe({"tx": 50}, 0.2)
    assert pace.limits == {"tx": FIRST}


def test_an_epoch_that_left_no_backlog_reduces_the_limit_to_no_less_than_it_read() -> None:
    pace = Pace()
    pace.begun({"tx": 1.0})
    for _ in range(20):
        pace.observe({"tx": 50_000}, 2.0)  # as long as is needed for this rate
    assert pace.limits == {"tx": 75_000}
    pace.observe({"tx": 50_000}, 40.0)
    pace.observe({"tx": 50_000}, 40.0)
    assert pace.limits["tx"] < 50_000


def test_streams_share_by_what_they_had() -> None:
    pace = Pace()
    assert pace.begun({"a": 1.0, "b": 9.0}) == {"a": FIRST // 2, "b": FIRST // 2}
    counts = {"a": FIRST // 2, "b": 0}
    pace.observe(counts, 9.0)  # the first epoch of a read says little
    assert pace.limits["a"] == pace.limits["b"]
    pace.observe(counts, 0.01)
    assert pace.limits["a"] == 9 * pace.limits["b"]
    assert pace.limits["a"] + pace.limits["b"] == 8 * FIRST
    assert pace.begun({}) == {}
    pace.observe({"a": 1 << 40}, 99.0)
    assert pace.limits == {}


def test_records_of_an_epoch_are_counted_from_its_offsets() -> None:
    record = EpochRecord(
        n=1, writer="w", prev="", at=0, spark_query="", batch=0, start={"tx": '{"t":{"0":0}}'},
        end={"tx": f'{{"t":{{"0":{FIRST}}}}}'},
    )  # fmt: skip
    pace = Pace()
    pace.begun({"tx": 1.0})
    for _ in range(2):
        pace.committed(committed(record, seconds=9.0))
    assert pace.limits["tx"] == pytest.approx(FIRST / 8, rel=0.15)
