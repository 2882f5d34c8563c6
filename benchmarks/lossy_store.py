"""Serves a pond over a network that loses and delays packets while queries change, and compares all rows.

    python benchmarks/lossy_store.py [--seconds 60] [--loss 0.01 0.03 0.05] [--delay-ms 5] [--small]

Needs Linux and root. The S3 server (moto) is on another host, a network namespace; a program loses the part `--loss` of
the packets in each direction, and each packet from the server arrives `--delay-ms` later. A leader and a standby, with
`--patience 2`, reach it over this network only. A file of 1,000 events arrives twice a second. Twice a second a client
adds a query or drops an older one, of whichever process leads.

At the end every window is closed. Each row of the first query is compared with those that NumPy makes of the same
events. Each query that was added must have the rows of all events that the log counts from its addition to its drop,
each once, and the history each change once. For each loss: the rows that are lost or surplus, changes, claims, lost
packets, and the seconds from one epoch with events to the next, the median and the largest (`most_`). The last line is
one JSON object, kept in `results/`; the exit code is 1 if a row or a change differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import pyarrow as pa
import pyarrow.parquet as pq
from killed_hosts import FILE_US, SQL, START_US, add_file, expected, reads_events, written
from results import FOLDER, keep
from take_over import LIMIT, TURN_EVENTS, Flow, Service, Watch

from kit.servers.network_hosts import NetworkHosts
from kit.servers.s3_server import S3Server
from kit.servers.servers import LOOPBACK, until
from millpond.errors import MillpondError
from millpond.log.locations.address import Address, address_of
from millpond.log.port import Log
from millpond.log.records import ClaimRecord, EpochRecord, Record, decode
from millpond.service.api.client import Client

PATIENCE, PAUSE, KEPT = 2.0, 0.5, 3
"""`KEPT`: how many of the added queries run at once."""

NTH = 7
ADDED = f"SELECT k, v, ts FROM STREAM ev WHERE v % {NTH} = 0"


class Changes:
    """A client that adds a query, and drops an older one, by turns; each change is made once."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.made: list[tuple[str, str]] = []
        self.repeated = 0

    def running(self) -> int:
        """The number of added queries that are not dropped yet."""
        return sum(1 if kind == "add" else -1 for kind, _ in self.made)

    def make(self, most: int = KEPT) -> None:
        """Add a query, or drop the oldest one if there are `most`."""
        dropped = (len(self.made) - self.running()) // 2
        kind, number = ("drop", dropped) if self.running() >= most else ("add", dropped + self.running())
        name, end = f"q{number}", perf_counter() + LIMIT
        while True:
            with suppress(MillpondError):
                if self._makes(kind, name):
                    self.made.append((kind, name))
                    return
            assert perf_counter() < end, f"{kind} {name} cannot be made"
            self.repeated += 1
            sleep(0.2)

    def _makes(self, kind: str, name: str) -> bool:
        """Whether the change is made; one whose reply was lost is in the history."""
        client = Client.of(self._address, who="benchmark")
        newest = client.history(1)
        if newest and (newest[0].kind, newest[0].name) == (kind, name):
            return True
        if kind == "drop":
            client.drop(name)
        else:
            client.add(name, ADDED, sink="parquet")
        return True


def numbers(rows: Address) -> Counter[int]:
    """How often each event is in the rows of an added query, by its number."""
    objects, found = rows.objects(), Counter[int]()
    for name, _ in objects.list():
        data = objects.get(name)
        if Path(name).name.startswith("part-") and data is not None:
            times = pq.read_table(pa.BufferReader(data))["ts"].cast(pa.int64()).to_numpy() - START_US
            found.update((times // FILE_US * TURN_EVENTS + times % FILE_US).tolist())
    return found


def selected(records: Sequence[Record], added: int, dropped: int) -> Counter[int]:
    """The events that a query selects whose addition and drop are these records; files are read in their order."""
    read = [record.counts.get("*", {}).get("events", 0) if isinstance(record, EpochRecord) else 0 for record in records]
    numbers = range(sum(read[:added]), sum(read[:dropped]))
    return Counter(number for number in numbers if number % 1000 % NTH == 0)


def records_in(address: Address) -> list[Record]:
    """All records of the log."""
    log, records = Log(address.folder("log")), list[Record]()
    while (data := log.read(len(records))) is not None:
        records.append(decode(data).record)
    return records


def measure(work: Path, loss: float, delay_ms: float, seconds: float) -> dict[str, float]:
    """Serve a pond over such a network for `seconds`, and compare."""
    (work / "in").mkdir()
    network = NetworkHosts(1, delay_ms, loss=loss)
    with ExitStack() as ends:
        ends.enter_context(network)
        server = ends.enter_context(S3Server(host=network.host(1)))
        os.environ.update(server.environment)
        bucket = f"s3://{server.bucket()}/{loss:g}"  # stores are opened once per address
        address, rows = address_of(f"{bucket}/pond"), address_of(f"{bucket}/rows")
        (work / "ev.sql").write_text(SQL.format(folder=work, rows=rows))
        services = []
        for number in (1, 2):
            services.append(Service(number, LOOPBACK, work, address, PATIENCE, server.url, f"{bucket}/added"))
            ends.callback(services[-1].kill)
            text = "Leading;" if number == 1 else "Standing by"
            until(lambda: services[-1].said(text), f"service {number} says {text}", LIMIT)  # noqa: B023
        flow, changes, watch = Flow(work, 0, add_file), Changes(address), Watch(address)
        watch.next(reads_events)
        end = perf_counter() + seconds
        while perf_counter() < end:
            changes.make()
            sleep(PAUSE)
        files = flow.end()
        until(lambda: watch.events() >= files * TURN_EVENTS, "all files are read", LIMIT)
        while changes.running():
            changes.make(most=0)
        history = [*reversed(Client.of(address).history(10_000))]
        for service in services:
            service.kill()
        words = ["run", str(work / "ev.sql"), "--checkpoint", str(address), "--once", "--drain", "--master", "local[2]"]
        subprocess.run([sys.executable, "-m", "millpond", *words], check=True, stdout=subprocess.DEVNULL)
        found, right, records = Counter(written(rows)), expected(files), records_in(address)
        committed = [(event.kind, event.name) for event in history]
        made = dict(zip(committed, (event.record for event in history), strict=True))
        added_rows, wrong_rows = 0, 0
        for name in (name for kind, name in changes.made if kind == "add"):
            emitted = numbers(address_of(f"{bucket}/added/{name}"))
            must = selected(records, made["add", name], made["drop", name])
            added_rows += emitted.total()
            wrong_rows += (must - emitted).total() + (emitted - must).total()
        times = [record.at / 1e6 for record in records if reads_events(record)]
        claims = sum(isinstance(record, ClaimRecord) for record in records)
        waits = [later - earlier for earlier, later in pairwise(times)]
        figures = {
            "changes": len(changes.made), "repeated_requests": changes.repeated, "claims": claims,
            "events": files * TURN_EVENTS, "rows": right.total(), "lost": (right - found).total(),
            "surplus": (found - right).total(), "wrong_changes": int(committed != changes.made),
            "added_rows": added_rows, "wrong_rows": wrong_rows,
            "epoch_s": round(median(waits), 2), "most_epoch_s": round(max(waits), 2),
        }  # fmt: skip
    return {**figures, "lost_packets": network.lost}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--loss", type=float, nargs="+", default=[0.01, 0.03, 0.05])
    parser.add_argument("--delay-ms", type=float, default=5.0)
    parser.add_argument("--small", action="store_true", help="for ten seconds with one loss, and nothing is kept")
    given = parser.parse_args(arguments)
    if (why := NetworkHosts.missing()) is not None:
        raise SystemExit(f"There can be no hosts here: {why}")
    os.environ["MILLPOND_TOKEN"] = "the-token-of-the-benchmark"
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as made:
        for loss in given.loss[-1:] if given.small else given.loss:
            work = Path(made) / str(loss)
            work.mkdir()
            found = measure(work, loss, given.delay_ms, 10.0 if given.small else given.seconds)
            print(f"{loss:.0%} of the packets are lost: {found}", flush=True)
            figures |= {f"{name}_{loss:g}": value for name, value in found.items()}
        keep("lossy_store", figures, Path(made) if given.small else FOLDER)
    return int(any(value for name, value in figures.items() if name.startswith(("lost_0", "surplus", "wrong"))))


if __name__ == "__main__":
    sys.exit(main())
