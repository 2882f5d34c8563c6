"""Three times the load for a while, on a Spark cluster of several hosts: how soon does the autoscaler absorb it?

    python benchmarks/spike.py [--before 40] [--spike 120] [--after 40] [--small]

Needs Linux and root. Each of four hosts is a network namespace with a worker of Spark's standalone cluster that has one
core; `millpond serve --autoscale 1-4` runs on a fifth one, with one instance at first. Each packet between hosts takes
`DELAY_MS`. One query counts the payments of each customer in a processor that takes `SlowTenth.EVENT_S` seconds an
event without a core, because all hosts share those of this machine: so the load of an instance is bound by time.

Events arrive twice a second: `RATE` a second, which is 0.4 of what an instance can do, then three times as many, then
as before. A file's latency is the time from its arrival until its events are committed, as the log says. `normal_s`:
its median before the spike. `peak_s`: the largest latency. `scaled_s`: from the spike's begin to the record with the
request for more instances. `absorbed_s`: from the spike's begin until no file of the spike waits longer than twice
`normal_s` and a second. `gap_s`: the longest time between two epochs in the spike, so a stop would be seen. The rows
are compared with those of a loop over all events. The last line is one JSON object, kept in `results/`; the exit code
is 1 if a row is lost or surplus, or the pond was claimed twice.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import sleep, time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from every_tenth import SlowTenth
from hosts import DELAY_MS, spark_cluster
from results import FOLDER, keep

from kit.servers.network_hosts import NetworkHosts
from kit.servers.servers import until
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.port import Log
from millpond.log.records import ChangeRecord, ClaimRecord, EpochRecord, decode

HOSTS, KEYS, FACTOR = 4, 500, 3
RATE, PAUSE = 0.4 / SlowTenth.EVENT_S, 0.5
START_US = 1_700_000_000_000_000
LIMIT = 300.0

SQL = """
CREATE TABLE tx (customer BIGINT, amount DOUBLE, ts TIMESTAMP) USING parquet OPTIONS (path '{folder}/in');
CREATE STREAMING TABLE tenths USING parquet TBLPROPERTIES ('path' = '{folder}/out') AS
SELECT customer, inline(slow_tenth(amount)) FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY customer;
"""

FUNCTION = {
    "module": "every_tenth:SlowTenth", "kind": "stateful", "takes": {"amount": "double"}, "deadline": "120 seconds",
    "returns": {"n": "bigint", "total": "double"}, "state": {"n": "bigint", "total": "double"},
}  # fmt: skip

SETTINGS = """
spark.driver.host {host}
spark.driver.bindAddress {host}
spark.executor.memory 512m
spark.executorEnv.PYTHONPATH {path}
"""


class Load:
    """Files of events, each with its number of events and the time of its arrival."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.ends, self.arrived = folder, list[int](), list[float]()
        folder.mkdir()

    def add(self, events: int) -> None:
        """Write a file; it appears atomically."""
        number, first = len(self.ends), self.ends[-1] if self.ends else 0
        values = np.arange(first, first + events)
        table = pa.table({
            "customer": values * 7919 % KEYS, "amount": (values % 100).astype(float),
            "ts": pa.array(START_US + values, pa.timestamp("us", "UTC")),
        })  # fmt: skip
        draft = self._folder / f".{number}"
        pq.write_table(table, draft)
        os.utime(draft, (START_US // 1_000_000 + number,) * 2)
        draft.rename(self._folder / f"{number:06}.parquet")
        self.ends.append(first + events)
        self.arrived.append(time())

    def flow(self, seconds: float, factor: int) -> None:
        """Add a file twice a second for `seconds`."""
        end = time() + seconds
        while time() < end:
            self.add(round(factor * RATE * PAUSE))
            sleep(max(0.0, self.arrived[-1] + PAUSE - time()))

    def expected(self) -> Counter[tuple[int, int]]:
        """A row for each tenth payment of a customer."""
        counts = np.bincount(np.arange(self.ends[-1]) * 7919 % KEYS, minlength=KEYS)
        return Counter((key, n) for key, count in enumerate(counts.tolist()) for n in range(10, count + 1, 10))


def records(pond: Path) -> list[ClaimRecord | ChangeRecord | EpochRecord]:
    """All records of the log."""
    log, found = Log(LocalFolder(pond / "log")), []
    while (data := log.read(len(found))) is not None:
        found.append(decode(data).record)
    return found


def committed(pond: Path) -> list[tuple[float, int]]:
    """The time of each epoch, and the events until then."""
    total, found = 0, []
    for record in records(pond):
        if isinstance(record, EpochRecord):
            total += record.counts.get("*", {}).get("events", 0)
            found.append((record.at / 1e6, total))
    return found


def latencies(load: Load, epochs: Sequence[tuple[float, int]]) -> list[float]:
    """The seconds from each file's arrival to its commit."""
    at, total = (np.array(column) for column in zip(*epochs, strict=True))
    return (at[np.searchsorted(total, load.ends)] - np.array(load.arrived)).tolist()  # type: ignore[no-any-return]


def measure(work: Path, before: float, spike: float, after: float) -> dict[str, float]:
    """Serve a pond under the load, and compare its rows."""
    load, pond = Load(work / "in"), work / "pond"
    (work / "tx.sql").write_text(SQL.format(folder=work))
    (work / "functions.json").write_text(json.dumps({"slow_tenth": FUNCTION}))
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    variables = {"MILLPOND_FUNCTIONS": str(work / "functions.json"), "PYTHONPATH": path, "SPARK_CONF_DIR": str(work)}
    words = [sys.executable, "-m", "millpond"]
    with NetworkHosts(HOSTS, DELAY_MS) as hosts, spark_cluster(hosts, work) as master:
        (work / "spark-defaults.conf").write_text(SETTINGS.format(host=hosts.host(0).address, path=path))
        serve = ["serve", str(work / "tx.sql"), "--checkpoint", str(pond), "--master", master, "--instances", "1"]
        with (work / "serve.log").open("wb") as log:
            service = subprocess.Popen(
                [*words, *serve, "--autoscale", f"1-{HOSTS}"], stdout=log, stderr=log, env=os.environ | variables
            )
        try:
            until(lambda: "Leading;" in (work / "serve.log").read_text() or service.poll(), "it leads", LIMIT)
            load.flow(10, 1)  # the first epochs compile
            until(lambda: committed(pond)[-1][1] >= load.ends[-1], "the first files are read", LIMIT)
            first = len(load.ends)
            load.flow(before, 1)
            begun, spiked = time(), len(load.ends)
            load.flow(spike, FACTOR)
            ended = len(load.ends)
            load.flow(after, 1)
            until(lambda: committed(pond)[-1][1] >= load.ends[-1], "all files are read", LIMIT)
            service.send_signal(signal.SIGINT)
            service.wait(60)
        finally:
            with suppress(ProcessLookupError):
                service.kill()
            service.wait()
    found = latencies(load, committed(pond))
    normal = median(found[first:spiked])
    slow = [number for number in range(spiked, ended) if found[number] > 2 * normal + 1]
    changes = [record for record in records(pond) if isinstance(record, ChangeRecord)]
    scaled = [record.at / 1e6 - begun for record in changes if "scale" in str(record.change)]
    times = [at for at, _ in committed(pond) if begun <= at <= load.arrived[ended - 1]]
    run = ["run", str(work / "tx.sql"), "--checkpoint", str(pond), "--once", "--drain", "--master", "local[2]"]
    subprocess.run([*words, *run], check=True, stdout=subprocess.DEVNULL, env=os.environ | variables)
    rows = Counter(zip(*(pq.read_table(work / "out")[name].to_pylist() for name in ("customer", "n")), strict=True))
    most = max(len(record.receipts) for record in records(pond) if isinstance(record, EpochRecord))
    return {
        "events": load.ends[-1], "normal_s": round(normal, 2), "peak_s": round(max(found[first:]), 2),
        "scaled_s": round(min((at for at in scaled if at > 0), default=-1.0), 1), "instances": most,
        "absorbed_s": round(load.arrived[slow[-1]] + found[slow[-1]] - begun, 1) if slow else 0.0,
        "waiting_at_end": int(bool(slow) and slow[-1] == ended - 1),
        "gap_s": round(max((later - earlier for earlier, later in pairwise(times)), default=0.0), 2),
        "claims": sum(isinstance(record, ClaimRecord) for record in records(pond)) - 1,  # the last one compares
        "lost": (load.expected() - rows).total(), "surplus": (rows - load.expected()).total(),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=float, default=40.0)
    parser.add_argument("--spike", type=float, default=120.0)
    parser.add_argument("--after", type=float, default=40.0)
    parser.add_argument("--small", action="store_true", help="too short to scale, and nothing is kept")
    given = parser.parse_args(arguments)
    if (why := NetworkHosts.missing()) is not None:
        raise SystemExit(f"There can be no hosts here: {why}")
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as made:
        seconds = (5.0, 5.0, 5.0) if given.small else (given.before, given.spike, given.after)
        figures = measure(Path(made), *seconds)
        keep("spike", figures, Path(made) if given.small else FOLDER)
    return int(figures["lost"] + figures["surplus"] > 0 or figures["claims"] > 1)


if __name__ == "__main__":
    sys.exit(main())
