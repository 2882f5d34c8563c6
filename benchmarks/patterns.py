"""1, 8 and 64 row patterns (MATCH_RECOGNIZE) over one stream, in one pond each.

No flags. Transactions of 10,000 customers: one to four payments of which each is larger than the previous one, then
one below a limit, within two minutes; each pattern has another limit. All patterns of a pond share one event log.
Alone, each of 64 patterns would need the time of the first line. The last line is one JSON object.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from time import perf_counter

from engines import INSTANCES
from pyspark.sql import SparkSession
from workload import SCHEMA, Size, transactions

from millpond import Pond, spark_session
from millpond.model.endpoints import Sink

SIZE = Size(400_000, 8, 10_000)
PATTERN = """SELECT * FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS MATCH_RECOGNIZE (
  PARTITION BY customer ORDER BY ts MEASURES COUNT(*) AS n, SUM(B.amount) AS risen, LAST(C.amount) AS last
  PATTERN (A B{{1,4}} C) WITHIN INTERVAL 2 MINUTES
  DEFINE A AS amount > 20, B AS amount > PREV(amount), C AS amount < {}
)"""


def seconds_of(spark: SparkSession, source: Path, folder: Path, patterns: int) -> tuple[float, int]:
    """Seconds of a pond with some patterns, and the number of its rows."""
    shutil.rmtree(folder, ignore_errors=True)
    names = [f"p{i}" for i in range(patterns)]
    with Pond(spark, folder) as pond:
        pond.load(f"CREATE TABLE tx ({SCHEMA}) USING parquet OPTIONS (path '{source}', maxFilesPerTrigger 1)")
        for i, name in enumerate(names):
            pond.add(name, PATTERN.format(1 + i / 16), sink=Sink("memory"))
        pond.open()
        began = perf_counter()
        pond.run(once=True, drain=True)
        seconds = perf_counter() - began
        rows = sum(pond.table(name).num_rows for name in names)
    return seconds, rows


def main(size: Size = SIZE) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    spark = spark_session(f"local[{INSTANCES}]", driver_memory="4g")
    source, figures = transactions(size), dict[str, float]()
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch:
        seconds_of(spark, source, Path(scratch) / "pond", 1)  # warms the JVM up
        for patterns in (1, 8, 64):
            seconds, rows = seconds_of(spark, source, Path(scratch) / "pond", patterns)
            print(f"{patterns} patterns: {size.events / seconds / 1e3:.1f} k events/s, {rows:,} matches", flush=True)
            figures[f"seconds_{patterns}"] = round(seconds, 2)
    figures["ratio_64"] = round(64 * figures["seconds_1"] / figures["seconds_64"], 2)
    print(json.dumps(figures))
    return figures


if __name__ == "__main__":
    main()
