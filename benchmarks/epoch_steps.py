"""Where the time of small epochs goes: back-to-back epochs of 20,000 events each, step by step.

    python benchmarks/epoch_steps.py [--epochs 40] [--queries 1]
    python benchmarks/epoch_steps.py --kafka [--workload fixwindow] [--rate 20000] [--seconds 60]

Prints the median of each step's own wall time (`Pond.trace`), the calls from Python to the JVM, and the CPU time of an
epoch in the driver, in Spark's JVM and in its Python workers, and that of recording an epoch's spans. CPU time is
comparable between runs even if other programs use the machine. The events come from files, one an epoch.

With `--kafka` they come from a topic at a steady rate, and rows go to a topic: a workload of `peers/over_kafka.py`,
with the broker, the feeder and the reader of rows beside the pond. The first line has the latency of its rows.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from engines import INSTANCES, aggregation, stream_of
from small_epochs import EVENTS, WARM_UP
from workload import Size, transactions, windows

from kit.costs.jvm_calls import jvm_calls
from millpond import Pond, spark_session
from millpond.model.endpoints import Sink
from millpond.runtime.inspect.timeline import KEPT
from millpond.service.terminal.text import trace_lines
from millpond.spans import Spans

_TICKS = os.sysconf("SC_CLK_TCK")


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Measure and print; returns milliseconds of CPU per epoch, by process."""
    parser = argparse.ArgumentParser(description="Where the time of small epochs goes.")
    parser.add_argument("--epochs", type=int, default=40, help=f"measured epochs, at most {KEPT}")
    parser.add_argument("--queries", type=int, default=1)
    parser.add_argument("--kafka", action="store_true", help="read a topic, and write to a topic")
    parser.add_argument("--workload", default="fixwindow", help="with --kafka: a workload of over_kafka.py")
    parser.add_argument("--rate", type=int, default=20_000, help="with --kafka: records a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="with --kafka: how long records are fed")
    options = parser.parse_args(argv)
    if options.kafka:
        return over_kafka(options.workload, options.rate, options.seconds)
    files = min(options.epochs, KEPT) + WARM_UP
    source = transactions(Size(EVENTS * files, files, 100_000))
    spark = spark_session(f"local[{INSTANCES}]", driver_memory="2g")
    marks: list[dict[str, float]] = []
    calls: list[int] = []

    def committed(_epoch: object) -> None:
        calls.append(len(sent))
        if len(calls) in (WARM_UP, files):  # it takes 10 ms, so not in each epoch
            marks.append(cpu_seconds())

    with (
        jvm_calls() as sent,
        tempfile.TemporaryDirectory(prefix="millpond-steps-") as scratch,
        Pond(spark, Path(scratch) / "pond", on_epoch=committed) as pond,
    ):
        for number, (size, slide) in enumerate(windows(options.queries)):
            pond.add(f"q{number}", aggregation(stream_of(spark, source), size, slide), sink=Sink("noop"))
        pond.run()
        trace = pond.trace(files - WARM_UP)
    print("\n".join(trace_lines(trace)))
    (first, last), epochs = marks, files - WARM_UP
    found = {name: (last[name] - first.get(name, 0.0)) / epochs * 1000 for name in last}
    print(f"CPU per epoch of {epochs}: " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in found.items()))
    print(f"calls to the JVM per epoch: {median(after - before for before, after in pairwise(calls[WARM_UP:])):.0f}")
    print(f"CPU of recording a span: {span_us():.2f} µs")
    return found


def over_kafka(workload: str, rate: int, seconds: float) -> dict[str, float]:
    """Print the steps of epochs between two topics; returns milliseconds of latency."""
    sys.path.append(str(Path(__file__).with_name("peers")))
    from over_kafka import line, run

    cell = run(workload, rate, "millpond", seconds)
    print("\n".join([line(cell), *cell.steps]))
    return {"p50": cell.p50, "p99": cell.p99}


def span_us(spans: int = 20_000) -> float:
    """Microseconds of CPU time that recording a span takes."""
    began = time.process_time()
    for _ in range(spans // 50):
        timeline = Spans("driver")
        for _ in range(50):
            with timeline.during("step"):
                pass
        timeline.take()
    return (time.process_time() - began) / spans * 1e6


def cpu_seconds() -> dict[str, float]:
    """CPU time until now of this process, of Spark's JVM, and of the Python workers below it."""
    me, parents, used = os.getpid(), dict[int, int](), dict[int, tuple[str, float]]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        pid, _, command = head.partition(" (")
        fields = rest.split()
        parents[int(pid)] = int(fields[1])
        used[int(pid)] = command, sum(map(int, fields[11:15])) / _TICKS
    found = {"driver": used[me][1], "JVM": 0.0, "workers": 0.0}
    for pid, (command, seconds) in used.items():
        if pid != me and me in _ancestors(pid, parents):
            found["JVM" if command == "java" else "workers"] += seconds
    return found


def _ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    found = set[int]()
    while (pid := parents.get(pid, 0)) and pid not in found:
        found.add(pid)
    return found


if __name__ == "__main__":
    main()
