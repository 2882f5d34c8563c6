"""A pond in HDFS whose executors run on YARN: relative paths and Spark's checkpoint stay local, an executor dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest

from kit.servers.yarn_server import YarnServer

FILES, ROWS, KEYS, START = 5, 500, 20, 1704067200
SECONDS = 600.0
EXECUTOR = b"org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"

FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Each of these Java machines lives for seconds, most of which its optimising compiler would take."""

SETTINGS = f"""
spark.yarn.jars               local:{Path(pyspark.__file__).parent}/jars/*
spark.pyspark.python          {sys.executable}
spark.driver.host             127.0.0.1
spark.driver.bindAddress      127.0.0.1
spark.executor.instances      2
spark.executor.cores          1
spark.executor.memory         512m
spark.executor.memoryOverhead 512m
spark.yarn.am.memory          512m
spark.yarn.am.extraJavaOptions   {FLAGS}
spark.executor.extraJavaOptions  {FLAGS}
"""

QUERY = """
CREATE TABLE ev (k STRING, n BIGINT, ts TIMESTAMP) USING json OPTIONS (path 'in', maxFilesPerTrigger '1');
CREATE STREAMING TABLE w USING json TBLPROPERTIES ('path' = 'out') AS
SELECT k, window(ts, '2 minutes').start AS at, count(*) AS c, sum(n) AS s
FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 5 SECONDS GROUP BY k, window(ts, '2 minutes');
"""


def feed(folder: Path) -> None:
    folder.mkdir()
    for file in range(FILES):
        path = folder / f"{file}.json"
        events = (
            {"k": f"k{n % KEYS}", "n": n, "ts": f"2024-01-01T00:{file:02}:{n % ROWS * 60 // ROWS:02}Z"}
            for n in range(file * ROWS, (file + 1) * ROWS)
        )
        path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
        os.utime(path, (START + file, START + file))  # Spark reads the oldest first


def expected() -> Counter[tuple[str, str, int, int]]:
    windows: dict[tuple[str, int], list[int]] = {}
    for n in range(FILES * ROWS):
        windows.setdefault((f"k{n % KEYS}", n // ROWS // 2 * 2), []).append(n)
    return Counter((k, f"2024-01-01T00:{at:02}", len(of), sum(of)) for (k, at), of in windows.items())


def executors(folder: Path) -> list[int]:
    """The Java processes of executors whose containers are below `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            inside = str((process / "cwd").resolve()).startswith(str(folder))
        except OSError:  # it has ended
            continue
        if inside and words[0].endswith(b"java") and EXECUTOR in words:
            found.append(int(process.name))
    return found


@pytest.mark.spark
def test_a_pond_in_hdfs_runs_on_yarn_and_survives_an_executor(hdfs_installed: None, tmp_path: Path) -> None:
    feed(tmp_path / "in")
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "spark-defaults.conf").write_text(SETTINGS)
    (tmp_path / "q.sql").write_text(QUERY)
    with YarnServer(tmp_path / "server") as server:
        command = [
            sys.executable, "-m", "millpond", "run", "q.sql", "--checkpoint", f"{server.uri}/ponds/a",
            "--master", "yarn", "--instances", "2", "--once", "--drain",
        ]  # fmt: skip
        environment = {**os.environ, **server.environment, "SPARK_CONF_DIR": str(tmp_path / "settings")}
        with (tmp_path / "log").open("w+") as log, subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as run:
            try:
                assert run.stdout is not None
                lines = []
                for line in run.stdout:
                    lines.append(line)
                    if line.startswith("epoch 2 "):
                        os.kill(executors(tmp_path / "server")[0], signal.SIGKILL)
                assert run.wait(SECONDS) == 0, (lines, log.seek(0), log.read())
            finally:
                run.kill()
    rows = [json.loads(line) for part in (tmp_path / "out").glob("part-*") for line in part.read_text().splitlines()]
    assert Counter((row["k"], row["at"][:16], row["c"], row["s"]) for row in rows) == expected()
