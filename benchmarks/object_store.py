"""A pond in an S3 bucket beside one in a folder: throughput of large epochs, and latency of small ones, in one run.

    python benchmarks/object_store.py [--small]

The S3 server (moto, in Python) runs on the same two cores as the pond. Both ponds compute eight queries of the
canonical workload, with rows to `noop`, in turns. `throughput`: events per second in the bucket over those in the
folder, for epochs of 500,000 events, by the median epoch without the first of each pass. `latency`: seconds from the
arrival of a file of 20,000 events, one a second, to its commit, in the bucket over those in the folder, by the median.
The last line is one JSON object, kept in `results/`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from engines import INSTANCES, aggregations, pond
from pyspark.sql import SparkSession
from results import FOLDER, keep
from small_epochs import latencies, summary
from workload import SMALL, Size, transactions, windows

from kit.servers.s3_server import S3Server
from millpond import spark_session

QUERIES = 8
EVENTS = Size(4_000_000, 8, 100_000)


class Places:
    """New places for ponds, by turns in a folder and in a bucket."""

    def __init__(self, work: Path, bucket: str) -> None:
        self._work, self._bucket, self._made = work, bucket, 0

    def next(self) -> dict[str, Path]:
        """A place of each kind."""
        self._made += 1
        return {"folder": self._work / f"pond-{self._made}", "bucket": Path(f"s3://{self._bucket}/pond-{self._made}")}


def measure(spark: SparkSession, work: Path, places: Places, size: Size, turns: int, files: int) -> dict[str, float]:
    """Run both kinds of ponds in turns."""
    source, queries = transactions(size), aggregations(windows(QUERIES))
    seconds: dict[str, list[float]] = {"folder": [], "bucket": []}
    steps: dict[str, list[float]] = {"folder": [], "bucket": []}
    pond(spark, source, work / "warm", queries)
    for _ in range(turns):
        for kind, place in places.next().items():
            run = pond(spark, source, place, queries)
            seconds[kind] += run.seconds[1:]
            steps[kind] += [step["commit"] for step in run.steps[1:]]
            print(f"{kind}: {median(run.seconds[1:]):.3f} s an epoch, commit {median(steps[kind]):.3f} s", flush=True)
    figures = {}
    for kind, each in seconds.items():
        figures[f"{kind}_events_per_s"] = round(size.events / size.files / median(each))
    figures["throughput"] = round(median(seconds["folder"]) / median(seconds["bucket"]), 3)
    waits: dict[str, list[float]] = {"folder": [], "bucket": []}
    for _ in range(turns):
        for kind, place in places.next().items():
            waits[kind] += latencies(spark, work, windows(QUERIES), files, place)
            print("{}: p50 {:.3f} s, p99 {:.3f} s".format(kind, *summary(waits[kind])), flush=True)
    for kind, found in waits.items():
        for name, value in zip(("p50_s", "p99_s"), summary(found), strict=True):
            figures[f"{kind}_{name}"] = round(value, 3)
    figures["latency"] = round(summary(waits["bucket"])[0] / summary(waits["folder"])[0], 3)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="few events, once, and nothing is kept")
    options = parser.parse_args(arguments)
    with S3Server() as server, tempfile.TemporaryDirectory(prefix="millpond-bench-") as made:
        os.environ.update(server.environment)  # before Java starts, whose workers inherit it
        spark, work = spark_session(f"local[{INSTANCES}]", driver_memory="4g"), Path(made)
        places = Places(work, server.bucket())
        if options.small:
            keep("object_store", measure(spark, work, places, SMALL, 1, 12), work)
        else:
            keep("object_store", measure(spark, work, places, EVENTS, 2, 30), FOLDER)


if __name__ == "__main__":
    main()
