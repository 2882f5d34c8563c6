"""States of a driver's streaming query: an epoch begins only where one may, and every way out of it is in the table."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import MillpondError, SparkError
from millpond.spark.driver.query_lifecycle import TRANSITIONS, Phase, QueryLifecycle, Step


def in_epoch() -> QueryLifecycle:
    life = QueryLifecycle()
    life.start()
    assert life.begin()
    return life


def failure() -> MillpondError:
    return SparkError("It failed.", "Run again.")


def test_epochs_begin_and_end_in_the_callbacks_thread() -> None:
    life = in_epoch()
    assert life.phase is Phase.EPOCH and life.in_callback
    other = threading.Thread(target=lambda: seen.append(life.in_callback))
    seen: list[bool] = []
    other.start()
    other.join()
    assert seen == [False]
    life.end()
    assert life.phase is Phase.WAITING and not life.in_callback


def test_no_epoch_begins_after_a_requested_stop_nor_outside_a_run() -> None:
    life = QueryLifecycle()
    assert not life.begin()
    life.start()
    life.request_stop()
    assert not life.begin() and life.may_stop
    assert life.finish()
    life.start()
    assert life.begin(), "the stop was of the earlier run"


def test_a_stop_waits_for_the_epoch() -> None:
    life = in_epoch()
    life.request_stop()
    assert not life.may_stop
    life.end()
    assert life.may_stop


def test_a_batch_that_is_left_is_run_by_the_next_query() -> None:
    life = in_epoch()
    life.reread()
    life.end()
    assert life.phase is Phase.REREADING
    life.start()
    assert life.begin()


def test_a_failure_is_kept_until_the_next_run() -> None:
    life, why = in_epoch(), failure()
    life.fail(why)
    life.end()
    assert life.phase is Phase.FAILED and life.failure is why
    assert not life.finish()
    assert life.failure is why
    life.start()
    assert life.failure is None


def test_a_callback_that_outlives_its_run_does_no_harm() -> None:
    life = in_epoch()
    life.finish()
    life.fail(failure())
    life.end()
    assert life.phase is Phase.IDLE


def test_a_step_that_is_not_in_the_table_is_a_defect() -> None:
    life = in_epoch()
    with pytest.raises(KeyError):
        life.start()


@given(st.lists(st.sampled_from(Step), max_size=20))
def test_a_failed_query_only_ends(steps: list[Step]) -> None:
    """From every reachable state, a run can be finished; and nothing but that leaves FAILED."""
    state = Phase.IDLE
    for step in steps:
        after = TRANSITIONS.get((state, step))
        if after is not None:
            assert state is not Phase.FAILED or after is Phase.FAILED or step is Step.FINISH
            state = after
    assert TRANSITIONS[state, Step.FINISH] is Phase.IDLE
