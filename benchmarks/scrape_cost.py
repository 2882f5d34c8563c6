"""What a scrape of `/metrics` takes on a served pond with a thousand queries, and what it costs the pond in throughput.

First a file of 1,000 events arrives every second, and the metrics are read every 15 seconds, as Prometheus does. Then
another pond reads a backlog, with turns in which the metrics are read once a second and turns in which they are not.
Epochs vary by more than a scrape every 15 seconds costs, so the cost of one a second is measured, and divided by 15.
The last line is one JSON object, kept in `results/`: `scrape_ms` and `slowest_ms`, from the request to the last byte;
`scrape_cpu_ms`, the CPU time of the service; `cpu_percent`, of all cores, with a scrape every 15 seconds;
`throughput_percent`, what this costs of the events per second. `--small` has fifty queries.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import httpx
from results import FOLDER, keep
from served_queries import FEW, MANY, ServedQueries

from millpond.service.api.service_files import Places

EVERY_SECONDS, SCRAPES, AT_ONCE = 15.0, 8, 20
TURN_SECONDS, TURNS = 8.0, 6
EVENTS, FILES = 20_000, 1_500
"""The events of a file of the backlog, and its files: more than the turns read."""


def main(
    count: int = MANY, results: Path = FOLDER, every: float = EVERY_SECONDS, turn: float = TURN_SECONDS,
    files: int = FILES,
) -> dict[str, float]:  # fmt: skip
    """Run everything and print it; returns the figures of the last line."""
    figures = {"queries": float(count)}
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch, ServedQueries(Path(scratch), count) as live:
        figures |= _timed(live, every)
    with (
        tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch,
        ServedQueries(Path(scratch), count, EVENTS, files) as busy,
    ):
        figures |= _throughput(busy, turn, files)
    keep("scrape_cost", {name: round(value, 3) for name, value in figures.items()}, results)
    return figures


def _timed(served: ServedQueries, every: float) -> dict[str, float]:
    """Wall and CPU times of scrapes, while epochs run."""
    scrape = _Scrape(served)
    scrape()
    taken = list[float]()
    for _ in range(SCRAPES):
        time.sleep(every)
        taken.append(scrape())
        print("a scrape takes", round(taken[-1] * 1e3), "ms", flush=True)
    used = list[float]()
    for _ in range(3):  # the epochs of as much time cost CPU, too
        before, began = served.cpu_s(), time.monotonic()
        for _ in range(AT_ONCE):
            scrape()
        both, seconds = served.cpu_s() - before, time.monotonic() - began
        before = served.cpu_s()
        time.sleep(seconds)
        used.append((both - (served.cpu_s() - before)) / AT_ONCE)
    cpu_s = median(used)
    percent = 100 * cpu_s / EVERY_SECONDS / (os.cpu_count() or 1)
    return {
        "scrape_ms": 1e3 * median(taken), "slowest_ms": 1e3 * max(taken), "scrape_cpu_ms": 1e3 * cpu_s,
        "cpu_percent": percent,
    }  # fmt: skip


def _throughput(served: ServedQueries, seconds: float, files: int) -> dict[str, float]:
    """Events per second in turns with a scrape a second, compared with the turns before and after without one."""
    scrape, ended = _Scrape(served), threading.Event()

    def rate() -> float:
        with served.client() as client:
            before, began = client.status(), time.monotonic()
            time.sleep(seconds)
            after = client.status()
        if after.events == EVENTS * files:
            raise SystemExit("The backlog is too short for this machine: all of its events have been read.")
        return (after.events - before.events) / (time.monotonic() - began)

    def scraping() -> None:
        while not ended.wait(1.0):
            scrape()

    bases, losses = [rate()], list[float]()
    for _ in range(TURNS):
        ended.clear()
        thread = threading.Thread(target=scraping)
        thread.start()
        scraped = rate()
        ended.set()
        thread.join()
        bases.append(rate())
        losses.append(1 - scraped / (sum(bases[-2:]) / 2))
        print("events/s with and without:", round(scraped), round(bases[-1]), flush=True)
    return {"events_per_s": median(bases), "throughput_percent": 100 * median(losses) / EVERY_SECONDS}


class _Scrape:
    """Reads the metrics of a service, and returns the seconds that this takes."""

    def __init__(self, served: ServedQueries) -> None:
        headers = {"authorization": f"Bearer {Places(served.pond).known_secret()}"}
        with served.client() as client:
            self._client = httpx.Client(base_url=client.url, headers=headers, timeout=60)

    def __call__(self) -> float:
        began = time.monotonic()
        with suppress(httpx.RemoteProtocolError):  # an idle connection was closed
            return self._read(began)
        return self._read(time.monotonic())

    def _read(self, began: float) -> float:
        self._client.get("/metrics").raise_for_status()
        return time.monotonic() - began


if __name__ == "__main__":
    if "--small" in sys.argv[1:]:
        main(FEW, Path(tempfile.mkdtemp()), 1.0, 3.0, 300)
    else:
        main()
