"""CPU that the web console costs a service with a thousand queries while a browser has a page open.

A file of 1,000 events arrives every second. The CPU time of the service's Python process, which also answers browsers,
is measured in turns: without a page, with a page, without one again. What epochs take varies by more than a page costs,
so a page is compared with the times just before and after it, and the median of several turns counts. The last line is
one JSON object, kept in `results/`: `none_cpu_s`, CPU seconds per second without a page; `PAGE_percent`, what a page
adds, as a percentage of all cores. `--small` has fifty queries.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from playwright.sync_api import sync_playwright
from results import FOLDER, keep

from kit.servers.chromium import chromium_binary
from kit.servers.servers import until
from millpond.errors import MillpondError
from millpond.service.api.client import Client

MANY, FEW = 1000, 50
EVENTS = 1_000
PAGES = {"overview": "", "queries": "queries", "query": "queries/q0001", "graph": "graph", "epochs": "epochs"}
SECONDS, SETTLE_SECONDS, TURNS = 12.0, 6.0, 3
_TICK = os.sysconf("SC_CLK_TCK")


def main(count: int = MANY, results: Path = FOLDER, seconds: float = SECONDS, turns: int = TURNS) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    with (
        tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch,
        _served(Path(scratch), count) as pid,
        Client.of(Path(scratch) / "many.pond") as client,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=chromium_binary(), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(client.console_link())

        def used(address: str) -> float:
            page.goto(address)
            time.sleep(SETTLE_SECONDS)
            return _cpu(pid, seconds)

        added, bases = defaultdict[str, list[float]](list), [used("about:blank")]
        for _ in range(turns):
            for name, path in PAGES.items():
                opened = used(f"{client.url}/console/{path}")
                bases.append(used("about:blank"))
                added[name].append(opened - sum(bases[-2:]) / 2)
                print(name, round(100 * added[name][-1] / (os.cpu_count() or 1), 2), flush=True)
        browser.close()
    percents = {f"{name}_percent": 100 * median(more) / (os.cpu_count() or 1) for name, more in added.items()}
    figures = {"queries": float(count), "none_cpu_s": median(bases), **percents}
    keep("console_cost", {name: round(value, 3) for name, value in figures.items()}, results)
    return figures


@contextmanager
def _served(folder: Path, count: int) -> Iterator[int]:
    """Serve a pond, and write a file each second; gives the number of the process."""
    (folder / "in").mkdir()
    _write(folder / "in", 0)
    (folder / "many.sql").write_text("\n".join(_statements(count)))
    words = [sys.executable, "-m", "millpond", "serve", "many.sql", "--memory", "2g"]
    ended = threading.Event()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
    feeding = threading.Thread(target=_feed, args=(folder / "in", ended))
    try:
        until(lambda: _has_epochs(folder / "many.pond"), f"the pond in {folder} has an epoch", 600)
        feeding.start()
        time.sleep(SETTLE_SECONDS)
        yield process.pid
    finally:
        ended.set()
        process.terminate()
        process.wait(60)


def _statements(count: int) -> Iterator[str]:
    yield "CREATE TABLE s (ts TIMESTAMP, k BIGINT, v BIGINT) USING parquet OPTIONS (path 'in');"
    for number in range(count):
        yield (
            f"CREATE STREAMING TABLE q{number:04} USING noop AS SELECT k, window(ts, '60 seconds', '10 seconds') AS w, "
            "count(*) AS n, sum(v) AS t FROM STREAM s WATERMARK ts DELAY OF INTERVAL 0 SECONDS "
            f"WHERE v > {number} GROUP BY ALL;"
        )


def _has_epochs(pond: Path) -> bool:
    try:
        with Client.of(pond) as client:
            return client.status().epoch >= 0
    except MillpondError:
        return False


def _feed(folder: Path, ended: threading.Event) -> None:
    number = 1
    while not ended.wait(1.0):
        _write(folder, number)
        number += 1


def _write(folder: Path, number: int) -> None:
    dice = np.random.default_rng(number)
    times = np.sort(dice.integers(0, 1_000_000, EVENTS)) + (1_700_000_000 + number) * 1_000_000
    columns = {"ts": pa.array(times, pa.timestamp("us", "UTC")), "k": dice.integers(0, 50, EVENTS)}
    pq.write_table(pa.table(columns | {"v": dice.integers(0, 1000, EVENTS)}), folder / f".{number}")
    (folder / f".{number}").rename(folder / f"{number:05}.parquet")


def _cpu(pid: int, seconds: float) -> float:
    """CPU seconds per second of a process over some seconds."""

    def used() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    before, began = used(), time.monotonic()
    time.sleep(seconds)
    return (used() - before) / (time.monotonic() - began)


if __name__ == "__main__":
    if "--small" in sys.argv[1:]:
        main(FEW, Path(tempfile.mkdtemp()), 5.0, 1)
    else:
        main()
