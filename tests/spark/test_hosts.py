"""Hosts that do not see a pond's folder: a real Spark master, and workers on hosts with a network between them.

Each worker has a mount namespace of its own. In it the folder `hidden` can be made empty, as for a host without a
shared disk. All tests share the master, the workers that they do not end, and the driver's Java machine, which each
program of a test joins. Spark decides on which worker a task runs, so the others are ended where one has to run all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from kit.inputs.required_services import skip_without
from kit.programs.forked_program import ForkedProgram
from kit.servers.network_hosts import NetworkHosts
from kit.servers.redis_servers import RedisCluster, RedisServer
from kit.servers.servers import Host, archived_class_path, archived_flags, free_ports, maps_archive, until
from millpond.cli import app
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.manifest import Manifest, Manifests, load
from millpond.log.port import Log
from millpond.log.records import EpochRecord, decode
from millpond.service.api.client import Client
from millpond.spark.session.java import find_java

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.slow]

EVENTS = 200
"""Of an input file; each has a key of its own, and the minute of its file."""

START_US, MINUTE_US = 1_767_225_600_000_000, 60_000_000

SQL = """
CREATE TABLE ev (k BIGINT, v BIGINT, ts TIMESTAMP) USING json OPTIONS (path '{input}', maxFilesPerTrigger '1');
CREATE STREAMING TABLE sums USING parquet TBLPROPERTIES ('path' = '{out}'{more}) AS
SELECT k, window(ts, '1 minute') AS w, sum(v) AS total
FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 1 HOUR GROUP BY ALL;
"""

FAULTS = ("fold.after_delta.1.stop", "gather.packet.3.stop")
"""Markers of the faults that are planned on all workers; with two instances, the third packet is the first one of the
second epoch."""

SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.task.maxFailures": "2",  # of which one is a host's end
    "spark.decommission.enabled": "true",
    "spark.python.daemon.module": "millpond.spark.driver.worker_daemon",  # each failure costs a Python worker
}

_HOME = Path(pyspark.__file__).parent
_JOINED = Path(__file__).with_name("joined_session.py")


def _environment() -> dict[str, str]:
    """What Spark's own scripts set for a master and a worker; Java flags, with the class archive, for executors too."""
    return {"SPARK_HOME": str(_HOME), "SPARK_SCALA_VERSION": "2.13", "JDK_JAVA_OPTIONS": archived_flags()}


def namespaces() -> str | None:
    """Why no process can be given namespaces of its own here; None: it can."""
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True)
    return NetworkHosts.missing() if done.returncode == 0 else f"unshare -m: {done.stderr.strip()}"


class Cluster:
    """A Spark master and driver on host 0, and a worker of one core on each host; ponds are below `hidden`.

    Worker 3 is on host 0, too. Each has an address of its own, because Spark repeats a slow task on another host only.
    """

    def __init__(self, root: Path, hosts: NetworkHosts) -> None:
        self.root, self.hidden, self.hosts = root, root / "hidden", [hosts.host(number % 3) for number in range(4)]
        self._faults = root / "faults"
        for folder in (self.hidden, self._faults):
            folder.mkdir()
        self._java = find_java()
        self._port, self._page = free_ports(2)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._blind = set[str]()
        self._driver: ForkedProgram | None = None
        self.driver_log = root / "driver.log"
        for fault in FAULTS:
            (self._faults / fault).touch()  # as if it had happened
        master = self.hosts[0]
        self._start("master", ["deploy.master.Master", "--host", master.address, "--port", str(self._port)], master)
        log = root / "master.log"  # a worker that finds no master waits for 15 s
        until(lambda: "elected leader" in log.read_text(), "the master works", 120)

    @property
    def url(self) -> str:
        """The master's address."""
        return f"spark://{self.hosts[0].address}:{self._port}"

    def _start(self, name: str, words: list[str], host: Host, environment: Mapping[str, str] = {}) -> None:
        page = str(self._page if name == "master" else free_ports(1)[0])
        command = [*host.inside, "unshare", "-m", str(self._java.executable), "-Xmx256m", "-cp", archived_class_path()]
        with open(self.root / f"{name}.log", "wb") as log:
            self._processes[name] = subprocess.Popen(
                [*command, f"org.apache.spark.{words[0]}", "--webui-port", page, *words[1:]],
                stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **_environment(), "SPARK_LOCAL_IP": host.address, **environment},
            )  # fmt: skip

    def joined(self, **settings: str) -> dict[str, str]:
        """Environment variables by which a program joins the driver, whose coming jobs have these settings of Spark."""
        address = self.hosts[0].address
        if self._driver is None:
            where = {"spark.driver.host": address, "spark.driver.bindAddress": address}
            where["spark.executor.extraClassPath"] = archived_class_path()
            words = ["-m", "kit.programs.driver_program", self.url, json.dumps({**SETTINGS, **where})]
            with open(self.driver_log, "wb") as log:
                self._driver = ForkedProgram(
                    words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
                )  # fmt: skip
        assert self._driver.stdin is not None and self._driver.stdout is not None
        self._driver.stdin.write(json.dumps(settings) + "\n")
        self._driver.stdin.flush()
        return dict(json.loads(self._driver.stdout.readline()))

    def workers(self, *numbers: int) -> None:
        """Have these workers, which see `hidden`, and no others."""
        names = {f"worker{number}" for number in numbers}
        for name in self._blind & names:
            self._inside(name, "umount", self.hidden)
            self._blind.remove(name)
        for number in numbers:
            self.worker(number)
        for name in {*self._processes} - names - {"master"}:
            self.end(name)

    def worker(self, number: int) -> None:
        """Start a worker unless it runs, and wait until the master knows it."""
        name = f"worker{number}"
        if name in self._processes:
            return
        host, planned = self.hosts[number], [fault.rsplit(".", 2) for fault in FAULTS]
        words = ["deploy.worker.Worker", "--host", host.address, "--cores", "1", "--memory", "1g", "--work-dir"]
        environment = {"MILLPOND_FAULT": ",".join(map(":".join, planned)), "MILLPOND_FAULT_DIR": str(self._faults)}
        self._start(name, [*words, self._work(name), self.url], host, environment)
        log = self.root / f"{name}.log"
        until(lambda: "Successfully registered with master" in log.read_text(), f"{name} registers", 120)

    def hide(self, number: int) -> None:
        """Let a worker no longer see `hidden`, and replace its executor, as if it were a host that comes later."""
        self._inside(f"worker{number}", "mount", "-t", "tmpfs", "none", self.hidden)
        self._blind.add(f"worker{number}")
        self._kill_children(f"worker{number}")

    def decommission(self, number: int) -> None:
        """Let a worker's executor finish its tasks and take no others; returns when it has ended."""
        programs = {pid: Path(f"/proc/{pid}/cmdline") for pid in _children(self._work(f"worker{number}"))}
        [executor] = [pid for pid, words in programs.items() if "CoarseGrainedExecutorBackend" in words.read_text()]
        assert maps_archive(executor)
        os.kill(executor, signal.SIGPWR)
        until(lambda: not Path(f"/proc/{executor}").exists(), "the executor ends", 240)

    def _inside(self, name: str, *words: object) -> None:
        inside = ["nsenter", "--mount", "--target", str(self._processes[name].pid)]
        subprocess.run([*inside, *map(str, words)], check=True)

    def plan_faults(self) -> None:
        """Let `FAULTS` happen, from now on."""
        for path in self._faults.iterdir():
            path.unlink()

    def stopped(self, fault: str) -> int:
        """The worker on which a process has stopped at one of `FAULTS`; waits until there is one."""
        marker = self._faults / fault
        until(lambda: marker.is_file() and marker.read_text() != "", fault, 240)
        found = {name for name in self._processes if int(marker.read_text()) in _children(self._work(name))}
        assert len(found) == 1, found
        return int(found.pop().removeprefix("worker"))

    def host_of(self, task: int) -> str:
        """The worker whose executor ran a task, as its log says."""
        logs = self.root.glob("work*/*/*/stderr")
        return next(path.parts[len(self.root.parts)] for path in logs if f"(TID {task})" in path.read_text())

    def _work(self, name: str) -> str:
        return str(self.root / name.replace("worker", "work"))

    def end(self, name: str) -> None:
        """Kill a process and its children: of a worker its executors."""
        process = self._processes.pop(name)
        self._blind.discard(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self._kill_children(name)
        process.wait()

    def _kill_children(self, name: str) -> None:
        for child in _children(self._work(name)):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def close(self) -> None:
        """Kill everything."""
        if self._driver is not None:
            self._driver.kill()
            self._driver.wait()
        for name in list(self._processes):
            self.end(name)


def _children(folder: str) -> list[int]:
    """Processes that work below a folder: executors and their Python workers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(entry / "cwd").startswith(f"{folder}/"):
                found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    skip_without("hosts", namespaces())
    with NetworkHosts(2) as hosts, ExitStack() as stack:
        made = Cluster(tmp_path_factory.mktemp("cluster"), hosts)
        stack.callback(made.close)
        yield made


class Run:
    """`millpond run`, or `serve`, on a pond below the hidden folder; `settings`: of Spark, for its jobs."""

    def __init__(
        self, cluster: Cluster, root: Path, *, store: str | None = None, verb: str = "run",
        settings: Mapping[str, str] = {}, more: str = "", also: str = "",
    ) -> None:  # fmt: skip
        self.cluster, self.root, self.pond = cluster, root, cluster.hidden / root.name / "ev.pond"
        self.store = [] if store is None else ["--store", store]
        (self.root / "input").mkdir(exist_ok=True)
        sql = self.root / "ev.sql"
        sql.write_text(SQL.format(input=self.root / "input", out=self.root / "out", more=more) + also)
        environment = {**os.environ, **cluster.joined(**settings)}
        self._logs = {cluster.driver_log: cluster.driver_log.stat().st_size, self.root / "run.log": 0}
        with open(self.root / "run.log", "wb") as log:
            self.process = ForkedProgram(
                [_JOINED, verb, sql, "--checkpoint", self.pond, *self.store, "--master", cluster.url],
                stdout=log, stderr=log, env=environment,
            )  # fmt: skip

    def said(self) -> str:
        """What it has printed, and what the driver has printed since."""
        return "".join(path.read_bytes()[start:].decode() for path, start in self._logs.items())

    def feed(self, number: int) -> None:
        """One more file of events."""
        path = self.root / "input" / f"{number}.json"
        lines = [json.dumps({"k": k, "v": number, "ts": f"2026-01-01T00:0{number}:00Z"}) for k in range(EVENTS)]
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("\n".join(lines))
        hidden.rename(path)

    def manifest(self) -> Manifest:
        """What the pond's log says now."""
        return load(Log(LocalFolder(self.pond / "log")), Manifests(LocalFolder(self.pond / "manifest")))

    def has_read(self, number: int) -> bool:
        """Whether the events of a file are committed."""
        assert self.process.poll() is None, self.said()
        if not (self.pond / "log").is_dir():
            return False
        newest = max(self.manifest().max_time.get("ev", {}).values(), default=0)
        return newest >= START_US + number * MINUTE_US

    def fold_hosts(self) -> list[tuple[str, ...]]:
        """For each epoch so far, the worker that folded each instance."""
        log = Log(LocalFolder(self.pond / "log"))
        records = [decode(log.read(n) or b"", log.describe(n)).record for n in range(1, self.manifest().n + 1)]
        attempts = [[one.attempt for one in record.receipts] for record in records if isinstance(record, EpochRecord)]
        return [tuple(self.cluster.host_of(int(name.rpartition("-")[2])) for name in epoch) for epoch in attempts]

    def lacking(self) -> set[str]:
        """Files that the log names and the folder lacks."""
        named = {section.file for section in self.manifest().sections.values() if section.file is not None}
        return {file for file in named if not (self.pond / file).is_file()}

    def ended(self) -> tuple[int, str]:
        """Its exit status and what it said."""
        return self.process.wait(240), self.said()

    def stopped(self) -> str:
        """End it after the epoch at hand; what it said."""
        self.process.send_signal(signal.SIGINT)
        return self.ended()[1]

    def rows(self) -> list[tuple[int, int]]:
        """The key and the sum of every row, after all windows were closed by a run in this process."""
        words = ["run", str(self.root / "ev.sql"), "--checkpoint", str(self.pond), *self.store, "--once", "--drain"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return sorted((row["k"], row["total"]) for row in pq.read_table(self.root / "out").to_pylist())


def expected(files: int) -> list[tuple[int, int]]:
    """A row for each key and file."""
    return sorted((k, number) for k in range(EVENTS) for number in range(files))


def test_hosts_that_stop_or_end_change_no_row_and_one_without_the_folder_ends_the_run(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.workers(1, 2)
    cluster.plan_faults()
    run = Run(cluster, tmp_path)
    run.feed(0)
    until(lambda: run.has_read(0), "the first epoch, of which one fold is repeated on another host", 240)
    assert cluster.stopped(FAULTS[0])
    run.feed(1)
    ended = cluster.stopped(FAULTS[1])
    cluster.end(f"worker{ended}")
    until(lambda: run.has_read(1), "the second epoch, in whose midst a host ends", 240)

    cluster.hide(3 - ended)
    run.feed(2)
    status, said = run.ended()

    assert status == 1
    assert "[MP-HOST]" in said and "does not see the pond's folder" in said, said
    assert "MP-CORRUPT" not in said
    assert not run.lacking()
    # a host that is there when the pond is opened is refused before anything is read
    again = Run(cluster, tmp_path)
    status, said = again.ended()
    assert status == 1 and "is not on every executor's host" in said
    assert run.rows() == expected(3)


UPSERTED = """
CREATE STREAMING TABLE upserted USING redis TBLPROPERTIES ('key' = 'sum:{k}', 'columns' = 'total', 'emit' = 'update') AS
SELECT k, window(ts, '1 minute') AS w, sum(v) AS total
FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 1 HOUR GROUP BY ALL;
CREATE TEMPORARY VIEW known (k BIGINT, total BIGINT) USING redis OPTIONS (key 'sum:{k}');
CREATE STREAMING TABLE before USING noop AS SELECT ev.k, total FROM STREAM ev LEFT JOIN known ON ev.k = known.k;
"""
"""Rows whose keys are in other hash slots than those of their group, which are written and looked up."""


def test_instances_stay_beside_their_shards_and_a_later_host_gets_their_files_through_the_store(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, redis_installed: None
) -> None:
    with RedisCluster(tmp_path / "redis", 2, hosts=cluster.hosts[1:3]) as store:
        cluster.workers(1, 2)
        # however slow the tasks of the other job on the only core are
        settings = {"spark.locality.wait": "60s", "spark.speculation": "false"}
        run = Run(
            cluster, tmp_path, store=store.url, verb="serve", settings=settings, more=", 'serve' = 'true'",
            also=UPSERTED,
        )  # fmt: skip

        def read(*numbers: int) -> None:
            for number in numbers:
                run.feed(number)
                until(lambda number=number: run.has_read(number), f"epoch {number}", 240)  # type: ignore[misc]

        read(0, 1, 2, 3, 4)
        # the first epoch may begin before both executors, and the second before the shards are known
        assert run.fold_hosts()[2:] == [("work1", "work2")] * 3
        client = Client.of(run.pond, timeout=240)
        requests = 1024 + 2 * EVENTS  # of the view, the sink and the look-up
        until(lambda: client.placement().requests >= requests, "the view and the sink have the newest rows", 240)
        until(lambda: client.placement().local_hit_rate == 1, "all were sent to shards of the same host", 240)
        assert client.placement().aligned == 1

        cluster.worker(3)
        cluster.hide(3)
        cluster.end("worker1")
        cluster.end("worker2")
        read(5, 6)
        run.stopped()

        assert not run.lacking()
        assert run.rows() == expected(7)
        with store.client() as redis:
            totals = [redis.hget(f"sum:{k}", "total") for k in range(EVENTS)]
        assert totals == [b"6"] * EVENTS


LATER = """SELECT k, window(ts, '1 minute') AS w, sum(v) AS total
FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY ALL"""


def test_a_backfill_on_a_later_host_uses_the_store_and_survives_a_decommissioned_executor(
    cluster: Cluster, tmp_path: Path
) -> None:
    with RedisServer(tmp_path / "redis", host=cluster.hosts[0]) as server:
        cluster.workers(3)
        run = Run(cluster, tmp_path, store=server.url, verb="serve")
        run.feed(0)
        until(lambda: run.has_read(0), "the first epoch", 240)
        run.feed(1)
        until(lambda: run.has_read(1), "the second epoch", 240)

        cluster.hide(3)

        def rows(query: str) -> list[tuple[int, int]]:
            parts = sorted((run.pond / "out" / query).glob("part-*"))
            return sorted((row["k"], row["total"]) for part in parts for row in map(json.loads, part.open()))

        client = Client.of(run.pond, timeout=240)
        client.add(
            "first", LATER, sink="json", backfill="all"
        )  # the backfill finds that the host does not see the folder
        run.feed(2)
        until(lambda: rows("first") == expected(2), "the rows of two backfilled windows", 240)
        client.add("second", LATER, sink="json", backfill="all")  # the store transfers files already
        run.feed(3)
        cluster.decommission(3)  # in the backfill, or the epoch; another executor of the host takes its place
        for query in ("first", "second"):  # each is published at a time of its own
            until(lambda query=query: rows(query) == expected(3), f"three windows of {query}", 240)  # type: ignore[misc]
        assert not run.lacking()
        assert not list(run.pond.glob("backfill/*"))
        said = run.stopped()
        assert "Traceback" not in said, said
