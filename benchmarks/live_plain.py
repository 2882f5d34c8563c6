"""Plain Structured Streaming as an application of its own, for `live_change.py`: `live_plain.py SOURCE FOLDER LEAST`.

It runs the queries until its input ends, and prints a line for each batch of the first: when it had ended, in seconds
of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from time import perf_counter

from live_load import Plain, by_country, hourly

from millpond import spark_session

CORES = 2
OTHERS = (5, 10, 20, 30)
"""Seconds of the windows of the queries that are not changed."""


def main(source: Path, folder: Path, least: float) -> None:
    """Run until the input ends."""
    spark = spark_session(f"local[{CORES}]", driver_memory="4g")
    spark.conf.set("spark.sql.shuffle.partitions", CORES)
    plain = Plain(spark, source, folder, lambda name: print(f"@{name} {perf_counter()}", flush=True))
    plain.start("hourly", hourly(least))
    for seconds in OTHERS:
        plain.start(f"country{seconds}", by_country(seconds))
    ended = threading.Thread(target=sys.stdin.read)
    ended.start()
    ended.join()
    for name in list(plain.running):
        plain.stop(name)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
