"""Where the time of the canonical run goes: each step of an epoch, and the functions that Python spends it in.

    python benchmarks/peers/profile_epoch.py [--count 8] [--small]

First the pond as it is, 2 warm passes: seconds of an epoch by step, as the records tell them (`engines.pond`). Then the
same events through the same gather and fold in one thread without Spark (`LocalPond`), under Python's profiler: cost of
each function on its own, per event. The profiler slows Python's calls, not NumPy and Arrow, so shares are upper bounds
for code with many calls. Beside it: what starting costs before the first epoch, import by import.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import here  # noqa: F401
import pyarrow as pa
import pyarrow.parquet as pq
from compared import leave
from engines import INSTANCES, Run, aggregation, aggregations, pond, stream_of
from pyspark.sql import SparkSession
from results import FOLDER
from workload import LARGE, PRUNED, SMALL, transactions, windows

from millpond import Pond, spark_session
from millpond.model.endpoints import Sink
from millpond.testing.local_pond import LocalPond

SHOWN = 25


def main(argv: Sequence[str] | None = None, results: Path = FOLDER) -> dict[str, float]:
    """Profile, and print; returns the figures of the last line."""
    parser = argparse.ArgumentParser(description="Where the time of the canonical run goes.")
    parser.add_argument("--count", type=int, default=8, help="queries")
    parser.add_argument("--small", action="store_true", help="40,000 events, to see that it works")
    options = parser.parse_args(argv)
    size = SMALL if options.small else LARGE
    found = imports()
    began = perf_counter()
    spark = spark_session(f"local[{INSTANCES}]", driver_memory="4g")
    found["session_s"] = perf_counter() - began
    source = transactions(size)
    with tempfile.TemporaryDirectory(prefix="millpond-profile-") as scratch:
        work = Path(scratch)
        queries = aggregations(windows(options.count))
        first = pond(spark, source, work / "pond", queries)
        found["first_epoch_s"] = first.seconds[0]
        found |= steps(min((pond(spark, source, work / "pond", queries) for _ in range(2)), key=lambda run: run.total))
        functions, events = _profiled(spark, source, options.count, work)
    print(f"nanoseconds per event and share, {options.count} queries, one thread, {events:,} events:")
    total = sum(seconds for _, seconds in functions)
    for name, seconds in functions[:SHOWN]:
        print(f"  {seconds / events * 1e9:8.0f}  {seconds / total:6.1%}  {name}")
    found["python_ns_per_event"] = total / events * 1e9
    found = {name: round(value, 4) for name, value in found.items()}
    leave("profile", found, None if options.small else results)
    return found


def steps(run: Run) -> dict[str, float]:
    """Seconds of a typical epoch by step; the first one is left out."""
    typical = {name: statistics.median(step[name] for step in run.steps[1:]) for name in run.steps[0]}
    epoch = statistics.median(run.seconds[1:])
    figures = {
        "epoch_s": epoch,
        "between_epochs_s": epoch - typical["job"] - typical["commit"],
        "jvm_in_job_s": typical["job"] - typical["gather"] - typical["fold"],
        "gather_s": typical["gather"],
        "fold_s": typical["fold"],
        "commit_s": typical["commit"],
    }
    for name, seconds in figures.items():
        print(f"{name:18} {seconds:.3f}  {seconds / epoch:6.1%}", flush=True)
    return figures


def imports() -> dict[str, float]:
    """Seconds until a fresh Python has imported what a driver needs, and what a worker does; the best of three."""
    found = {}
    for name, module in (("driver", "millpond"), ("worker", "millpond.spark.driver.tasks")):
        program = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
        made = (subprocess.run([sys.executable, "-c", program], check=True, capture_output=True) for _ in range(3))
        found[f"import_{name}_s"] = min(float(run.stdout) for run in made)
    return found


def _profiled(spark: SparkSession, source: Path, count: int, work: Path) -> tuple[list[tuple[str, float]], int]:
    """Functions by their own seconds, the dearest first, and events taken."""
    with Pond(spark, work / "planned") as planned:
        for number, (size, slide) in enumerate(windows(count)):
            planned.add(f"q{number}", aggregation(stream_of(spark, source), size, slide), sink=Sink("noop"))
        streams, queries = planned.streams, planned.queries
    (work / "local").mkdir()
    local = LocalPond(work / "local", streams, queries, instances=INSTANCES)
    watched, taken = cProfile.Profile(), 0
    for number, path in enumerate(sorted(source.glob("*.parquet"))):
        table = pq.read_table(path, columns=list(PRUNED))
        half = len(table) // 2
        parts: list[pa.Table] = [table.slice(0, half), table.slice(half)]
        if number:
            taken += len(table)
            watched.enable()
        local.epoch({streams[0].name: parts})
        watched.disable()
    profile = pstats.Stats(watched).stats  # type: ignore[attr-defined]
    own = [(_place(place), figures[2]) for place, figures in profile.items()]
    return sorted(own, key=lambda one: -one[1]), taken


def _place(place: tuple[str, int, str]) -> str:
    file, line, name = place
    return name if file == "~" else f"{name} ({'/'.join(Path(file).parts[-2:])}:{line})"


if __name__ == "__main__":
    main()
