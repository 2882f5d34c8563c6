"""Plain Structured Streaming as an application of its own: `live_plain.py SOURCE FOLDER LEAST SECONDS …`.

`live_change.py` starts it. It runs the queries until its input ends, and prints a line for each batch of the first:
when it had ended, in seconds of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from live_load import Plain, by_country, hourly

from millpond import spark_session

CORES = 2


def main(source: Path, folder: Path, least: float, others: Sequence[int]) -> None:
    """Run until the input ends; `others`: seconds of the windows of the queries that are not changed."""
    spark = spark_session(f"local[{CORES}]", driver_memory="4g")
    spark.conf.set("spark.sql.shuffle.partitions", CORES)
    plain = Plain(spark, source, folder, lambda name: print(f"@{name} {perf_counter()}", flush=True))
    plain.start("hourly", hourly(least))
    for seconds in others:
        plain.start(f"country{seconds}", by_country(seconds))
    ended = threading.Thread(target=sys.stdin.read)
    ended.start()
    ended.join()
    for name in list(plain.running):
        plain.stop(name)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), [int(seconds) for seconds in sys.argv[4:]])
