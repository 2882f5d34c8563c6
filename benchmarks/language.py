"""What does not add up, beside plain Spark, in one run: exact medians per key, session windows, a join of two streams.

No flags. The canonical transactions (4 M events, 100,000 customers): the median amount per customer in tumbling
windows of five minutes, sessions of each customer with a gap of five seconds, and the pairs of a payment in the web and
one at a till by one customer in the same ten seconds. Plain Spark does the first by `applyInPandas` over a prefix of
the files as a batch (no state, no log: its best case; it takes long), and all of them as streaming queries. Rows are
compared with Spark's own batch answer first. The *floor* is Spark handing the same columns to Python, where they are
dropped: what no pond can beat. Ratios are of throughput over whole passes; the last line is one JSON object.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from time import perf_counter

import pandas as pd
from engines import INSTANCES, STATE, MakeQuery, floor, pond, stream_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from workload import LARGE, PRUNED, SCHEMA, Size, prefix, transactions

from millpond import Pond, spark_session


def medians(events: DataFrame) -> DataFrame:
    """The median amount of each customer in five minutes."""
    return events.groupBy(F.window("ts", "300 seconds"), "customer").agg(F.median("amount").alias("m"))


def sessions(events: DataFrame) -> DataFrame:
    """Count and sum of each customer's sessions."""
    return events.groupBy(F.session_window("ts", "5 seconds").alias("window"), "customer").agg(
        F.count("*").alias("n"), F.sum("amount").alias("s")
    )


def pairs(events: DataFrame) -> DataFrame:
    """Payments in the web and at a till by one customer in the same ten seconds."""
    web, till = (
        events.where(F.col("kind") == kind).select(
            F.window("ts", "10 seconds").alias("window"), "customer", F.col("amount").alias(kind)
        )
        for kind in ("web", "pos")
    )
    return web.join(till, ["window", "customer"])


def finest(events: DataFrame) -> DataFrame:
    """Count and sum by three columns, in minutes."""
    by = events.groupBy(F.window("ts", "60 seconds"), "country", "kind", "merchant")
    return by.agg(F.count("*").alias("n"), F.sum("amount").alias("s"))


def rollup(events: DataFrame) -> DataFrame:
    """The same, and for each prefix of the three columns."""
    columns = ["window", "country", "kind", "merchant"]
    sets = [columns[:length] for length in range(4, 0, -1)]
    by = events.withColumn("window", F.window("ts", "60 seconds")).groupingSets(sets, *columns)
    return by.agg(F.count("*").alias("n"), F.sum("amount").alias("s"))


def rollup_vs_finest(spark: SparkSession, source: Path, work: Path, events: int) -> float:
    """How much more time a ROLLUP of three columns takes than its finest group."""
    seconds: dict[str, float] = {}
    for make in (finest, rollup, finest, rollup):
        total = pond(spark, source, work / "pond", [make]).total
        seconds[make.__name__] = min(total, seconds.get(make.__name__, total))
        print(f"{make.__name__} in a pond: {events / total / 1e3:.1f} k events/s", flush=True)
    return round(seconds["rollup"] / seconds["finest"], 2)


COLUMNS: dict[MakeQuery, tuple[str, ...]] = {medians: PRUNED, sessions: PRUNED, pairs: (*PRUNED, "kind")}
"""What is read for each."""


def in_pandas(events: DataFrame) -> DataFrame:
    """The same medians, group by group in pandas."""

    def median(group: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"customer": group["customer"].iloc[:1], "m": [group["amount"].median()]})

    chosen = events.select(F.window("ts", "300 seconds").start.alias("w"), "customer", "amount")
    return chosen.groupBy("w", "customer").applyInPandas(median, "customer string, m double")


def check(spark: SparkSession, source: Path, folder: Path, make: MakeQuery) -> int:
    """Compare a pond's rows with Spark's batch answer; returns how many there are."""
    shutil.rmtree(folder, ignore_errors=True)
    with Pond(spark, folder) as running:
        running.add("q", make(stream_of(spark, source)))
        running.run(once=True, drain=True)
        ours = running.table("q").to_pandas()
    theirs = make(spark.read.schema(SCHEMA).parquet(str(source))).toPandas()
    both = []
    for frame in (ours, theirs):
        frame["start"] = [window["start"] for window in frame.pop("window")]
        frame["start"] = pd.to_datetime(frame["start"], utc=True)
        ordered = frame.sort_values(["customer", "start", *sorted(frame.columns)]).reset_index(drop=True)
        both.append(ordered[sorted(ordered.columns)])
    pd.testing.assert_frame_equal(*both, check_dtype=False, rtol=1e-12)
    return len(ours)


def streaming(spark: SparkSession, source: Path, folder: Path, make: MakeQuery) -> float:
    """Seconds of one plain streaming query with in-memory state."""
    shutil.rmtree(folder, ignore_errors=True)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE["memory"])
    rows = make(stream_of(spark, source)).writeStream.format("noop").outputMode("append")
    began = perf_counter()
    rows.option("checkpointLocation", str(folder)).trigger(availableNow=True).start().awaitTermination()
    return perf_counter() - began


def batch(frame: DataFrame) -> float:
    """Seconds of a batch, its rows dropped."""
    began = perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return perf_counter() - began


def main(size: Size = LARGE) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    spark = spark_session(f"local[{INSTANCES}]", driver_memory="4g")
    source = transactions(size)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch:
        work = Path(scratch)
        per_file = size.events // size.files

        def compared(name: str, key: str, ours: float, files: int, seconds: float) -> None:
            theirs = files * per_file / seconds
            figures[key] = round(ours / theirs, 2)
            print(f"{name}: {theirs / 1e3:.1f} k events/s ({files} of {size.files} files); the pond is"
                  f" {figures[key]:.1f} x", flush=True)  # fmt: skip

        few = prefix(source, max(1, size.files // 4), work / "few")
        for make in (medians, sessions, pairs):
            rows = check(spark, few, work / "pond", make)
            print(f"{make.__name__}: {rows} rows equal Spark's own batch answer", flush=True)
            pond(spark, few, work / "pond", [make])  # warms the workers
            ours = size.events / min(pond(spark, source, work / "pond", [make]).total for _ in range(2))
            print(f"{make.__name__} in a pond: {ours / 1e3:.1f} k events/s", flush=True)
            if make is medians:
                read = spark.read.schema(SCHEMA).parquet(str(few))
                files = max(1, size.files // 4)
                compared("medians by applyInPandas, batch", "medians_vs_pandas", ours, files, batch(in_pandas(read)))
            seconds = min(streaming(spark, source, work / "plain", make) for _ in range(2))
            compared(f"{make.__name__}, plain streaming", f"{make.__name__}_vs_streaming", ours, size.files, seconds)
            bound = min(floor(spark, source, work / "floor", [], COLUMNS[make]).total for _ in range(2))
            figures[f"{make.__name__}_floor_vs_streaming"] = round(seconds / bound, 2)
            print(f"{make.__name__}: the floor is {seconds / bound:.1f} x plain streaming", flush=True)
        figures["rollup_vs_finest"] = rollup_vs_finest(spark, source, work, size.events)
    print(json.dumps(figures))
    return figures


if __name__ == "__main__":
    main()
