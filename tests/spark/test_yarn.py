"""A pond in HDFS whose executors run on YARN: an executor dies.

Relative paths and Spark's checkpoint stay local; Spark's defaults apply to executors.
"""

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

from kit.programs.forked_program import ForkedProgram
from kit.servers.servers import JAVA_FLAGS
from kit.servers.yarn_server import YarnServer
from millpond.spark.session.class_archive import archive_path
from millpond.spark.session.java import find_java, with_archive

FILES, ROWS, KEYS, START = 5, 500, 20, 1704067200
SECONDS = 600.0
EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"

HOME = Path(pyspark.__file__).parent

SETTINGS = """
spark.yarn.jars               local:{home}/jars/*
spark.pyspark.python          {python}
spark.driver.host             127.0.0.1
spark.driver.bindAddress      127.0.0.1
spark.executor.instances      2
spark.executor.cores          1
spark.executor.memory         512m
spark.executor.memoryOverhead 512m
spark.yarn.am.memory          512m
spark.yarn.am.extraJavaOptions   {flags}
spark.executor.extraJavaOptions  {archived}
spark.executor.extraClassPath    {classes}
"""

QUERY = """
CREATE TABLE ev (k STRING, n BIGINT, ts TIMESTAMP) USING json OPTIONS (path 'in', maxFilesPerTrigger '1');
CREATE STREAMING TABLE w USING json TBLPROPERTIES ('path' = 'out') AS
SELECT k, window(ts, '2 minutes').start AS at, count(*) AS c, sum(n) AS s
FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 5 SECONDS GROUP BY k, window(ts, '2 minutes');
"""


PYTHON = """#!/bin/sh
touch {used}
exec {python} "$@"
"""


def settings(python: Path) -> str:
    """Spark's defaults; executors map the class archive, for which their class path begins like the driver's."""
    java = find_java()
    archived = " ".join(with_archive(["", *JAVA_FLAGS], archive_path(java))).strip()
    classes = ":".join(map(str, (HOME / "conf", next((HOME / "jars").glob("slf4j-api-*.jar")), HOME / "jars" / "*")))
    return SETTINGS.format(
        home=HOME, python=python, flags=" ".join(JAVA_FLAGS), archived=archived, classes=classes
    )  # fmt: skip


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


def executors(folder: Path) -> dict[int, list[str]]:
    """The command lines of the Java processes of executors whose containers are below `folder`."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
            inside = str((process / "cwd").resolve()).startswith(str(folder))
        except OSError:  # it has ended
            continue
        if inside and words[0].endswith("java") and EXECUTOR in words:
            found[int(process.name)] = words
    return found


@pytest.mark.spark
def test_a_pond_in_hdfs_runs_on_yarn_and_survives_an_executor(hdfs_installed: None, tmp_path: Path) -> None:
    feed(tmp_path / "in")
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "spark-defaults.conf").write_text(settings(tmp_path / "python"))
    (tmp_path / "python").write_text(PYTHON.format(used=tmp_path / "used", python=sys.executable))
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "q.sql").write_text(QUERY)
    with YarnServer(tmp_path / "server") as server:
        words = [
            "-m", "millpond", "run", "q.sql", "--checkpoint", f"{server.uri}/ponds/a",
            "--master", "yarn", "--instances", "2", "--once", "--drain",
        ]  # fmt: skip
        environment = {**os.environ, **server.environment, "SPARK_CONF_DIR": str(tmp_path / "settings")}
        environment.pop("PYSPARK_PYTHON", None)  # which a session of this process may have set
        with (
            (tmp_path / "log").open("w+") as log,
            ForkedProgram(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as run,
        ):
            try:
                assert run.stdout is not None
                lines = []
                for line in run.stdout:
                    lines.append(line)
                    if line.startswith("epoch 2 "):
                        running = executors(tmp_path / "server")
                        assert all({"-Xss32m", *JAVA_FLAGS} <= {*words} for words in running.values()), running
                        os.kill(min(running), signal.SIGKILL)
                assert run.wait(SECONDS) == 0, (lines, log.seek(0), log.read())
            finally:
                run.kill()
    assert (tmp_path / "used").exists(), "workers run the Python of Spark's defaults"
    rows = [json.loads(line) for part in (tmp_path / "out").glob("part-*") for line in part.read_text().splitlines()]
    assert Counter((row["k"], row["at"][:16], row["c"], row["s"]) for row in rows) == expected()
