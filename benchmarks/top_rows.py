"""The ten customers of each minute who spent most, beside plain Spark, in one run.

No flags. The canonical transactions (4 M events, 100,000 customers) in windows of one minute, each with nearly all
customers. The pond ranks the rows of one query in a second one. Plain Spark has no ranks in a stream, so its nearest
equivalent is an aggregation of the aggregation, `max_by(…, 10)`, as a streaming query in append mode. Both are compared
with a rank in Spark's batch first. The ratio is of throughput over whole passes; the last line is one JSON object.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from time import perf_counter

from engines import INSTANCES, STATE, stream_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from results import beside_plain
from workload import LARGE, SCHEMA, Size, transactions

from millpond import Pond, spark_session
from millpond.model.endpoints import Sink

ROWS = 10
SPENT = "SELECT customer, sum(cast(amount * 100 AS bigint)) AS s, window(ts, '60 seconds') AS w FROM {} GROUP BY ALL"
TOP = "SELECT w.start AS since, customer, s, row_number() OVER (PARTITION BY w ORDER BY s DESC, customer) AS r FROM {}"
TOP += f" QUALIFY r <= {ROWS}"

Top = list[tuple[object, int]]


def pond(spark: SparkSession, source: Path, folder: Path) -> tuple[float, Top]:
    """Seconds of a pond and the first rows of each minute."""
    shutil.rmtree(folder, ignore_errors=True)
    with Pond(spark, folder) as running:
        running.load(
            f"CREATE TABLE tx ({SCHEMA}) USING parquet OPTIONS (path '{source}', maxFilesPerTrigger 1);"
            f"CREATE STREAMING TABLE spent AS {SPENT.format('STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS')};"
        )
        running.add("top", TOP.format("STREAM spent"), sink=Sink("memory"))
        running.open()
        began = perf_counter()
        running.run(once=True, drain=True)
        seconds = perf_counter() - began
        rows = running.table("top").to_pylist()
    return seconds, sorted((row["since"], row["s"]) for row in rows)


def plain(spark: SparkSession, source: Path, folder: Path) -> float:
    """Seconds of one plain streaming query with in-memory state."""
    shutil.rmtree(folder, ignore_errors=True)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE["memory"])
    spent = stream_of(spark, source).groupBy(F.window("ts", "60 seconds").alias("w"), "customer")
    sums = spent.agg(F.sum((F.col("amount") * 100).cast("bigint")).alias("s"))
    top = sums.groupBy(F.window("w", "60 seconds")).agg(F.expr(f"max_by(struct(customer, s), s, {ROWS})"))
    began = perf_counter()
    rows = top.writeStream.format("noop").outputMode("append").option("checkpointLocation", str(folder))
    rows.trigger(availableNow=True).start().awaitTermination()
    return perf_counter() - began


def batch(events: DataFrame) -> Top:
    """The same by a rank in Spark's batch."""
    events.createOrReplaceTempView("events")
    events.sparkSession.sql(SPENT.format("events")).createOrReplaceTempView("sums")
    return sorted((row.since, row.s) for row in events.sparkSession.sql(TOP.format("sums")).collect())


def main(size: Size = LARGE) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    spark = spark_session(f"local[{INSTANCES}]", driver_memory="4g")
    source = transactions(size)
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch:
        work = Path(scratch)
        expected = batch(spark.read.schema(SCHEMA).parquet(str(source)))
        passes = [pond(spark, source, work / "pond") for _ in range(2)]
        assert all([s for _, s in rows] == [s for _, s in expected] for _, rows in passes)
        print(f"{len(expected)} rows equal Spark's own batch answer", flush=True)
        ours = min(seconds for seconds, _ in passes)
        theirs = min(plain(spark, source, work / "plain") for _ in range(2))
    return beside_plain(size.events, ours, theirs)


if __name__ == "__main__":
    main()
