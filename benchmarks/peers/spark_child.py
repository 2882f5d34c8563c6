"""Runs N plain Structured Streaming queries side by side under measurement; see `meter.py`.

Its argument is a file of JSON: `conf` of Spark, `passes` as of `pond_child.py`. Only batches that have been committed
count, so the measured pass is not stopped before each query has one; windows that are open at its end stay open, which
saves it some rows.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import here  # noqa: F401
from engines import aggregation, stream_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from settings import BATCH_FILES, CORES, HEAP


def main(path: Path) -> None:
    """Run all passes, and mark the last one."""
    spec = json.loads(path.read_text())
    builder = SparkSession.builder.master(f"local[{CORES}]").config("spark.driver.memory", HEAP)
    for name, value in spec["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for number, one in enumerate(spec["passes"]):
        folder = path.parent / f"checkpoints{number}"
        run(spark, folder, one, number == len(spec["passes"]) - 1)
        shutil.rmtree(folder, ignore_errors=True)
    spark.stop()


def run(spark: SparkSession, folder: Path, one: dict[str, Any], marked: bool) -> None:
    """One pass; it begins before the first query is started, and ends when the last one has, or its time is over."""
    if marked:
        print('@{"mark": "begin"}', flush=True)
    began = time.perf_counter()
    running = []
    for number, (size, slide) in enumerate(one["windows"]):
        rows = aggregation(stream_of(spark, Path(one["source"]), BATCH_FILES), size, slide)
        writer = _rows(rows).writeStream.format("parquet" if one["out"] else "noop").outputMode("append")
        if one["out"]:
            writer = writer.option("path", f"{one['out']}/{number}")
        writer = writer.option("checkpointLocation", str(folder / str(number)))
        running.append(writer.trigger(availableNow=True).start())
    while any(query.isActive for query in running):
        if time.perf_counter() - began >= one["seconds"] and not (marked and 0 in map(_events, running)):
            break
        time.sleep(0.1)
    whole = not any(query.isActive for query in running)
    end = {"events": sum(map(_events, running)) / len(running), "rows": sum(map(_given, running)), "whole": whole}
    end["state_bytes"] = sum(map(_kept, running))
    if marked:
        print("@" + json.dumps({"mark": "end", **end}), flush=True)
    for query in running:
        query.stop()


def _rows(frame: DataFrame) -> DataFrame:
    return frame.select("customer", F.unix_timestamp("window.end").alias("end"), "n", "s", "m")


def _events(query: StreamingQuery) -> int:
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def _given(query: StreamingQuery) -> int:
    return sum(max(0, progress["sink"]["numOutputRows"]) for progress in query.recentProgress)


def _kept(query: StreamingQuery) -> int:
    """Bytes of the newest version of the state: in memory, or in the files of RocksDB."""
    progress = query.lastProgress
    if progress is None:
        return 0
    return sum(
        operator["customMetrics"].get("rocksdbSstFileSize") or operator["memoryUsedBytes"]
        for operator in progress["stateOperators"]
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
