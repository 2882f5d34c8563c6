"""A service whose Java machine can no longer start Python workers restarts itself and continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.programs.forked_program import ForkedProgram
from kit.servers.process_tree import children
from millpond.errors import NotServingError
from millpond.service.api.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECOND = 1_000_000
SITE = '''"""Ends Spark's daemon of workers before it reports its port, if its Java machine is the one named."""
import os, pathlib, sys
broken = pathlib.Path(os.environ["BROKEN_JAVA"])
if "daemon" in " ".join(sys.orig_argv) and broken.exists() and broken.read_text() == str(os.getppid()):
    os._exit(1)
'''


def add_file(folder: Path, k: int) -> None:
    times = pa.array([(100 * k + i) * SECOND // 10 for i in range(100)], pa.timestamp("us", "UTC"))
    draft = folder / "draft.parquet"
    pq.write_table(pa.table({"ts": times, "v": pa.array(range(100), pa.int64())}), draft)
    os.utime(draft, (1_700_000_000 + k,) * 2)
    draft.rename(folder / "in" / f"{k:04d}.parquet")


def rows(folder: Path) -> list[tuple[int, int]]:
    parts = sorted(folder.glob("part-*"))
    found = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    return [(row["n"], row["total"]) for row in found]


def java_of(pid: int) -> int:
    (found,) = (child for child, command in children(pid).items() if "java" in command.split(" ")[0])
    return found


class Service:
    """A process of `millpond serve` over a folder of files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.pond = folder, folder / "serve.log", folder / "tx.pond"
        self.broken = folder / "broken"
        (folder / "in").mkdir()
        (folder / "short_times.py").write_text(SHORT_TIMES)
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(SITE)
        (folder / "tx.sql").write_text(
            f"CREATE TABLE tx (ts TIMESTAMP, v BIGINT) USING parquet OPTIONS (path '{folder}/in', maxFilesPerTrigger 1)"
            " TBLPROPERTIES ('max_ahead' = '2 hours');\n"
            f"CREATE STREAMING TABLE spend USING json TBLPROPERTIES ('path' = '{folder}/spend') AS\n"
            "SELECT window(ts, '10 seconds') AS w, count(*) AS n, sum(v) AS total FROM STREAM tx"
            " WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY ALL;\n"
        )

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        path = os.pathsep.join([str(self.folder / "site"), os.environ["PYTHONPATH"]])
        added = {"PYTHONPATH": path, "BROKEN_JAVA": str(self.broken)}
        words = ["short_times.py", "serve", "tx.sql", "--master", "local[2]", "--memory", "700m"]
        with self.log.open("wb") as log:
            made = ForkedProgram(words, cwd=self.folder, stdout=log, stderr=log, env=os.environ | added)
        try:
            yield made
        finally:
            made.kill()
            made.wait(60)

    def restarts(self) -> int:
        """How often it started anew for the first time since an epoch; on a busy machine also without a reason."""
        return self.log.read_text().count("restart 1 without an epoch")

    def until(self, look: Callable[[], bool], seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            with suppress(NotServingError):
                if look():
                    return
            time.sleep(min(1.0, max(0.1, 9 * (time.monotonic() - began))))  # a request takes CPU of the service, too
        raise AssertionError(self.log.read_text())


SHORT_TIMES = """
import pathlib, threading, time
from millpond.control.stall_limits import STALLED_SECONDS
from millpond.service.server import leader_progress, serve_process, supervisor

def shorten():
    while not pathlib.Path("short_times").exists():
        time.sleep(0.1)
    leader_progress.IDLE_SECONDS, supervisor.RESTART_SECONDS = 6.0, 4
    serve_process.TAKE_OVER_SECONDS = 15.0 - STALLED_SECONDS  # a step may take 15 s

if pathlib.Path("short_times").exists():
    shorten()
else:
    threading.Thread(target=shorten, daemon=True).start()
from millpond.cli import main
main()
"""
"""The command `millpond` that has short times once a file `short_times` exists, so that a test need not wait for eleven
minutes. With the usual times only failures make it start anew, however busy the machine is.
"""


@pytest.mark.timeout(900)
def test_a_lone_leader_whose_java_or_python_daemon_fails_or_is_suspended_restarts_itself(tmp_path: Path) -> None:
    service = Service(tmp_path)
    add_file(tmp_path, 0)
    add_file(tmp_path, 1)
    with service.running() as process:
        service.until(lambda: Client.of(service.pond).status().events == 200)
        java, url = java_of(process.pid), Client.of(service.pond).url
        service.broken.write_text(str(java))  # from now on no daemon of this Java machine reports its port
        (daemon,) = (child for child, command in children(java).items() if "daemon" in command)
        for worker in (*children(daemon), daemon):
            os.kill(worker, signal.SIGKILL)
        add_file(tmp_path, 2)
        service.until(lambda: len(rows(tmp_path / "spend")) == 2)
        later = java_of(process.pid)
        assert later != java
        said = service.log.read_text()
        assert said.count("5 times without an epoch: starting anew.") == 1
        assert "port number" in said, "the daemon ended before it reported its port"

        (tmp_path / "short_times").touch()
        service.until(lambda: (Client.of(service.pond).status().since_epoch_s or 0) > 5)
        at_first, java = service.restarts(), later
        os.kill(java, signal.SIGSTOP)  # while it is idle; an epoch has the usual time until the process starts anew
        service.until(lambda: not Path(f"/proc/{java}").exists())
        add_file(tmp_path, 3)
        service.until(lambda: len(rows(tmp_path / "spend")) == 3)
        later = service.restarts()
        assert later > at_first

        (daemon,) = (child for child, command in children(java_of(process.pid)).items() if "daemon" in command)
        os.kill(daemon, signal.SIGSTOP)
        for worker in children(daemon):
            os.kill(worker, signal.SIGKILL)
        add_file(tmp_path, 4)  # its epoch waits for a worker indefinitely
        service.until(lambda: len(rows(tmp_path / "spend")) == 4)
        assert service.restarts() > later, "an epoch between them begins the count again"
        assert rows(tmp_path / "spend") == [(100, 4950)] * 4
        assert process.poll() is None, "it is the same process"
        assert not Path(f"/proc/{daemon}").exists(), "the suspended daemon has ended with its Java"
        client = Client.of(service.pond)
        assert (client.url, client.status().failure) == (url, None)
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 0, service.log.read_text()
