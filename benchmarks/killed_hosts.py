"""Three hosts serve a pond in a bucket under load, and all but one are killed in turn: is each row there, and once?

    python benchmarks/killed_hosts.py [--minutes 20] [--every 60] [--patience 2] [--small]

Needs Linux and root. Each host is a network namespace with an address, a folder and a process of `millpond serve`; see
`take_over.py`. The pond and its sink are in a bucket of an S3 server (moto). A file of 1,000 events arrives twice a
second. `--every` so many seconds two hosts are killed: their processes end without a signal that they could handle,
their networks are cut and their folders are lost. Each host in turn is the one that is left, and takes over. When it
has committed an epoch with events, the killed ones come back as new hosts without files, and stand by.

At the end every window is closed, and the rows in the bucket are compared with those that NumPy makes of the same
events: each row exactly once. `epoch_s`: seconds from a kill to the first epoch with events, the median and the largest
(`most_`). The last line is one JSON object, kept in `results/`; the exit code is 1 if a row differs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from results import FOLDER, keep
from take_over import LIMIT, TURN_EVENTS, Flow, Service, Watch, store_and_folder

from kit.servers.network_hosts import NetworkHosts
from kit.servers.s3_server import S3Server
from kit.servers.servers import until
from millpond.log.locations.address import Address, address_of
from millpond.log.records import EpochRecord

START_US, FILE_US, WINDOW_US, KEYS, HOSTS = 1_700_000_000_000_000, 1_000_000, 10_000_000, 300, 3
SQL = """
CREATE TABLE ev (k BIGINT, v BIGINT, ts TIMESTAMP) USING parquet
OPTIONS (path '{folder}/in', maxFilesPerTrigger '4');
CREATE STREAMING TABLE totals USING parquet TBLPROPERTIES ('path' = '{rows}') AS
SELECT k, window.start AS start, count(*) AS n, sum(v) AS v
FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 1 SECOND GROUP BY k, window(ts, '10 seconds');
"""

Row = tuple[int, int, int, int]
"""Key, start of the window in microseconds, number of events, sum of the values."""


class Events(NamedTuple):
    """The columns of some files, the times in microseconds; no event is older than one of an earlier file."""

    k: np.ndarray
    v: np.ndarray
    ts: np.ndarray


def events(first: int, end: int) -> Events:
    """The events of the files `first` … `end` - 1."""
    numbers = np.arange(first * TURN_EVENTS, end * TURN_EVENTS)
    times = START_US + numbers // TURN_EVENTS * FILE_US + numbers % TURN_EVENTS
    return Events(numbers * 7919 % KEYS, numbers % 1000, times)


def add_file(folder: Path, number: int) -> None:
    """Write a file of events; it appears atomically."""
    k, v, ts = events(number, number + 1)
    draft = folder / "in" / f".{number}"
    pq.write_table(pa.table({"k": k, "v": v, "ts": pa.array(ts, pa.timestamp("us", "UTC"))}), draft)
    os.utime(draft, (START_US // 1_000_000 + number,) * 2)
    draft.rename(folder / "in" / f"{number:06}.parquet")


def expected(files: int) -> Counter[Row]:
    """The rows that follow from the events of so many files."""
    k, v, ts = events(0, files)
    groups, place = np.unique(np.stack([k, ts // WINDOW_US * WINDOW_US]), axis=1, return_inverse=True)
    numbers, sums = np.bincount(place.ravel()), np.bincount(place.ravel(), v).astype(np.int64)
    return Counter(zip(*groups.tolist(), numbers.tolist(), sums.tolist(), strict=True))


def written(rows: Address) -> Iterator[Row]:
    """The rows in the bucket."""
    objects = rows.objects()
    for name, _ in objects.list():
        data = objects.get(name)
        if Path(name).name.startswith("part-") and data is not None:
            columns = pq.read_table(pa.BufferReader(data)).columns
            yield from zip(*(column.cast(pa.int64()).to_pylist() for column in columns), strict=True)


def reads_events(record: object) -> bool:
    """Whether a record is an epoch with events."""
    return isinstance(record, EpochRecord) and record.counts.get("*", {}).get("events", 0) > 0


def leads(host: Service) -> bool:
    """Whether a host leads: it was fenced once for each time that it led and does not lead any more."""
    return host.said("Leading;") > host.said("[MP-FENCED]")


def measure(work: Path, server: S3Server, seconds: float, every: float, patience: float) -> dict[str, float]:
    """Kill all hosts but one again and again for so many seconds; see the head of this file."""
    (work / "in").mkdir()
    bucket = f"s3://{server.bucket()}"
    address, rows = address_of(f"{bucket}/pond"), address_of(f"{bucket}/rows")
    (work / "ev.sql").write_text(SQL.format(folder=work, rows=rows))
    waits = list[float]()
    with ExitStack() as ends:
        network = ends.enter_context(NetworkHosts(HOSTS))
        endpoint = f"http://{network.host(0).address}:{server.port}"

        def start(number: int) -> Service:
            shutil.rmtree(work / f"host-{number}", ignore_errors=True)
            made = Service(number, network.host(number), work, address, patience, endpoint)
            ends.callback(made.kill)
            return made

        hosts, watch = {1: start(1)}, Watch(address)
        until(lambda: hosts[1].said("Leading;"), "the first host leads", LIMIT)
        hosts |= {number: start(number) for number in range(2, HOSTS + 1)}
        for number in range(2, HOSTS + 1):
            until(lambda: hosts[number].said("Standing by"), f"host {number} stands by", LIMIT)  # noqa: B023
        flow = Flow(work, 0, add_file)
        watch.next(reads_events)
        end = perf_counter() + seconds
        while perf_counter() < end or not waits:
            sleep(every)
            left, began = (len(waits) + 1) % HOSTS + 1, perf_counter()
            killed = [number for number in hosts if number != left]
            for number in killed:
                hosts.pop(number).kill()
                network.cut(number)
            watch.skip()
            until(lambda: leads(hosts[left]), f"host {left} leads", LIMIT)  # noqa: B023
            watch.next(reads_events)
            waits.append(perf_counter() - began)
            print(f"hosts {killed} were killed; host {left} committed an epoch after {waits[-1]:.1f} s", flush=True)
            for number in killed:
                network.heal(number)
                hosts[number] = start(number)
            for number in killed:
                until(lambda: hosts[number].said("Standing by"), f"host {number} stands by", LIMIT)  # noqa: B023
        sleep(every)
        files = flow.end()
        until(lambda: watch.events() >= files * TURN_EVENTS, "all files are read", LIMIT)
    words = ["run", str(work / "ev.sql"), "--checkpoint", str(address), "--once", "--drain", "--master", "local[2]"]
    subprocess.run([sys.executable, "-m", "millpond", *words], check=True)
    found, right = Counter(written(rows)), expected(files)
    lost, surplus = (right - found).total(), (found - right).total()
    return {
        "minutes": round(seconds / 60, 1), "take_overs": len(waits), "events": files * TURN_EVENTS,
        "rows": right.total(), "lost": lost, "surplus": surplus,
        "epoch_s": round(median(waits), 2), "most_epoch_s": round(max(waits), 2),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=60.0)
    parser.add_argument("--patience", type=float, default=2.0)
    parser.add_argument("--small", action="store_true", help="a turn or two, and nothing is kept")
    given = parser.parse_args(arguments)
    with store_and_folder() as (server, work):
        every, seconds = (10.0, 25.0) if given.small else (given.every, given.minutes * 60)
        figures = measure(work, server, seconds, every, given.patience)
        keep("killed_hosts", figures, work if given.small else FOLDER)
    return int(figures["lost"] + figures["surplus"] > 0)


if __name__ == "__main__":
    sys.exit(main())
