"""A standby warms up once, beside its other work; the end of the process waits for it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kit.servers.servers import until
from millpond.errors import SetupError
from millpond.service.server import warm_up
from millpond.service.server.warm_up import WarmUp


def test_it_begins_once_and_its_end_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_end, did = threading.Event(), threading.Event(), list[str]()

    def run(spark: Any) -> int:
        did.append(spark)
        began.set()
        may_end.wait(60)
        raise SetupError("No executor sees the folder.", "Share it.")

    monkeypatch.setattr(warm_up, "run_small_pond", run)
    one: Any = WarmUp()
    one.wait()  # it has not begun
    one.begin("a session")
    one.begin("a session")
    assert began.wait(60)
    waiting = threading.Thread(target=one.wait)
    waiting.start()
    assert waiting.is_alive()
    may_end.set()
    until(lambda: not waiting.is_alive(), "the wait ends")
    assert did == ["a session"]
