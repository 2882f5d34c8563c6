"""The canonical benchmark: N queries in one pond, beside the floor and beside plain Spark, in one run.

No flags. Every figure is a ratio of two measurements of this run on this machine; the last line is one JSON
object. `vs_floor_N`: time of the pond over time of the floor (see `engines.floor`), steady state, N queries.
`vs_spark_N`: throughput of the pond over that of N plain Structured Streaming queries with in-memory state (on a
prefix of the files, since they take long). `marginal_32`: cost of a query among 32, emission aside, as a share of the
first query's. `vs_floor_unlike_8`: the eight windows, each over a key of its own (see `unlike.py`).
`vs_floor_filters_100`, `vs_floor_family_1000`: queries that all have a filter of their own (see `filters.py`).
`small_p50_s`, `small_p99_s`: seconds from arrival to commit of 20,000 events that come once a second.
`state_ratio`: bytes kept for ten windows by ten aggregates over those for the largest window alone.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from check import check_results
from engines import INSTANCES, NO_ROW, PRUNED, MakeQuery, Run, aggregations, floor, plain_spark, pond
from filters import COLUMNS, family, mixed
from pyspark.sql import SparkSession
from small_epochs import latencies, summary
from state_ratio import state_ratio
from unlike import COLUMNS as UNLIKE_COLUMNS
from unlike import unlike
from workload import LARGE, Size, prefix, transactions, windows

from millpond import spark_session


def steady(run: Run) -> float:
    """Seconds of a typical epoch: the median, without the first, which fills windows and caches."""
    return statistics.median(run.seconds[1:])


def main(
    size: Size = LARGE,
    counts: tuple[int, ...] = (1, 8, 32, 100),
    plain: tuple[int, ...] = (1, 8),
    many: tuple[int, int] = (100, 1000),
    small: int = 70,
) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    spark = spark_session(f"local[{INSTANCES}]", driver_memory="4g")
    for name in ("engines.py", "workload.py"):  # the floor's functions run in Spark's workers
        spark.sparkContext.addPyFile(str(Path(__file__).with_name(name)))
    source = transactions(size)
    per_epoch = size.events // size.files
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch:
        work = Path(scratch)
        first = prefix(source, 2, work / "checked")
        for name, queries in (("one key", aggregations(windows(8))), ("eight keys", unlike())):
            checked = check_results(spark, first, work / f"checked over {name}", queries)
            print(f"results: {checked} rows of 8 queries over {name} equal Spark's own batch answer", flush=True)
        pond(spark, source, work / "pond", aggregations(windows(1)))  # warms the JVM and the workers
        throughput: dict[int, float] = {}
        for count in counts:
            seconds, ratio = _beside_floor(spark, source, work, f"N={count}", aggregations(windows(count)))
            throughput[count], figures[f"vs_floor_{count}"] = per_epoch / seconds, ratio
        _, figures["vs_floor_unlike_8"] = _beside_floor(spark, source, work, "unlike 8", unlike(), UNLIKE_COLUMNS)
        some = prefix(source, size.files // 2, work / "some")
        filtered = {
            f"filters_{many[0]}": (mixed(source, many[0]), COLUMNS),
            f"family_{many[1]}": (family(source, many[1]), PRUNED),
        }
        for name, (queries, columns) in filtered.items():
            _, figures[f"vs_floor_{name}"] = _beside_floor(spark, some, work, name, queries, columns)
        figures["marginal_32"] = _marginal(spark, source, work)
        print(f"one query among 32 costs {figures['marginal_32']:.1%} of the first, emission aside", flush=True)
        for count in plain:
            for state in ("memory", "rocksdb"):
                files = max(1, size.files // (4 if count == 1 else 8))
                part = prefix(source, files, work / f"prefix-{count}-{state}")
                seconds = plain_spark(spark, part, work / "plain", windows(count), state)
                ratio = throughput[count] / (files * per_epoch / seconds)
                print(f"plain Spark, {state}, N={count}: {files * per_epoch / seconds / 1e3:.1f} k events/s"
                      f" ({files} of {size.files} files); the pond is {ratio:.1f} x", flush=True)  # fmt: skip
                if state == "memory":
                    figures[f"vs_spark_{count}"] = ratio
        figures["state_ratio"] = state_ratio(spark, source, work)
        figures["small_p50_s"], figures["small_p99_s"] = summary(latencies(spark, work, windows(8), small))
        print(
            f"an epoch of 20,000 events, 8 queries, from arrival to commit: p50 {figures['small_p50_s']:.2f} s,"
            f" p99 {figures['small_p99_s']:.2f} s",
            flush=True,
        )
    figures = {name: round(value, 3) for name, value in figures.items()}
    print(json.dumps(figures))
    return figures


def _beside_floor(
    spark: SparkSession, source: Path, work: Path, name: str, queries: Sequence[MakeQuery],
    columns: Sequence[str] = PRUNED,
) -> tuple[float, float]:
    """Seconds of an epoch of the pond, and their ratio to the floor's; the pond runs before it and after it."""
    ours = pond(spark, source, work / "pond", queries)
    under = floor(spark, source, work / "floor", ours.rows, columns)
    again = pond(spark, source, work / "pond", queries)
    epoch, least = min(steady(ours), steady(again)), steady(under)
    print(
        f"{name:12} epoch {epoch:.3f} s  {sum(ours.rows):>11,} rows  floor {least:.3f} s  ratio {epoch / least:.2f}"
        f"  ({_steps(again, steady(again))})",
        flush=True,
    )
    return epoch, epoch / least


def _steps(run: Run, seconds: float) -> str:
    """Where the time of a typical epoch goes: Spark between epochs, its job around Python, Python, the commit."""
    typical = {name: statistics.median(step[name] for step in run.steps[1:]) for name in run.steps[0]}
    between = seconds - typical["job"] - typical["commit"]
    jvm = typical["job"] - typical["gather"] - typical["fold"]
    return (
        f"Spark between epochs {between:.3f}, JVM in the job {jvm:.3f}, gather {typical['gather']:.3f},"
        f" fold {typical['fold']:.3f}, commit {typical['commit']:.3f}"
    )


def _marginal(spark: SparkSession, source: Path, work: Path) -> float:
    """Seconds per query between 8 and 32, over seconds of the first, which is read, shuffle and all."""
    one, eight, many = (
        min(steady(pond(spark, source, work / "pond", aggregations(windows(count), NO_ROW))) for _ in range(2))
        for count in (1, 8, 32)
    )
    return max(0.0, (many - eight) / 24) / one


if __name__ == "__main__":
    main()
