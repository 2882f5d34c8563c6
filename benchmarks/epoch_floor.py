"""The floor under an epoch's time and CPU: what plain Spark needs for the same jobs, beside a pond.

    python benchmarks/epoch_floor.py [--epochs 60] [--kinds nothing,stage,shuffle,pond] [--rounds 2]

Back-to-back batches of 20,000 events each, from files. Each kind runs in a process of its own, in turns:

- *nothing*: `foreachBatch` with a function that does nothing: Spark lists files, plans, and writes its checkpoint.
- *stage*: one stage: `mapInArrow` drops the events and returns a few bytes, which are collected.
- *shuffle*: two stages, as an epoch has: `mapInArrow`, a shuffle to two partitions, `mapInArrow`, a collection.
- *pond*: a pond with one query, whose tasks also compute, and whose record is synced.

All have Millpond's settings of Spark (`spark.session.session`); `--defaults` gives plain Spark its own instead. Prints
the median time between two batches, and the CPU time of a batch by process and by threads of the JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import pyarrow as pa
from engines import INSTANCES, aggregation, stream_of
from epoch_steps import cpu_seconds
from pyspark.sql import DataFrame, SparkSession
from small_epochs import EVENTS, WARM_UP
from workload import PRUNED, SCHEMA, Size, transactions, windows

from millpond import Pond, spark_session
from millpond.model.endpoints import Sink
from millpond.spark.session.session import own_gateway, reading_session

KINDS = ("nothing", "stage", "shuffle", "pond")
_TICKS = os.sysconf("SC_CLK_TCK")
_PACKET = "instance int, packet binary"
_GROUPS = {
    "compiler": "C1 CompilerThre|C2 CompilerThre|Sweeper",
    "garbage": "G1|GC Thread|VM Thread",
    "tasks": "Executor task",
    "stream": "stream executio",
    "scheduler": "dag-scheduler|dispatcher|task-result|spark-listener",
}


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Measure and print; returns the milliseconds between two batches, by kind."""
    parser = argparse.ArgumentParser(description="What plain Spark needs for the jobs of an epoch.")
    parser.add_argument("--epochs", type=int, default=60, help="measured batches")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--defaults", action="store_true", help="plain Spark with its own settings")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if unknown := {*options.kinds} - {*KINDS}:
        parser.error(f"unknown kinds: {', '.join(sorted(unknown))}")
    if options.child:
        print("@" + json.dumps(measured(options.child, options.epochs, options.defaults)))
        return {}
    found: dict[str, list[float]] = {kind: [] for kind in options.kinds}
    print("| batch | ms between two | CPU of the driver, ms | of the JVM | of the workers | of threads of the JVM |")
    print("|---|---|---|---|---|---|")
    for _ in range(options.rounds):
        for kind in options.kinds:
            command = [sys.executable, __file__, "--child", kind, "--epochs", str(options.epochs)]
            command += ["--defaults"] * options.defaults
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            one = json.loads(done.stdout.rpartition("@")[2])
            found[kind].append(one["ms"])
            threads = ", ".join(f"{name} {ms:.0f}" for name, ms in one["threads"].items())
            cpu = " | ".join(f"{one['cpu'][name]:.0f}" for name in ("driver", "JVM", "workers"))
            print(f"| {kind} | {one['ms']:.0f} | {cpu} | {threads} |", flush=True)
    return {kind: min(some) for kind, some in found.items()}


def measured(kind: str, epochs: int, defaults: bool = False) -> dict[str, object]:
    """Run one kind to the end of its files; returns ms between batches, and CPU per batch by process and by threads."""
    files = epochs + WARM_UP
    source = transactions(Size(EVENTS * files, files, 100_000))
    spark = _defaults() if defaults else spark_session(f"local[{INSTANCES}]", driver_memory="2g")
    marks: list[tuple[float, dict[str, float], Counter[str]]] = []
    java = _java()

    def mark(*_: object) -> None:
        marks.append((time.perf_counter(), cpu_seconds(), threads_of(java)))

    with tempfile.TemporaryDirectory(prefix="millpond-floor-") as scratch:
        if kind == "pond":
            with Pond(spark, Path(scratch) / "pond", on_epoch=mark) as pond:
                for number, (size, slide) in enumerate(windows(1)):
                    pond.add(f"q{number}", aggregation(stream_of(spark, source), size, slide), sink=Sink("noop"))
                pond.run()
        else:
            _plain(spark if defaults else reading_session(spark), source, kind, Path(scratch), mark)
    marks = marks[WARM_UP - 1 :]
    (_, cpu, threads), (_, last_cpu, last_threads), count = marks[0], marks[-1], len(marks) - 1
    return {
        "ms": median((after[0] - before[0]) * 1e3 for before, after in pairwise(marks)),
        "cpu": {name: (last_cpu[name] - cpu.get(name, 0.0)) / count * 1e3 for name in last_cpu},
        "threads": {name: (last_threads[name] - threads[name]) / count for name in sorted(last_threads)},
    }


def _plain(spark: SparkSession, source: Path, kind: str, scratch: Path, mark: Callable[[], None]) -> None:
    """One streaming query of Spark over the files, with the jobs of this kind in each batch."""

    def batch(rows: DataFrame, _: int) -> None:
        if kind != "nothing":
            packets = rows.mapInArrow(_gather, _PACKET)
            if kind == "shuffle":
                packets = packets.repartitionById(INSTANCES, "instance").mapInArrow(_fold, _PACKET)
            packets.toArrow()
        mark()

    evolves = spark.conf.get("spark.sql.streaming.queryEvolution.enableSourceEvolution", "false") == "true"
    stream = spark.readStream.name("tx") if evolves else spark.readStream
    frame = stream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source)).select(*PRUNED)
    writer = frame.writeStream.foreachBatch(batch).option("checkpointLocation", str(scratch / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def _gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    places = pa.array(range(INSTANCES), pa.int32())
    yield pa.RecordBatch.from_arrays([places, pa.array([b"x"] * INSTANCES)], names=["instance", "packet"])


def _fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield pa.RecordBatch.from_arrays([pa.array([0], pa.int32()), pa.array([b"x"])], names=["instance", "packet"])


def _defaults() -> SparkSession:
    return (
        SparkSession.builder.master(f"local[{INSTANCES}]").config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", INSTANCES).getOrCreate()
    )  # fmt: skip


def _java() -> int:
    """The process of the JVM: the only child that is one."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except OSError:  # it has ended
            continue
        if head.endswith("(java") and int(rest.split()[1]) == os.getpid():
            return int(path.parent.name)
    return own_gateway().process.pid


def threads_of(java: int) -> Counter[str]:
    """Milliseconds of CPU time of the JVM until now, by kinds of threads."""
    found: Counter[str] = Counter(dict.fromkeys([*_GROUPS, "others"], 0))
    for path in Path(f"/proc/{java}/task").glob("*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        name, fields = head.partition(" (")[2], rest.split()
        kind = next((kind for kind, names in _GROUPS.items() if re.match(names, name)), "others")
        found[kind] += (int(fields[11]) + int(fields[12])) * 1000 // _TICKS
    return found


if __name__ == "__main__":
    main()
