"""Many rules and many windows over one stream: sizes at which users of other engines met trouble.

    python benchmarks/peers/rules.py [--small]

*Rules*: 1,000 and 6,000 windowed queries over the canonical transactions, a tumbling minute per customer, each with a
threshold and a country, a kind or a card of its own. Measured: what a rule adds to the memory of the driver and the
workers, the seconds to add one to a pond that runs, and throughput. *Windows*: counts over the last 10, 30, 60 and
300 seconds of 50,000 customers, emitted again in each epoch (`'emit' = 'update'`) and, for comparison, when they close.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import here  # noqa: F401
from compared import leave
from install import environment
from meter import Failed, measured
from results import FOLDER
from workload import LARGE, SMALL, Size, transactions

COUNTS = (1, 1_000, 6_000)
WINDOWS = (10, 30, 60, 300)
KEYS = 50_000


def main(argv: Sequence[str] | None = None, results: Path = FOLDER) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    parser = argparse.ArgumentParser(description="Many rules, many windows.")
    parser.add_argument("--counts", type=lambda text: tuple(map(int, text.split(","))), default=COUNTS)
    parser.add_argument("--small", action="store_true", help="40,000 events, to see that it works")
    options = parser.parse_args(argv)
    size = SMALL if options.small else LARGE
    windows = Size(size.events, size.files, min(KEYS, size.customers))
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="millpond-rules-") as scratch:
        for count in options.counts:
            run = _run({"rules": count, "source": str(transactions(size)), "files": size.files}, Path(scratch))
            if run is None:
                continue
            print(
                f"{count:>6} rules: {run['events_s'] / 1e3:8.1f} k events/s, one more is added in"
                f" {run['add_s']:.2f} s (planned beforehand in {run['plan_s']:.1f} s), {run['peak_mb']:,.0f} MB",
                flush=True,
            )
            found |= {f"rules_{count}_{name}": value for name, value in run.items()}
        for emit in ("final", "update"):
            run = _run({"emit": emit, "windows": WINDOWS, "source": str(transactions(windows))}, Path(scratch))
            if run is not None:
                print(
                    f"windows, {emit}: {run['events_s'] / 1e3:8.1f} k events/s, an epoch in {run['epoch_s']:.2f} s,"
                    f" {run['rows']:,} rows, {run['peak_mb']:,.0f} MB",
                    flush=True,
                )
                found |= {f"windows_{emit}_{name}": run[name] for name in ("events_s", "epoch_s", "rows", "peak_mb")}
    found |= per_rule(found, options.counts)
    found = {name: round(value, 4) for name, value in found.items()}
    leave("rules", found, None if options.small else results)
    return found


def per_rule(found: dict[str, float], counts: Sequence[int]) -> dict[str, float]:
    """Kilobytes that a rule adds, and microseconds per event that it adds, against the smallest count."""
    least, figures = min(counts), {}
    for count in counts:
        if count == least or f"rules_{count}_peak_mb" not in found or f"rules_{least}_peak_mb" not in found:
            continue
        more = (found[f"rules_{count}_peak_mb"] - found[f"rules_{least}_peak_mb"]) / (count - least)
        figures[f"rules_{count}_kb_per_rule"] = more * 1e3
        slower = 1e9 / found[f"rules_{count}_events_s"] - 1e9 / found[f"rules_{least}_events_s"]
        figures[f"rules_{count}_ns_per_rule_and_event"] = slower / (count - least)
    return figures


def rules(count: int) -> list[str]:
    """`count` conditions that are all different: a threshold each, and an equality with one of three columns."""
    values = [
        *(f"country = '{name}'" for name in ("gr", "de", "fr", "es")),
        *(f"kind = '{name}'" for name in ("pos", "web", "atm", "transfer")),
        *(f"card = '{name}'" for name in ("visa", "mc", "amex")),
    ]
    return [f"amount > {20 + 400 * number / count:.4f}D AND {values[number % len(values)]}" for number in range(count)]


def _run(request: dict[str, Any], work: Path) -> dict[str, float] | None:
    there = environment("pond")
    with tempfile.TemporaryDirectory(dir=work) as folder:
        spec = Path(folder) / "spec.json"
        spec.write_text(json.dumps(request))
        program = str(Path(__file__).with_name("rules_child.py"))
        try:
            found = measured([str(there.python), "-u", program, str(spec)], there.variables)
        except Failed as failure:
            print(f"{request}: failed\n{failure}", file=sys.stderr, flush=True)
            return None
    figures = {name: value for name, value in found.ends[-1].items() if name not in ("mark", "epochs")}
    epochs = found.ends[-1]["epochs"]
    figures["epoch_s"] = statistics.median(epochs[1:] or epochs)
    return {**figures, "peak_mb": found.peak_mb, "cpu_s": found.cpu}


if __name__ == "__main__":
    main()
