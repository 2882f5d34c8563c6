"""How soon a standby on another host continues a pond with much state, after the leader's host is cut off.

    python benchmarks/take_over.py [--megabytes 1000] [--patience 2] [--turns 6] [--small]

Needs Linux and root. Each host is a network namespace with an address, a folder for its copies and a process of
`millpond serve`. The pond is in a bucket of an S3 server (moto), which they reach over a bridge. One query counts and
sums by key in a window that stays open (see `cold_start.py`). When its state has the size, a file of 1,000 events
arrives twice a second. Then the leader's host is cut off: no packet passes in either direction. When the standby has
committed an epoch, the host is healed, and stands by. Then the new leader is cut off, and so on.

Seconds from the cut, as the log in the bucket shows it: `claim_s` until the standby has claimed the pond, `epoch_s`
until its first epoch with events is committed; `leads_s` until it says that it leads, and accepts changes; `open_s`:
the part of it that opening the pond took. Medians, and the largest (`most_`). At the end, the events of the log are
compared with those that were written: none is lost, none is counted twice. The last line is one JSON object, kept in
`results/`.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

from cold_start import KEYS_PER_FILE, QUERY, add_file
from results import FOLDER, keep

from kit.servers.network_hosts import NetworkHosts
from kit.servers.s3_server import S3Server
from kit.servers.servers import Host, until
from millpond.log.locations.address import Address, address_of
from millpond.log.manifest import Manifests, load
from millpond.log.port import Log
from millpond.log.records import STATE, ClaimRecord, EpochRecord, decode

LIMIT = 600.0
"""The longest wait in seconds."""

TURN_EVENTS, PAUSE = 1_000, 0.5


class Service:
    """`millpond serve` on a host, with folders of its own; `out`: where rows of added queries go."""

    def __init__(
        self, number: int, host: Host, work: Path, address: Address, patience: float, endpoint: str, out: str = ""
    ) -> None:  # fmt: skip
        self.number, folder = number, work / f"host-{number}"
        folder.mkdir()
        self._log = work / f"host-{number}.log"
        variables = {"AWS_ENDPOINT_URL": endpoint, "TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}
        words = ["serve", str(work / "ev.sql"), "--checkpoint", str(address), "--out", out or str(folder / "out")]
        options = ["--master", "local[2]", "--memory", "1g", "--patience", str(patience)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*host.inside, sys.executable, "-m", "millpond", *words, *options],
                stdout=log, stderr=log, env=os.environ | variables, start_new_session=True,
            )  # fmt: skip

    def said(self, line: str) -> int:
        """How often a line was printed; the process must be alive."""
        text = self._log.read_text()
        assert self._process.poll() is None, text
        return text.count(line)

    def opened(self) -> float:
        """The seconds that it took to open the pond, the last time that this service began to lead."""
        return float(re.findall(r"opening the pond took ([0-9.]+) s", self._log.read_text())[-1])

    def kill(self) -> None:
        """End the service, its Java machine and its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)


class Watch:
    """What the log in the bucket says."""

    def __init__(self, address: Address) -> None:
        self._log, self._manifests = Log(address.folder("log")), Manifests(address.folder("manifest"))
        self._n = -1

    def state(self) -> tuple[int, int]:
        """The bytes of the live state, and the events read until now."""
        if self._log.read(0) is None:
            return 0, 0
        manifest = load(self._log, self._manifests)
        return sum(one.size for one in manifest.sections.values() if one.kind in STATE), self.events()

    def events(self) -> int:
        """The events of all epochs."""
        total, n = 0, 0
        while (data := self._log.read(n)) is not None:
            record = decode(data).record
            total += record.counts.get("*", {}).get("events", 0) if isinstance(record, EpochRecord) else 0
            n += 1
        self._n = n - 1
        return total

    def skip(self) -> None:
        """Pass by the records that are in the log."""
        while self._log.read(self._n + 1) is not None:
            self._n += 1

    def next(self, wanted: Callable[[object], bool]) -> object:
        """The next record that is wanted; reads those before it."""
        end = perf_counter() + LIMIT
        while perf_counter() < end:
            data = self._log.read(self._n + 1)
            if data is None:
                sleep(0.005)
                continue
            self._n += 1
            if wanted(record := decode(data).record):
                return record
        raise AssertionError("no such record was written")


class Flow:
    """Adds a file at a time in another thread, from number `first` on, until it ends."""

    def __init__(self, work: Path, first: int, add: Callable[[Path, int], None]) -> None:
        self._work, self._next, self._add = work, first, add
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(PAUSE):
            self._add(self._work, self._next)
            self._next += 1

    def end(self) -> int:
        """End, and return the number of the file that would have been next."""
        self._ended.set()
        self._thread.join()
        return self._next


def measure(work: Path, server: S3Server, megabytes: float, keys: int, patience: float, turns: int) -> dict[str, float]:
    """Fill a pond, and cut its leader off a few times."""
    (work / "in").mkdir()
    (work / "ev.sql").write_text(QUERY.format(folder=work))
    address = address_of(f"s3://{server.bucket()}/ponds/take-over")
    with ExitStack() as ends:
        hosts = ends.enter_context(NetworkHosts(2))
        endpoint = f"http://{hosts.host(0).address}:{server.port}"

        def service(number: int) -> Service:
            made = Service(number, hosts.host(number), work, address, patience, endpoint)
            ends.callback(made.kill)
            return made

        leader, watch, files, size = service(1), Watch(address), 0, 0
        add_file(work, 0, keys)
        until(lambda: leader.said("Leading;"), "the first host leads", LIMIT)
        standby = service(2)
        until(lambda: standby.said("Standing by"), "the second host stands by", LIMIT)
        while size < megabytes * 1e6:
            files += 1
            until(lambda: watch.state()[1] >= files * keys, f"{files} files are read", LIMIT)  # noqa: B023
            size = watch.state()[0]
            print(f"{files} files, {size / 1e6:.0f} MB of live state", flush=True)
            add_file(work, files, keys)
        files += 1
        until(lambda: watch.state()[1] >= files * keys, f"{files} files are read", LIMIT)
        seconds: dict[str, list[float]] = {"claim": [], "open": [], "leads": [], "epoch": []}
        flow = Flow(work, files, partial(add_file, keys=TURN_EVENTS, keys_from=0))
        for turn in range(turns):
            sleep(5)
            watch.events()
            led, stood = standby.said("Leading;"), leader.said("Standing by")
            cut = perf_counter()
            hosts.cut(leader.number)
            claim = watch.next(lambda record: isinstance(record, ClaimRecord))
            seconds["claim"].append(perf_counter() - cut)
            until(lambda: standby.said("Leading;") > led, "the standby leads", LIMIT)  # noqa: B023
            seconds["leads"].append(perf_counter() - cut)
            seconds["open"].append(standby.opened())
            watch.next(
                lambda record: isinstance(record, EpochRecord) and record.writer == claim.writer  # noqa: B023
                and record.counts.get("*", {}).get("events", 0) > 0
            )  # fmt: skip
            seconds["epoch"].append(perf_counter() - cut)
            sleep(turn)  # cuts of several lengths
            hosts.heal(leader.number)
            until(lambda: leader.said("Standing by") > stood, "the healed host stands by", LIMIT)  # noqa: B023
            leader, standby = standby, leader
            print(", ".join(f"{name} {found[-1]:.2f} s" for name, found in seconds.items()), flush=True)
        written = files * keys + (flow.end() - files) * TURN_EVENTS
        until(lambda: watch.events() >= written, "all files are read", LIMIT)
        assert watch.events() == written, "an event was counted twice"
        size = watch.state()[0]
    figures = {"state_mb": round(size / 1e6, 1), "patience_s": patience, "turns": turns, "events": written}
    for name, found in seconds.items():
        figures |= {f"{name}_s": round(median(found), 3), f"most_{name}_s": round(max(found), 3)}
    return figures


@contextmanager
def store_and_folder() -> Iterator[tuple[S3Server, Path]]:
    """An S3 server that hosts reach, with the variables of its clients in the environment, and a temporary folder."""
    if (why := NetworkHosts.missing()) is not None:
        raise SystemExit(f"There can be no hosts here: {why}")
    with S3Server(host=Host("0.0.0.0")) as server, tempfile.TemporaryDirectory(prefix="millpond-bench-") as made:
        os.environ.update(server.environment | {"MILLPOND_TOKEN": "the-token-of-the-benchmark"})
        yield server, Path(made)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--patience", type=float, default=2.0)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--small", action="store_true", help="little state, once, and nothing is kept")
    given = parser.parse_args(arguments)
    with store_and_folder() as (server, work):
        size = (1.0, 5_000, given.patience, 1) if given.small else (
            given.megabytes, KEYS_PER_FILE, given.patience, given.turns
        )  # fmt: skip
        keep("take_over", measure(work, server, *size), work if given.small else FOLDER)


if __name__ == "__main__":
    main()
