"""When an epoch without progress is ended: only while a query is on probation, and once."""

from __future__ import annotations

import logging

import pytest

from millpond.control.pond.stalled_epoch import StalledEpoch


class Process:
    killed = 0

    def kill(self) -> None:
        self.killed += 1


def test_an_epoch_without_progress_is_ended_if_a_query_is_on_probation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, suspects, process = [0.0], list[str](), Process()
    gateway = type("Gateway", (), {"process": process})
    monkeypatch.setattr("millpond.control.pond.stalled_epoch.own_gateway", lambda: gateway)
    seen: list[tuple[int, ...] | None] = []
    watch = StalledEpoch(10.0, lambda: suspects, lambda: ["old"], seen.append, lambda: now[0])

    def at(second: float, work: tuple[int, ...] | None) -> None:
        now[0] = second * 1e6
        watch(work)

    for second, work in ((0, None), (50, None), (60, (1, 2)), (69, (1, 2)), (70, (1, 3)), (79, (1, 3))):
        at(second, work)
    assert not caplog.messages and watch.error is None
    with caplog.at_level(logging.WARNING, "millpond.pond"):
        at(81, (1, 3))
        at(95, (1, 3))
    assert caplog.messages == ["An epoch has made no progress for 10 s. Queries of which Spark evaluates a part: old."]
    assert watch.error is None and not process.killed
    suspects.append("new")
    for second, work in ((96, None), (97, (2, 1)), (107, (2, 1)), (108, (2, 1)), (120, (2, 1))):
        at(second, work)
    assert process.killed == 1
    assert str(watch.error) == (
        "[MP-STALLED] An epoch has made no progress for 10 s. Committed results are not affected; start the pond again."
    )
    assert len(seen) == 13
