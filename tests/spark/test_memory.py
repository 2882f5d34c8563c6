"""Memory of the Python workers stays constant over hundreds of epochs, and over a silence that ends idle workers."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.runtime.task.counters import WHOLE_POND
from millpond.spark.driver.epochs import Epoch

EPOCHS, MORE, EVENTS = 220, 20, 400
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


def workers(spark: SparkSession) -> Iterator[tuple[int, int]]:
    """Process id and resident bytes of every Python process below Spark's JVM."""
    parents, sizes = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines())
        except OSError:
            continue  # it has ended
        parents[int(entry.name)] = int(status["PPid"])
        if status["Name"].strip().startswith("python"):
            sizes[int(entry.name)] = int(status.get("VmRSS", "0 kB").split()[0]) * 1024
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    for pid, size in sizes.items():
        above = pid
        while above in parents and above != jvm:
            above = parents[above]
        if above == jvm:
            yield pid, size


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_is_flat_over_epochs_and_silence(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    spark = spark.newSession()
    spark.conf.set("spark.sql.streaming.pollingDelay", "500ms")  # by default Spark lists the silent folder 100 times/s
    for number in range(EPOCHS):
        write(source, number)
    seen, largest, alive = [0], [], []
    quiet = threading.Event()

    def committed(epoch: Epoch) -> None:
        seen[0] += epoch.record.counts[WHOLE_POND].get("events", 0)
        largest.append(max((size for _, size in workers(spark)), default=0))
        if seen[0] == EPOCHS * EVENTS:
            quiet.set()
        if seen[0] == (EPOCHS + MORE) * EVENTS:
            pond.stop()

    def speak_again() -> None:
        assert quiet.wait(400)
        alive.append({pid for pid, _ in workers(spark)})
        time.sleep(IDLE_SECONDS)
        alive.append({pid for pid, _ in workers(spark)})
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
    early, late, after = (max(part) for part in (largest[20:60], largest[-60 - MORE : -MORE], largest[-MORE:]))
    assert late < early + (20 << 20), f"{early >> 20} MiB at first, {late >> 20} MiB after {EPOCHS} epochs"
    assert after < early + (20 << 20), f"{early >> 20} MiB at first, {after >> 20} MiB after the silence"
    assert alive[0], "there were workers"
