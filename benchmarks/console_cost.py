"""CPU that the web console costs a service with a thousand queries while a browser has a page open.

A file of 1,000 events arrives every second. The CPU time of the service's Python process, which also answers browsers,
is measured in turns: without a page, with a page, without one again. What epochs take varies by more than a page costs,
so a page is compared with the times just before and after it, and the median of several turns counts. The last line is
one JSON object, kept in `results/`: `none_cpu_s`, CPU seconds per second without a page; `PAGE_percent`, what a page
adds, as a percentage of all cores. `--small` has fifty queries.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from playwright.sync_api import sync_playwright
from results import FOLDER, keep
from served_queries import FEW, MANY, SETTLE_SECONDS, ServedQueries

from kit.servers.chromium import chromium_binary

PAGES = {"overview": "", "queries": "queries", "query": "queries/q0001", "graph": "graph", "epochs": "epochs"}
SECONDS, TURNS = 12.0, 3


def main(count: int = MANY, results: Path = FOLDER, seconds: float = SECONDS, turns: int = TURNS) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    with (
        tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch,
        ServedQueries(Path(scratch), count) as served,
        served.client() as client,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=chromium_binary(), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(client.console_link())

        def used(address: str) -> float:
            page.goto(address)
            time.sleep(SETTLE_SECONDS)
            before, began = served.cpu_s(), time.monotonic()
            time.sleep(seconds)
            return (served.cpu_s() - before) / (time.monotonic() - began)

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


if __name__ == "__main__":
    if "--small" in sys.argv[1:]:
        main(FEW, Path(tempfile.mkdtemp()), 5.0, 1)
    else:
        main()
