"""A service whose Java machine can start no Python workers any more is started anew, by itself, and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.errors import NotServingError
from millpond.service.api.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECOND = 1_000_000
DAEMON = '''"""PySpark's daemon, which ends before it reports its port if the Java machine is the one named."""
import os, pathlib, sys
broken = pathlib.Path(os.environ["BROKEN_JAVA"])
if broken.exists() and broken.read_text() == str(os.getppid()):
    sys.exit(1)
from pyspark.daemon import manager
if __name__ == "__main__":
    manager()
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


def children(pid: int) -> dict[int, str]:
    """The child processes of a process, with their command lines."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                words = (stat.parent / "cmdline").read_bytes().split(b"\0")
                found[int(stat.parent.name)] = b" ".join(words).decode()
    return found


def java_of(pid: int) -> int:
    (found,) = (child for child, command in children(pid).items() if "java" in command.split(" ")[0])
    return found


class Service:
    """A process of `millpond serve` over a folder of files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.pond = folder, folder / "serve.log", folder / "tx.pond"
        self.broken = folder / "broken"
        (folder / "in").mkdir()
        (folder / "conf").mkdir()
        (folder / "conf" / "spark-defaults.conf").write_text("spark.python.daemon.module broken_daemon\n")
        (folder / "broken_daemon.py").write_text(DAEMON)
        (folder / "tx.sql").write_text(
            f"CREATE TABLE tx (ts TIMESTAMP, v BIGINT) USING parquet OPTIONS (path '{folder}/in', maxFilesPerTrigger 1)"
            " TBLPROPERTIES ('max_ahead' = '2 hours');\n"
            f"CREATE STREAMING TABLE spend USING json TBLPROPERTIES ('path' = '{folder}/spend') AS\n"
            "SELECT window(ts, '10 seconds') AS w, count(*) AS n, sum(v) AS total FROM STREAM tx"
            " WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY ALL;\n"
        )

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        path = os.pathsep.join([str(self.folder), *(path for path in sys.path if path)])
        told = {"PYTHONPATH": path, "SPARK_CONF_DIR": str(self.folder / "conf"), "BROKEN_JAVA": str(self.broken)}
        command = [sys.executable, "-m", "millpond", "serve", "tx.sql", "--master", "local[2]", "--memory", "700m"]
        with self.log.open("wb") as log:
            made = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env=os.environ | told)
        try:
            yield made
        finally:
            made.kill()
            made.wait(60)

    def until(self, look: Callable[[], bool], seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(NotServingError):
                if look():
                    return
            time.sleep(0.1)
        raise AssertionError(self.log.read_text())


def test_a_service_whose_java_starts_no_workers_starts_itself_anew(tmp_path: Path) -> None:
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
        add_file(tmp_path, 3)
        service.until(lambda: len(rows(tmp_path / "spend")) == 3)
        assert rows(tmp_path / "spend") == [(100, 4950)] * 3
        assert process.poll() is None, "it is the same process"
        assert java_of(process.pid) != java
        said = service.log.read_text()
        assert said.count("5 times without an epoch: starting anew.") == 1
        assert "port number" in said, "the daemon ended before it reported its port"
        asked = Client.of(service.pond)
        assert (asked.url, asked.status().failure) == (url, None)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, service.log.read_text()
