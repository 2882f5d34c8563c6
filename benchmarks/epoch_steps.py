"""Where the time of small epochs goes: back-to-back epochs of one file with 20,000 events, step by step.

    python benchmarks/epoch_steps.py [--epochs 60] [--queries 1]

Prints the median of each step's own wall time (`Pond.trace`), and the CPU time of an epoch in the driver, in Spark's
JVM and in its Python workers. CPU time is comparable between runs even if other programs use the machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engines import INSTANCES, aggregation, stream_of
from small_epochs import EVENTS, WARM_UP
from workload import Size, transactions, windows

from millpond import Pond, spark_session
from millpond.model.endpoints import Sink
from millpond.runtime.inspect.timeline import KEPT
from millpond.service.terminal.text import trace_lines

_TICKS = os.sysconf("SC_CLK_TCK")


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Measure and print; returns milliseconds of CPU per epoch, by process."""
    parser = argparse.ArgumentParser(description="Where the time of small epochs goes.")
    parser.add_argument("--epochs", type=int, default=60, help=f"measured epochs, at most {KEPT}")
    parser.add_argument("--queries", type=int, default=1)
    asked = parser.parse_args(argv)
    files = min(asked.epochs, KEPT) + WARM_UP
    source = transactions(Size(EVENTS * files, files, 100_000))
    spark = spark_session(f"local[{INSTANCES}]", driver_memory="2g")
    marks: list[dict[str, float]] = []
    with (
        tempfile.TemporaryDirectory(prefix="millpond-steps-") as scratch,
        Pond(spark, Path(scratch) / "pond", on_epoch=lambda _: marks.append(cpu_seconds())) as pond,
    ):
        for number, (size, slide) in enumerate(windows(asked.queries)):
            pond.add(f"q{number}", aggregation(stream_of(spark, source), size, slide), sink=Sink("noop"))
        pond.run()
        trace = pond.trace(files - WARM_UP)
    print("\n".join(trace_lines(trace)))
    first, last, epochs = marks[WARM_UP - 1], marks[-1], len(marks) - WARM_UP
    found = {name: (last[name] - first.get(name, 0.0)) / epochs * 1000 for name in last}
    print(f"CPU per epoch of {epochs}: " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in found.items()))
    return found


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
