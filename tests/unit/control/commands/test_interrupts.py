"""How Ctrl-C ends a command."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from millpond.control.commands import run
from millpond.control.commands.interrupts import Interrupts

_PROGRAM = """
import os, signal, sys
from millpond.control.commands import interrupts

def end_java():
    print("Traceback of a thread that was connected with Java", file=sys.stderr, flush=True)

interrupts.end_java = end_java
with interrupts.interrupts(lambda text: print(text, flush=True)) as handler, handler.stopping(lambda: None):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_the_second_signal_ends_at_once_and_prints_only_that() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    assert done.returncode == 130
    assert done.stdout.startswith("Stopping after the current step.")
    assert done.stderr == "\nStopped at once; the next run goes on from the last epoch.\n"


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), RuntimeError("reentrant call")], ids=repr)
def test_the_first_signal_stops_although_nothing_can_be_written(error: Exception) -> None:
    def say(_text: str) -> None:
        raise error

    handler, stopped = Interrupts(say), list[bool]()
    with handler.stopping(lambda: stopped.append(True)):
        handler(signal.SIGINT, None)
    assert stopped == [True]


def test_a_query_that_waits_for_a_broker_is_given_up_unless_the_operator_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "spark_session", lambda master, *, extra, **_: extra)
    name = "spark.sql.streaming.stopTimeout"
    given = [dict(run.start_spark("local", "1g", settings)) for settings in ((), ((name, "1m"),))]
    assert [settings[name] for settings in given] == ["1s", "1m"]
