"""A pond in the background: started once, waited for, and its errors are raised in the thread that waits."""

from __future__ import annotations

import logging
import threading
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from millpond.control.pond.lifetime import BackgroundRun
from millpond.errors import ChangeRefused, ForeignPondError


class FakeLifetime:
    """Runs until it is stopped, or fails."""

    def __init__(self) -> None:
        self.stopped, self.opens = threading.Event(), 0
        self.opened: Any = None
        self.refusal: Exception | None = None
        self.failure: Exception | None = None

    def open(self) -> None:
        self.opens += 1
        if self.refusal is not None:
            raise self.refusal

    def run(self, *, once: bool) -> bool:
        assert not once
        if self.failure is not None:
            raise self.failure
        assert self.stopped.wait(60)
        return False

    def stop(self) -> None:
        self.stopped.set()


def made() -> tuple[Any, BackgroundRun]:
    lifetime: Any = FakeLifetime()
    return lifetime, BackgroundRun(lifetime)


def test_a_pond_runs_in_the_background_until_it_is_stopped() -> None:
    lifetime, run = made()
    assert (run.is_active(), run.await_termination()) == (False, True)
    run.start()
    assert (run.is_active(), run.await_termination(0.01)) == (True, False)
    with pytest.raises(ChangeRefused, match="running already"):
        run.start()
    lifetime.stop()
    assert (run.await_termination(60), run.is_active(), lifetime.opens) == (True, False, 1)


def test_a_run_is_ready_when_its_driver_is() -> None:
    lifetime, run = made()
    with pytest.raises(ChangeRefused, match="does not run"):
        run.await_ready()
    ready = chain([False, False, True], repeat(False))
    lifetime.opened = SimpleNamespace(driver=SimpleNamespace(await_ready=lambda _s: next(ready), in_epoch=False))
    run.start()
    assert (run.await_ready(0.0), run.await_ready()) == (False, True)
    run.end()
    lifetime.failure = ForeignPondError("It is another pond.", "Name yours.")
    run.start()
    with pytest.raises(ForeignPondError):
        run.await_ready()


def test_the_error_of_a_run_is_raised_to_the_waiter_and_cleared_by_the_next_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lifetime, run = made()
    lifetime.failure = ForeignPondError("It is another pond.", "Name yours.")
    with caplog.at_level(logging.ERROR, "millpond.pond"):
        run.start()
    with pytest.raises(ForeignPondError):
        run.await_termination(60)
    assert "It is another pond" in caplog.text
    lifetime.failure = None
    run.start()
    run.end()
    assert run.await_termination()


def test_a_pond_that_is_closed_within_an_epoch_does_not_wait_for_it() -> None:
    lifetime, run = made()
    lifetime.opened = SimpleNamespace(driver=SimpleNamespace(in_epoch=True))
    run.start()
    run.end()
    assert run.await_termination(60)


def test_a_pond_that_cannot_be_opened_is_refused_at_the_start() -> None:
    lifetime, run = made()
    lifetime.refusal = ForeignPondError("It is another pond.", "Name yours.")
    with pytest.raises(ForeignPondError):
        run.start()
    assert not run.is_active()
