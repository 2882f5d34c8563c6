"""Memory of the Python workers stays constant over a hundred epochs, and over a silence that ends idle workers."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.runtime.task.counters import WHOLE_POND
from millpond.spark.driver.epochs import Epoch

EPOCHS, MORE, EVENTS = 100, 20, 400
MOST = 8 << 20
"""Bytes by which a process may grow: 130 KB an epoch."""

IDLE_SECONDS = 70
"""Spark ends a Python worker that has had nothing to do for 60 s."""

STREAM = "CREATE TABLE tx (ts TIMESTAMP, k STRING, v DOUBLE) USING json OPTIONS (path '{}', maxFilesPerTrigger '1')"
SHORT = """
    SELECT k, window.start AS s, count(*) AS n, sum(v) AS total
    FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY k, window(ts, '10 seconds')
"""
LONG = """
    SELECT k, window.start AS s, max(v) AS most
    FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 5 SECONDS GROUP BY k, window(ts, '1 minute', '10 seconds')
"""


def write(folder: Path, number: int) -> None:
    """Ten seconds of events: 40 keys, of which a tenth is new in each file."""
    lines = []
    for i in range(EVENTS):
        moment = number * 10 + i * 10 / EVENTS
        stamp = f"2026-01-01T{int(moment // 3600):02}:{int(moment // 60 % 60):02}:{moment % 60:09.6f}Z"
        lines.append(json.dumps({"ts": stamp, "k": f"k{number * 4 + i % 40}", "v": float(i)}))
    part = folder / f".{number:05}"
    part.write_text("\n".join(lines))
    written = time.time() - EPOCHS - MORE + number  # Spark reads by this time, and files of one ms in any order
    os.utime(part, (written, written))
    part.rename(folder / f"{number:05}.json")


def sizes(spark: SparkSession) -> tuple[dict[int, int], dict[int, int]]:
    """Resident bytes of the Python processes of Spark's JVM: of its daemons, and of the workers that these forked."""
    parents, found = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{entry}/stat") as stat:  # or it has ended
            name, _, numbers = stat.read().partition("(")[2].rpartition(")")
            state = numbers.split()  # from the third field on
            parents[int(entry)] = int(state[1])
            if name.startswith("python"):
                found[int(entry)] = int(state[21]) * resource.getpagesize()
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    daemons = {pid: size for pid, size in found.items() if parents[pid] == jvm}
    return daemons, {pid: size for pid, size in found.items() if parents[pid] in daemons}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_is_flat_over_epochs_and_silence(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    spark = spark.newSession()
    spark.conf.set("spark.sql.streaming.pollingDelay", "500ms")  # by default Spark lists the silent folder 100 times/s
    for number in range(EPOCHS):
        write(source, number)
    seen, alive = [0], []
    largest: tuple[list[int], list[int]] = [], []  # of daemons and of workers, after each epoch
    quiet = threading.Event()

    def committed(epoch: Epoch) -> None:
        seen[0] += epoch.record.counts[WHOLE_POND].get("events", 0)
        for kind, found in zip(largest, sizes(spark), strict=True):
            kind.append(max(found.values(), default=0))
        if seen[0] == EPOCHS * EVENTS:
            quiet.set()
        if seen[0] == (EPOCHS + MORE) * EVENTS:
            pond.stop()

    def speak_again() -> None:
        assert quiet.wait(400)
        alive.append({*sizes(spark)[1]})
        time.sleep(IDLE_SECONDS)
        alive.append({*sizes(spark)[1]})
        for number in range(EPOCHS, EPOCHS + MORE):
            write(source, number)

    with Pond(spark, tmp_path / "pond", on_epoch=committed) as pond:
        pond.load(STREAM.format(source))
        pond.add("short", SHORT)
        pond.add("long", LONG)
        speaker = threading.Thread(target=speak_again, daemon=True)
        speaker.start()
        pond.run(once=False)
        speaker.join()
        pond.drain()
        short, long = pond.table("short"), pond.table("long")
    assert sum(short["n"].to_pylist()) == (EPOCHS + MORE) * EVENTS
    assert short.num_rows == (EPOCHS + MORE) * 40
    assert set(long["most"].to_pylist()) <= {float(i) for i in range(EVENTS)}
    assert alive[0], "there were workers"
    for kind in largest:
        early, late, after = (max(part) for part in (kind[20:50], kind[50:EPOCHS], kind[-MORE:]))
        assert min(early, late, after) > 0, "each was measured"
        assert late < early + MOST, f"{early >> 20} MiB at first, {late >> 20} MiB after {EPOCHS} epochs"
        assert after < early + MOST, f"{early >> 20} MiB at first, {after >> 20} MiB after the silence"
