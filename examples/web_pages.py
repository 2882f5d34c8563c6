"""Web pages: the number of views of each page, and how long people stay, over sliding windows. With DataFrames.

    python examples/web_pages.py

Views are counted by page; visits, with `F.session_window`, would share the one read.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millpond import Pond, spark_session

PAGES = {"/home": 8, "/products": 5, "/cart": 2, "/checkout": 1}
NOON = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)


def write_views(folder: Path) -> None:
    """Write 900 views within an hour and a half, in three files; the same in every run."""
    chance = random.Random(2026)
    names = [name for name, weight in PAGES.items() for _ in range(weight)]
    folder.mkdir(parents=True)
    for number in range(3):
        lines = []
        for i in range(300):
            at = NOON + timedelta(seconds=(number * 300 + i) * 6)
            page = names[int(chance.random() * len(names))]
            seconds = round(chance.random() ** 3 * 240, 1)
            lines.append(json.dumps({"page": page, "visitor": i % 37, "seconds": seconds, "ts": at.isoformat()}))
        file = folder / f"views-{number}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (number, number))  # Spark reads files in the order of these times


def run(spark: SparkSession, folder: Path) -> dict[str, pa.Table]:
    """Three queries over one stream: read once, moved once, and the two windows of an hour share their state."""
    write_views(folder / "views")
    views = (
        spark.readStream.schema("page string, visitor int, seconds double, ts timestamp")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder / "views"))
        .withWatermark("ts", "1 minute")
    )
    sliding = views.groupBy("page", F.window("ts", "30 minutes", "10 minutes"))
    hourly = views.groupBy("page", F.window("ts", "1 hour"))
    with Pond(spark, folder / "pond") as pond:
        pond.add("views", sliding.agg(F.count("*").alias("views"), F.avg("seconds").alias("stay")))
        pond.add("longest", hourly.agg(F.max("seconds").alias("longest")))
        bounces = views.where("seconds < 5").groupBy("page", F.window("ts", "1 hour"))
        pond.add("bounces", bounces.agg(F.count("*").alias("bounces")))
        pond.run(once=True, drain=True)
        return {query.name: pond.table(query.name) for query in pond.queries}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = run(spark_session(), Path(folder))["views"].to_pylist()
    for page in PAGES:
        print(page)
        for row in sorted((row for row in rows if row["page"] == page), key=lambda row: row["window"]["start"]):
            start, end = row["window"]["start"], row["window"]["end"]
            print(f"  {start:%H:%M}-{end:%H:%M} {row['views']:>4} {'█' * (row['views'] // 4)}  {row['stay']:.0f} s")


if __name__ == "__main__":
    main()
