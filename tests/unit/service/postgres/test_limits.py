"""A statement that takes too long is interrupted; one that cannot be interrupted ends the process."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Any

import pytest

from millpond.service.postgres import session
from millpond.service.postgres.session import limited


def test_what_is_not_interrupted_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_GRACE_SECONDS", 0.01)
    calls, ended = list[str](), threading.Event()
    with limited(0.0, lambda: calls.append("interrupt"), lambda _: ended.set()):
        assert ended.wait(60)
    assert calls == ["interrupt"]


def test_ctrl_c_in_the_terminal_of_the_service_does_not_reach_the_process(served: Any) -> None:
    with served.connect() as client:
        client.execute("SELECT 1")
    # -ww: whole command lines, also where COLUMNS says that the terminal is narrow
    words = ["ps", "-ww", "--ppid", str(os.getpid()), "-o", "pgid=,args="]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    groups = [one.split()[0] for one in lines if "postgres.program" in one]
    assert groups and str(os.getpgrp()) not in groups
