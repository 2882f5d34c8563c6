"""A leader shows progress while it is idle, waits, or commits, and none if a step takes far too long."""

from __future__ import annotations

import pytest

from millpond.service.server.leader_progress import EPOCH_SECONDS, IDLE_SECONDS, StepDeadline

SECOND = 1_000_000


class Bench:
    """A deadline and its clock."""

    def __init__(self) -> None:
        self.now = 0
        self.deadline = StepDeadline(lambda: self.now)

    def wait(self, seconds: float) -> bool:
        self.now += round(seconds * SECOND)
        return self.deadline.stalled


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_idle_leader_never_stalls(bench: Bench) -> None:
    assert not bench.wait(1e6)
    bench.deadline.begin()
    bench.deadline.clear()
    assert not bench.wait(1e6)


def test_an_idle_pond_lives_as_long_as_spark_answers(bench: Bench) -> None:
    for _ in range(100_000):
        bench.deadline.note_response(None)
        assert not bench.wait(1)
    assert not bench.wait(IDLE_SECONDS - 2)
    assert bench.wait(2)
    bench.deadline.note_response(None)
    assert not bench.deadline.stalled


def test_an_epoch_has_its_time_from_its_beginning_whatever_spark_answers(bench: Bench) -> None:
    bench.deadline.note_response(None)
    bench.wait(1)
    for _ in range(round(EPOCH_SECONDS)):
        bench.deadline.note_response((3,))
        assert not bench.wait(1)
    bench.deadline.note_response((3,))
    assert bench.wait(1)


def test_an_epoch_whose_tasks_end_or_count_records_never_stalls(bench: Bench) -> None:
    for second in range(round(3 * EPOCH_SECONDS)):
        bench.deadline.note_response((1, second // 300))  # a task ends, or a batch is read, every five minutes
        assert not bench.wait(1)
    for _ in range(round(EPOCH_SECONDS) - 301):
        bench.deadline.note_response((1, 5))
        assert not bench.wait(1)
    assert bench.wait(301)
    bench.deadline.note_response((1, 6))
    assert not bench.deadline.stalled


def test_each_restart_without_an_epoch_doubles_the_time(bench: Bench) -> None:
    deadline = StepDeadline(lambda: bench.now, restarts=3)
    deadline.begin()
    bench.now = round(8 * EPOCH_SECONDS * SECOND)
    assert not deadline.stalled
    bench.now += 1
    assert deadline.stalled
    deadline.note_response(None)
    bench.now += round(8 * IDLE_SECONDS * SECOND)
    assert not deadline.stalled


def test_epochs_that_follow_each_other_at_once_each_have_their_time(bench: Bench) -> None:
    for _ in range(20):
        for _ in range(round(EPOCH_SECONDS) - 10):
            bench.deadline.note_response((3,))
            assert not bench.wait(1)
        bench.deadline.begin()  # committed
    assert bench.wait(EPOCH_SECONDS + 1)


def test_an_epoch_that_was_overtaken_has_twice_the_time_next(bench: Bench) -> None:
    bench.deadline.begin()
    assert bench.wait(EPOCH_SECONDS + 1)
    bench.deadline.overtaken()
    bench.deadline.begin()
    assert not bench.wait(2 * EPOCH_SECONDS - 1)
    assert bench.wait(2)
    bench.deadline.clear()
    bench.deadline.overtaken()  # for another reason
    bench.deadline.begin()
    assert bench.wait(2 * EPOCH_SECONDS + 1)
