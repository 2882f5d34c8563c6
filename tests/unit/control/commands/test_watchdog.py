"""A step of a command that never ends is named, with the place of the main thread, and ends the process."""

from __future__ import annotations

import subprocess
import sys

from millpond.control.commands.watchdog import Steps, Watchdog

PROGRAM = """
import sys
from millpond.control.commands import watchdog
from millpond.control.commands.watchdog import Steps, Watchdog, end_process

sleep = "import time\\ndef waits():\\n    time.sleep(600)"
scope = {"__name__": "millpond.somewhere"}
exec(sleep, scope)
steps = Steps(2)
steps.begin("The opening of the pond")
with Watchdog(steps.hangs, lambda: end_process(steps.error()), every=0.05).running():
    scope["waits"]()
"""


def test_a_step_has_its_time_in_seconds_of_a_running_process() -> None:
    ended, steps = list[str](), Steps(3)
    dog = Watchdog(steps.hangs, lambda: ended.append(str(steps.error())))

    def pass_seconds(count: int) -> None:
        for _ in range(count):
            dog.look()

    pass_seconds(10)
    steps.begin("The start of Spark")
    pass_seconds(3)
    with steps.then("The closing of the pond"):
        steps.begin("The opening of the pond")
        pass_seconds(3)
        steps.rest()
        pass_seconds(10)
        assert ended == []
    pass_seconds(4)
    assert len(ended) == 1
    assert ended[0].startswith("[MP-STALLED] The closing of the pond has not ended after 3 s")


def test_a_process_whose_main_thread_hangs_ends_with_the_name_of_the_step() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    what = "[MP-STALLED] The opening of the pond has not ended after 2 s, in millpond.somewhere.waits. Committed "
    assert done.stderr.startswith(what), done.stderr
    assert done.stderr.count("\n") == 1
