"""How long plain Spark's query with state is interrupted by a change: stopped, and started from its checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np
from live_load import Arrivals, Plain, Size, by_country, hourly
from live_plain import CORES
from own_time import OwnTime
from pyspark.sql import SparkSession

LEAST_S = 0.005


def restarts(spark: SparkSession, work: Path, size: Size) -> tuple[dict[str, float], float]:
    """Seconds by which plain Spark's query is interrupted longer than between two batches, and MB of its state."""
    time, longer, state = OwnTime(), dict[str, list[float]](), 0.0
    load = Arrivals(work / "again", size.load, time.now)
    for _ in range(size.plain_files):
        load.hour()
    spark = spark.newSession()  # plain Spark's settings are its own
    plain = Plain(spark, load.folder, work / "plain")
    spark.conf.set("spark.sql.shuffle.partitions", CORES)
    plain.start("hourly", hourly())
    for seconds in size.others:
        plain.start(f"country{seconds}", by_country(seconds))
    try:
        plain.wait("hourly", 1)
        load.begin()
        for turn in range(size.restarts):
            for name, partitions in (("restart_in_session_s", 0), ("repartition_s", 4 - turn % 2)):
                plain.wait("hourly", size.batches)
                ended = plain.ended["hourly"]
                usual, count = median(np.diff([time.of(at) for at in ended[-size.batches :]])), len(ended)
                progress = plain.running["hourly"].lastProgress
                state = progress["stateOperators"][0]["memoryUsedBytes"] / 1e6 if progress else state
                if partitions:  # needs a checkpoint without a planned batch
                    load.hold()
                    plain.running["hourly"].processAllAvailable()
                    count = len(ended)
                plain.stop("hourly")
                if partitions:
                    plain.repartition("hourly", partitions)
                    load.begin()
                plain.start("hourly", hourly(least=0.1 * (turn + 1)))
                plain.wait("hourly", 1)
                longer.setdefault(name, []).append(time.of(ended[count]) - time.of(ended[count - 1]) - usual)
                print(f"{name:20} {longer[name][-1]:.2f} s", flush=True)
        for name in list(plain.running):
            plain.stop(name)
        longer["restart_s"] = _applications(load.folder, work / "plain", size, time)
    finally:
        load.end()
        time.end()
        for name in list(plain.running):
            plain.stop(name)
    return {name: max(LEAST_S, median(values)) for name, values in longer.items()}, state


def _applications(source: Path, folder: Path, size: Size, time: OwnTime) -> list[float]:
    """Seconds by which the query is interrupted longer than between two batches when its application is replaced."""
    longer, before = list[float](), list[float]()
    others = [str(seconds) for seconds in size.others]
    for turn in range(size.restarts + 1):
        command = [sys.executable, str(Path(__file__).with_name("live_plain.py")), str(source), str(folder)]
        with subprocess.Popen(
            [*command, str(0.5 + 0.1 * turn), *others], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as application:
            assert application.stdin is not None and application.stdout is not None
            ended = list[float]()
            while len(ended) < size.batches + 1:
                line = application.stdout.readline()
                if not line:
                    raise RuntimeError("plain Spark's application has ended")
                if line.startswith("@hourly "):
                    ended.append(float(line.split()[1]))
            if before:
                own = [time.of(at) for at in (*before, ended[0])]
                longer.append(own[-1] - own[-2] - median(np.diff(own[:-1])))
                print(f"{'restart_s':20} {longer[-1]:.2f} s", flush=True)
            application.stdin.close()
            later = [float(line.split()[1]) for line in application.stdout if line.startswith("@hourly ")]
            before = [*ended[1:], *later]
    return longer


def compared(broken: dict[str, float], restarts: dict[str, float]) -> dict[str, float]:
    """How much longer plain Spark is interrupted than the pond by a change of a kind, the least of them."""
    ways = {"vs_restart_min": "restart_s", "vs_in_session_min": "restart_in_session_s"}
    return {
        name: min(restarts["repartition_s" if kind == "scale" else way] / seconds for kind, seconds in broken.items())
        for name, way in ways.items()
    }
