"""The thread that warms up Spark: once in each application, never in the way of a failure or of a stop."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from millpond.spark.session import warm_up
from millpond.spark.session.warm_up import WarmUp


class FakeJob:
    """Runs until it is released or cancelled, as a job of one Spark application."""

    def __init__(self, application: str) -> None:
        self.group, self.runs, self.ended, self.failed = "", 0, threading.Event(), False
        self.context = SimpleNamespace(applicationId=application, setJobGroup=self.named, cancelJobGroup=self.cancel)
        self.frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=self.context), schema=None)

    def named(self, group: str, _description: str) -> None:
        self.group = group

    def cancel(self, group: str) -> None:
        if group == self.group:  # else no job of that group runs yet
            self.failed = True
            self.ended.set()

    def run(self, _spark: object, _columns: object) -> int:
        self.runs += 1
        assert self.ended.wait(60)
        if self.failed:
            raise Py4JError("The job has failed.")
        return 0


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeJob:
    made = FakeJob(request.node.name)
    monkeypatch.setattr(warm_up, "pass_generated_rows", made.run)
    monkeypatch.setattr(warm_up, "_warm", set[str]())
    return made


@pytest.mark.parametrize("failed", [False, True])
def test_an_application_is_warmed_up_once_and_may_fail(job: FakeJob, failed: bool) -> None:
    first, second = WarmUp(), WarmUp()
    assert first.wait(0.0)
    first.begin(job.frame)
    assert not first.wait(0.01)
    second.begin(job.frame)
    job.failed = failed
    job.ended.set()
    assert first.wait(60) and second.wait(0.0)
    first.stop(0.0)
    WarmUp().begin(job.frame)
    assert job.runs == 1


def test_a_stop_cancels_the_job_and_leaves_it_to_the_next_run(job: FakeJob) -> None:
    one = WarmUp()
    one.stop(60)  # nothing has begun
    one.begin(job.frame)
    one.stop(60)
    assert (one.wait(0.0), job.failed) == (True, True)
    one.begin(job.frame)
    assert one.wait(60) and job.runs == 2


def test_a_stop_does_not_wait_for_a_lost_jvm(job: FakeJob) -> None:
    def lost(_group: str) -> None:
        raise ConnectionRefusedError

    one = WarmUp()
    job.context.cancelJobGroup = lost
    one.begin(job.frame)
    one.stop(60)
    assert not one.wait(0.0)
    job.ended.set()
    assert one.wait(60)
