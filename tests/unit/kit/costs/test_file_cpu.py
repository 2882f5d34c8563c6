"""The CPU seconds of a process count with those of its children, running or ended."""

import os
import subprocess
import sys

from kit.costs.file_cpu import used_below

BUSY = """
import sys, time
while time.process_time() < 0.3:
    pass
print("done", flush=True)
sys.stdin.read()
"""


def test_children_count_while_they_run_and_after_they_have_ended() -> None:
    # rounded, because differences of hundredths are not exact
    before = used_below(os.getpid())
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"done\n"
        while_it_runs = used_below(process.pid)
        assert round(used_below(os.getpid()) - before, 2) >= while_it_runs >= 0.25
    assert round(used_below(os.getpid()) - before, 2) >= while_it_runs
