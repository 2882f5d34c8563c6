"""Hosts that do not see a pond's folder: a real Spark master, and a worker in a mount namespace of its own.

For the second worker the folder `hidden` is empty, as for a host without a shared disk. Spark decides on which worker
a task runs, so the first one is ended when the second one is to have all of them.
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

from kit.programs.forked_program import ForkedProgram
from kit.servers.network_hosts import NetworkHosts
from kit.servers.redis_servers import RedisCluster, RedisServer
from kit.servers.servers import LOOPBACK, Host, free_ports, until
from millpond.cli import app
from millpond.log.manifest import Manifest, Manifests, load
from millpond.log.places.local_folder import LocalFolder
from millpond.log.port import Log
from millpond.log.records import EpochRecord, decode
from millpond.service.api.client import Client
from millpond.spark.session.class_archive import archive_path
from millpond.spark.session.java import Java, find_java, with_archive

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

_HOME = Path(pyspark.__file__).parent
_FLAGS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
"""The Java flags of tests."""


def _environment(java: Java) -> dict[str, str]:
    """What Spark's own scripts set for a master and a worker; Java flags, with the class archive, for executors too."""
    return {
        "SPARK_HOME": str(_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SCALA_VERSION": "2.13",
        "JDK_JAVA_OPTIONS": " ".join(with_archive(["", *_FLAGS], archive_path(java))).strip(),
    }  # fmt: skip


def namespaces() -> str | None:
    """Why no process can be given namespaces of its own here; None: it can."""
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True)
    return NetworkHosts.missing() if done.returncode == 0 else f"unshare -m: {done.stderr.strip()}"


class Cluster:
    """A Spark master on `host`, with workers of one core each; the pond's folder is below `hidden`."""

    def __init__(self, root: Path, host: Host = LOOPBACK) -> None:
        self.root, self.hidden = root, root / "hidden"
        self.hidden.mkdir()
        self._java = find_java()
        self._host, (self._port, self._page) = host, free_ports(2)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._start("master", ["deploy.master.Master", "--host", host.address, "--port", str(self._port)], [])

    @property
    def url(self) -> str:
        """The master's address."""
        return f"spark://{self._host.address}:{self._port}"

    def _start(self, name: str, words: list[str], before: list[str], environment: Mapping[str, str] = {}) -> None:
        jars = _HOME / "jars"
        # Java maps an archive for the class path with which it was made, that of Spark's launcher.
        classes = ":".join(map(str, (_HOME / "conf", next(jars.glob("slf4j-api-*.jar")), jars / "*")))
        page = str(self._page if name == "master" else free_ports(1)[0])
        command = [*before, str(self._java.executable), "-Xmx256m", "-cp", classes, f"org.apache.spark.{words[0]}"]
        with open(self.root / f"{name}.log", "wb") as log:
            self._processes[name] = subprocess.Popen(
                [*command, "--webui-port", page, *words[1:]], stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **_environment(self._java), **environment},
            )  # fmt: skip

    def worker(self, number: int, *, blind: bool = False, faults: str | None = None, host: Host | None = None) -> None:
        """Start a worker, and wait until the master knows it; a `blind` one does not see `hidden`.

        Each has an address of its own, because Spark repeats a slow task on another host only.
        """
        name, folder = f"worker{number}", self.root / f"work{number}"
        host = host or Host(f"127.0.0.{number}")
        words = ["deploy.worker.Worker", "--host", host.address, "--cores", "1", "--memory", "1g", "--work-dir"]
        hide = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none "{self.hidden}" && exec "$@"', "sh"]
        planned = {} if faults is None else {"MILLPOND_FAULT": faults, "MILLPOND_FAULT_DIR": str(self.root / "faults")}
        planned["SPARK_LOCAL_IP"] = host.address
        (self.root / "faults").mkdir(exist_ok=True)
        self._start(name, [*words, str(folder), self.url], [*host.inside, *(hide if blind else [])], planned)
        log = self.root / f"{name}.log"
        until(lambda: "Successfully registered with master" in log.read_text(), f"{name} registers", 120)

    def stopped(self, fault: str) -> str:
        """The worker on which a process has stopped at a fault; waits until there is one."""
        marker = self.root / "faults" / f"{fault}.stop"
        until(lambda: marker.is_file() and marker.read_text() != "", fault, 240)
        found = {name for name in self._processes if int(marker.read_text()) in _children(self._work(name))}
        assert len(found) == 1, found
        return found.pop()

    def host_of(self, task: int) -> str:
        """The worker whose executor ran a task, as its log says."""
        logs = self.root.glob("work*/*/*/stderr")
        return next(path.parts[len(self.root.parts)] for path in logs if f"(TID {task})" in path.read_text())

    def _work(self, name: str) -> str:
        return str(self.root / name.replace("worker", "work"))

    def end(self, name: str) -> None:
        """Kill a process and its children: of a worker its executors."""
        process = self._processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for child in _children(self._work(name)):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """Kill everything."""
        for name in list(self._processes):
            self.end(name)


def _children(folder: str) -> list[int]:
    """Processes that work below a folder: executors and their Python workers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(entry / "cwd").startswith(folder):
                found.append(int(entry.name))
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if (why := namespaces()) is not None:
        assert "hosts" not in os.environ.get("MILLPOND_REQUIRE", ""), why
        pytest.skip(why)
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.close()


class Run:
    """`millpond run`, or `serve`, on a pond below the hidden folder."""

    def __init__(
        self, cluster: Cluster, *, master: str, store: str | None = None, verb: str = "run", settings: str = "",
        more: str = "", also: str = "",
    ) -> None:  # fmt: skip
        self.cluster, self.root, self.pond = cluster, cluster.root, cluster.hidden / "ev.pond"
        (self.root / "spark-defaults.conf").write_text(settings)
        self.store = [] if store is None else ["--store", store]
        (self.root / "input").mkdir(exist_ok=True)
        sql = self.root / "ev.sql"
        sql.write_text(SQL.format(input=self.root / "input", out=self.root / "out", more=more) + also)
        self.log = self.root / "run.log"
        with open(self.log, "wb") as log:
            self.process = ForkedProgram(
                ["-m", "millpond", verb, sql, "--checkpoint", self.pond, *self.store, "--master", master,
                 "--memory", "1g"],
                stdout=log, stderr=log, env={**os.environ, "SPARK_CONF_DIR": str(self.root)},
            )  # fmt: skip

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
        assert self.process.poll() is None, self.log.read_text()
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
        status = self.process.wait(240)
        return status, self.log.read_text()

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


SPECULATION = """
spark.speculation true
spark.speculation.quantile 0.5
spark.speculation.minTaskRuntime 1s
"""


def test_hosts_that_stop_or_end_change_no_row_and_one_without_the_folder_ends_the_run(
    spark: SparkSession, cluster: Cluster
) -> None:
    # with two instances, the third packet is the first one of the second epoch
    for number in (1, 2):
        cluster.worker(number, faults="fold.after_delta:1:stop,gather.packet:3:stop")
    run = Run(cluster, master=cluster.url, settings=SPECULATION)
    run.feed(0)
    until(lambda: run.has_read(0), "the first epoch, of which one fold is repeated on another host", 240)
    assert cluster.stopped("fold.after_delta.1")
    run.feed(1)
    ended = cluster.stopped("gather.packet.3")
    cluster.end(ended)
    until(lambda: run.has_read(1), "the second epoch, in whose midst a host ends", 240)

    cluster.worker(3, blind=True)
    cluster.end("worker2" if ended == "worker1" else "worker1")
    run.feed(2)
    status, said = run.ended()

    assert status == 1
    assert "[MP-HOST]" in said and "does not see the pond's folder" in said, said
    assert "MP-CORRUPT" not in said
    assert not run.lacking()
    # a host that is there when the pond is opened is refused before anything is read
    again = Run(cluster, master=cluster.url)
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
    spark: SparkSession, tmp_path: Path, redis_installed: None
) -> None:
    if (why := namespaces()) is not None:
        assert "hosts" not in os.environ.get("MILLPOND_REQUIRE", ""), why
        pytest.skip(why)
    run: Run

    def read(*numbers: int) -> None:
        for number in numbers:
            run.feed(number)
            until(lambda number=number: run.has_read(number), f"epoch {number}", 240)  # type: ignore[misc]

    with NetworkHosts(2) as hosts, ExitStack() as stack:
        driver, *others = (hosts.host(number) for number in range(3))
        cluster = Cluster(tmp_path, driver)
        stack.callback(cluster.close)
        store = stack.enter_context(RedisCluster(tmp_path / "redis", 2, hosts=others))
        for number in (1, 2):
            cluster.worker(number, host=others[number - 1])
        settings = f"spark.driver.host {driver.address}\nspark.driver.bindAddress {driver.address}\n"
        settings += "spark.locality.wait 60s\n"  # however slow the tasks of the other job on the only core are
        run = Run(
            cluster, master=cluster.url, store=store.url, verb="serve", settings=settings, more=", 'serve' = 'true'",
            also=UPSERTED,
        )  # fmt: skip
        read(0, 1, 2, 3, 4)
        # the first epoch may begin before both executors, and the second before the shards are known
        assert run.fold_hosts()[2:] == [("work1", "work2")] * 3
        client = Client.of(run.pond, timeout=240)
        requests = 1024 + 2 * EVENTS  # of the view, the sink and the look-up
        until(lambda: client.placement().requests >= requests, "the view and the sink have the newest rows", 240)
        until(lambda: client.placement().local_hit_rate == 1, "all were sent to shards of the same host", 240)
        assert client.placement().aligned == 1

        cluster.worker(3, blind=True, host=driver)
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


def test_a_backfill_on_a_host_that_comes_later_goes_through_the_store(cluster: Cluster) -> None:
    with RedisServer(cluster.root / "redis") as server:
        cluster.worker(1)
        run = Run(cluster, master=cluster.url, store=f"redis://127.0.0.1:{server.port}", verb="serve")
        run.feed(0)
        until(lambda: run.has_read(0), "the first epoch", 240)
        run.feed(1)
        until(lambda: run.has_read(1), "the second epoch", 240)

        cluster.worker(2, blind=True)
        cluster.end("worker1")

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
        for query in ("first", "second"):  # each is published at a time of its own
            until(lambda query=query: rows(query) == expected(3), f"three windows of {query}", 240)  # type: ignore[misc]
        assert not run.lacking()
        assert not list(run.pond.glob("backfill/*"))
        said = run.stopped()
        assert "Traceback" not in said, said
