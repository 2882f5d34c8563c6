"""A leader shows signs of life while it is idle, waits, or commits, and none when a step takes far too long."""

from __future__ import annotations

import pytest

from millpond.service.server.leader_progress import EPOCH_SECONDS, IDLE_SECONDS, Pulse

SECOND = 1_000_000


class Bench:
    """A pulse and its clock."""

    def __init__(self) -> None:
        self.now = 0
        self.pulse = Pulse(lambda: self.now)

    def wait(self, seconds: float) -> bool:
        self.now += round(seconds * SECOND)
        return self.pulse.stalled


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_who_has_nothing_to_do_never_stalls(bench: Bench) -> None:
    assert not bench.wait(1e6)
    bench.pulse.begin()
    bench.pulse.rest()
    assert not bench.wait(1e6)


def test_an_idle_pond_lives_as_long_as_spark_answers(bench: Bench) -> None:
    for _ in range(100_000):
        bench.pulse.answered(False)
        assert not bench.wait(1)
    assert not bench.wait(IDLE_SECONDS - 2)
    assert bench.wait(2)
    bench.pulse.answered(False)
    assert not bench.pulse.stalled


def test_an_epoch_has_its_time_from_its_beginning_whatever_spark_answers(bench: Bench) -> None:
    bench.pulse.answered(False)
    bench.wait(1)
    for _ in range(round(EPOCH_SECONDS)):
        bench.pulse.answered(True)
        assert not bench.wait(1)
    bench.pulse.answered(True)
    assert bench.wait(1)


def test_epochs_that_follow_each_other_at_once_each_have_their_time(bench: Bench) -> None:
    for _ in range(20):
        for _ in range(round(EPOCH_SECONDS) - 10):
            bench.pulse.answered(True)
            assert not bench.wait(1)
        bench.pulse.begin()  # committed
    assert bench.wait(EPOCH_SECONDS + 1)


def test_an_epoch_that_was_overtaken_has_twice_the_time_next(bench: Bench) -> None:
    bench.pulse.begin()
    assert bench.wait(EPOCH_SECONDS + 1)
    bench.pulse.overtaken()
    bench.pulse.begin()
    assert not bench.wait(2 * EPOCH_SECONDS - 1)
    assert bench.wait(2)
    bench.pulse.rest()
    bench.pulse.overtaken()  # for another reason
    bench.pulse.begin()
    assert bench.wait(2 * EPOCH_SECONDS + 1)
