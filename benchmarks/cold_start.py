"""Time until a pond with much state goes on on a host that has nothing of it: no cache, no checkpoint of Spark.

    python benchmarks/cold_start.py [--address ADDRESS | --bucket] [--megabytes 1000] [--small]

ADDRESS is any address that a pond can have; `--bucket`: in an S3 server (moto) on this machine, which keeps the objects
in memory; without both, a temporary folder. The pond must be new. One query counts and
sums by key in a window that stays open; files of new keys are read until the live state has the size. Then the pond is
closed, its host-local files are removed, and the operating system is given to forget the cached pages of a local
folder. One more file waits. `open_s`: from `Pond(...)` to the claim, with the checkpoint of Spark made from the log;
`first_epoch_s`: from there to the commit of the epoch that reads this file, for which every instance reads its state.
`mb_per_s` is the live state by the sum of both. Spark itself is running before, as it is for a standby. Each cold start
is repeated, and the median counts. The last line is one JSON object, kept in `results/`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from results import FOLDER, keep

from kit.servers.s3_server import S3Server
from millpond import Pond, spark_session
from millpond.log.records import STATE
from millpond.spark.driver.epochs import Epoch

KEYS_PER_FILE = 500_000
START_US = 1_700_000_000_000_000
INSTANCES = 2
QUERY = """
CREATE TABLE ev (k BIGINT, v BIGINT, w DOUBLE, ts TIMESTAMP) USING parquet
OPTIONS (path '{folder}/in', maxFilesPerTrigger '1');
CREATE STREAMING TABLE totals USING noop AS
SELECT k, window(ts, '365 days') AS year, count(*) AS n, sum(v) AS v, max(v) AS most, sum(w) AS w
FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 1 DAY GROUP BY k, window(ts, '365 days');
"""


def add_file(folder: Path, number: int, keys: int, keys_from: int | None = None) -> None:
    """Write a file of one event for each key, from `keys_from` on; None: of new keys. It appears atomically."""
    first = number * keys if keys_from is None else keys_from
    values = np.arange(first, first + keys)
    table = pa.table({
        "k": values * 7919, "v": values % 1000, "w": values / 7,
        "ts": pa.array(START_US + values % 1_000_000, pa.timestamp("us", "UTC")),
    })  # fmt: skip
    draft = folder / "in" / f".{number}"
    pq.write_table(table, draft)
    os.utime(draft, (START_US // 1_000_000 + number,) * 2)
    draft.rename(folder / "in" / f"{number:05}.parquet")


def forget(address: str, host: Path) -> None:
    """Remove what another host does not have, and drop the cached pages of a local pond."""
    shutil.rmtree(host, ignore_errors=True)
    if "://" in address:
        return
    for derived in ("spark", "view", "manifest"):
        shutil.rmtree(Path(address) / derived, ignore_errors=True)
    os.sync()
    for path in Path(address).rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def live_bytes(pond: Pond) -> int:
    """The bytes of the live state."""
    opened = pond._lifetime.open()
    return sum(section.size for section in opened.manifest().sections.values() if section.kind in STATE)


def measure(address: str, folder: Path, megabytes: float, keys: int, repeats: int) -> dict[str, float]:
    """Fill a pond and start it cold a few times."""
    spark = spark_session(f"local[{INSTANCES}]")
    (folder / "in").mkdir()
    text, files, size = QUERY.format(folder=folder), 0, 0
    with Pond(spark, address, instances=INSTANCES, cache=folder / "cache") as pond:
        pond.load(text)
        while size < megabytes * 1e6:
            add_file(folder, files, keys)
            files += 1
            pond.run(once=True)
            size = live_bytes(pond)
            print(f"{files} files, {size / 1e6:.0f} MB of live state", flush=True)
    opens: list[float] = []
    epochs: list[float] = []
    for turn in range(repeats):
        forget(address, folder / "cache")
        add_file(folder, files + turn, 1000)
        ended: list[float] = []

        def committed(_epoch: Epoch, ended: list[float] = ended) -> None:
            ended.append(perf_counter())

        began = perf_counter()
        with Pond(spark, address, instances=INSTANCES, cache=folder / "cache", on_epoch=committed) as pond:
            pond.load(text)
            pond._lifetime.open()
            opens.append(perf_counter() - began)
            pond.run(once=True)
            epochs.append(ended[0] - began - opens[-1])
            size = live_bytes(pond)
        print(f"open {opens[-1]:.2f} s, first epoch {epochs[-1]:.2f} s", flush=True)
    total = median(map(sum, zip(opens, epochs, strict=True)))
    return {
        "state_mb": round(size / 1e6, 1), "files": files, "open_s": round(median(opens), 3),
        "first_epoch_s": round(median(epochs), 3), "cold_start_s": round(total, 3),
        "mb_per_s": round(size / 1e6 / total, 1),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address")
    parser.add_argument("--bucket", action="store_true", help="in a bucket of an S3 server on this machine")
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--small", action="store_true", help="little state, once, and nothing is kept")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made, ExitStack() as ends:
        folder = Path(made)
        address = given.address or str(folder / "pond")
        if given.bucket:
            server = ends.enter_context(S3Server())
            os.environ.update(server.environment)  # before Java starts, whose workers inherit it
            address = f"s3://{server.bucket()}/pond"
        size = (1.0, 5_000, 1) if given.small else (given.megabytes, KEYS_PER_FILE, 3)
        name = "cold_start_bucket" if given.bucket else "cold_start"
        keep(name, measure(address, folder, *size), folder if given.small else FOLDER)


if __name__ == "__main__":
    main()
