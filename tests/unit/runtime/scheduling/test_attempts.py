"""After failures, attempts become rarer."""

from __future__ import annotations

from millpond.runtime.scheduling.attempts import Attempts


def until_due(attempts: Attempts) -> int:
    return next(epochs for epochs in range(10_000) if attempts.due())


def test_each_failure_in_a_row_doubles_the_wait() -> None:
    attempts, waits = Attempts(), []
    for _ in range(12):
        attempts.failed("broken")
        waits.append(until_due(attempts))
    assert waits == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096, 4096] and attempts.why == "broken"
    attempts.succeeded()
    assert (until_due(attempts), attempts.why) == (0, "")
    attempts.failed("again")
    assert until_due(attempts) == 16
