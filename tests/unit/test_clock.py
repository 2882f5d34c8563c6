"""The clock of the log's records never goes back, whatever the wall clock does."""

from __future__ import annotations

import pytest

from millpond.clock import ForwardClock

SECOND = 1_000_000
HOUR, DAY = 3600 * SECOND, 86_400 * SECOND
TEN = 10 * SECOND


class Time:
    """A wall clock that may be set, and a monotonic clock."""

    def __init__(self) -> None:
        self.wall, self.lap = 1_700_000_000 * SECOND, 5 * SECOND

    def wait(self, us: int) -> None:
        self.wall += us
        self.lap += us

    def clock(self) -> ForwardClock:
        return ForwardClock(lambda: self.wall, lambda: self.lap)


@pytest.fixture
def time() -> Time:
    return Time()


def test_it_is_the_wall_clock_if_that_only_goes_forward(time: Time) -> None:
    clock = time.clock()
    for us in (0, 1, SECOND, HOUR):
        time.wait(us)
        assert clock() == time.wall
    time.wall += DAY
    assert clock() == time.wall
    time.wall += HOUR  # the machine was suspended: its monotonic clock stood still
    assert clock() == time.wall


def test_it_advances_with_the_true_time_while_the_wall_clock_is_an_hour_late(time: Time) -> None:
    clock, true = time.clock(), time.wall
    for _ in range(3):
        time.wall -= HOUR
        time.wait(TEN)
        true += TEN
        assert clock() == true
    time.wall = true + 1
    assert clock() == true + 1


def test_it_does_not_follow_a_wall_clock_back_that_was_set_forward(time: Time) -> None:
    clock = time.clock()
    time.wall += DAY
    ahead = clock()
    time.wall -= DAY
    time.wait(TEN)
    assert clock() == ahead + TEN
    time.wait(2 * DAY)
    assert clock() == ahead + TEN + 2 * DAY
    time.wall += 2 * DAY
    assert clock() == time.wall


def test_after_a_restart_it_continues_from_the_newest_stored_time(time: Time) -> None:
    stored = time.wall
    for _ in range(2):  # two restarts, and the wall clock is still late
        time.wall = stored - HOUR
        clock = time.clock()
        assert clock.at_least(stored) == stored
        time.wait(TEN)
        assert clock.at_least(stored) == stored + TEN
        stored += TEN
    assert time.clock().at_least(0) == time.wall
