"""A process whose main thread hangs replaces itself, keeps its process id and its port, and frees the lock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys, time
from pathlib import Path

from millpond.control.commands.watchdog import Watchdog
from millpond.service.api.service_files import Leader, Places
from millpond.service.server import supervisor
from millpond.service.server.leadership import LeadershipHints
from millpond.service.server.restart import Restarts, restart

before = Restarts.from_environment()
say = lambda what, level=0: print(what, flush=True)
say(f"process {os.getpid()}, restarts {before.times}, port {before.port}")

class Pond:
    def open(self): pass
    def run(self, *, once):
        if before.times < 2:
            time.sleep(600)
        it.committed()
        it.stop()
        return False
    def stop(self): pass
    def end(self): pass

places = Places(Path(sys.argv[1]))
places.make()
hint = LeadershipHints(places, Leader("http://me", os.getpid(), f"me-{before.times}"), patience=600)
it = supervisor.Supervisor(
    Pond, lambda _: True, hint, say, lambda: None, lambda: None, restarts=before.times, epoch_seconds=0.1
)

def replace():
    assert it.restart_or_error() is None
    restart(Restarts(it.restarts, 40713))

with Watchdog(it.count_stalled_check, replace, every=0.005).running():
    it.run()
say("ended")
"""


def test_a_process_that_hangs_replaces_itself_and_leads_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, printed
    lines = [line for line in printed.splitlines() if line.startswith("process")]
    pid = process.pid
    assert lines == [f"process {pid}, restarts {n}, port {40713 if n else 0}" for n in range(3)], printed
    assert "restart 1 without an epoch" in printed
    assert "restart 2 without an epoch" in printed
    assert printed.count("Leading; ") == 3
    assert printed.endswith("ended\n")
