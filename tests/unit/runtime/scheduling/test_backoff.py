"""After failures, attempts become rarer."""

from __future__ import annotations

from millpond.runtime.scheduling.backoff import Backoff


def until_due(backoff: Backoff) -> int:
    return next(epochs for epochs in range(10_000) if backoff.due())


def test_each_failure_in_a_row_doubles_the_wait() -> None:
    backoff, waits = Backoff(), []
    for _ in range(12):
        backoff.failed("broken")
        waits.append(until_due(backoff))
    assert waits == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096, 4096] and backoff.why == "broken"
    backoff.succeeded()
    assert (until_due(backoff), backoff.why) == (0, "")
    backoff.failed("again")
    assert until_due(backoff) == 16
