"""The canonical benchmark: N queries in one pond, beside the floor and beside plain Spark, in one run.

No flags. Every figure is a ratio of two measurements of this run on this machine; the last line is one JSON
object. `vs_floor_N`: time of the pond over time of the floor (see `engines.floor`), steady state, N queries.
`vs_spark_N`: throughput of the pond over that of N plain Structured Streaming queries with in-memory state (on a
prefix of the files, since they take long). `marginal_32`: cost of a query among 32, emission aside, as a share of the
first query's. `small_p50_s`, `small_p99_s`: seconds from arrival to commit of 20,000 events that come once a second.
`state_ratio`: bytes kept for ten windows by ten aggregates over those for the largest window alone.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

from check import check_results
from engines import Run, floor, plain_spark, pond, silent
from small_epochs import latencies, summary
from state_ratio import state_ratio
from workload import LARGE, Size, prefix, transactions, windows

from millpond import spark_session

INSTANCES = 2


def steady(run: Run) -> float:
    """Seconds of a typical epoch: the median, without the first, which fills windows and caches."""
    return statistics.median(run.seconds[1:])


def main(
    size: Size = LARGE, counts: tuple[int, ...] = (1, 8, 32, 100), plain: tuple[int, ...] = (1, 8)
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
        checked = check_results(spark, prefix(source, 2, work / "checked"), work / "pond", windows(8))
        print(f"results: {checked} rows of 8 queries equal Spark's own batch answer", flush=True)
        pond(spark, source, work / "pond", windows(1))  # warms the JVM and the workers
        throughput: dict[int, float] = {}
        for count in counts:
            ours = pond(spark, source, work / "pond", windows(count))
            under = floor(spark, source, work / "floor", ours.rows, INSTANCES)
            again = pond(spark, source, work / "pond", windows(count))
            epoch, least = min(steady(ours), steady(again)), steady(under)
            throughput[count] = per_epoch / epoch
            figures[f"vs_floor_{count}"] = epoch / least
            print(
                f"N={count:4}  epoch {epoch:.3f} s  {throughput[count] / 1e3:7.0f} k events/s"
                f"  {sum(ours.rows):>11,} rows  floor {least:.3f} s  ratio {epoch / least:.2f}",
                flush=True,
            )
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
        figures["small_p50_s"], figures["small_p99_s"] = summary(latencies(spark, work, windows(8)))
        print(
            f"an epoch of 20,000 events, 8 queries, from arrival to commit: p50 {figures['small_p50_s']:.2f} s,"
            f" p99 {figures['small_p99_s']:.2f} s",
            flush=True,
        )
    figures = {name: round(value, 3) for name, value in figures.items()}
    print(json.dumps(figures))
    return figures


def _marginal(spark: object, source: Path, work: Path) -> float:
    """Seconds per query between 8 and 32, over seconds of the first, which is read, shuffle and all."""
    one, eight, many = (
        min(steady(pond(spark, source, work / "pond", windows(count), silent)) for _ in range(2))  # type: ignore[arg-type]
        for count in (1, 8, 32)
    )
    return max(0.0, (many - eight) / 24) / one


if __name__ == "__main__":
    main()
