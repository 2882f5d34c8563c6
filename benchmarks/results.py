"""Prints what a benchmark found, and keeps it in `results/NAME.json` and `results/NAME.svg` beside this file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).with_name("results")


def keep(name: str, figures: Mapping[str, float], folder: Path = FOLDER) -> None:
    """Write the figures, and print them as the last line."""
    folder.mkdir(exist_ok=True)
    line = json.dumps(figures)
    (folder / f"{name}.json").write_text(line.replace(", ", ",\n ") + "\n", encoding="utf-8")
    print(line)


def beside_plain(events: int, ours: float, plain: float) -> dict[str, float]:
    """Print what a pond and plain Spark reach in so many seconds each; the figures are the last line."""
    for engine, seconds in (("a pond", ours), ("plain Spark", plain)):
        print(f"{engine}: {events / seconds / 1e3:.1f} k events/s")
    figures = {"seconds": round(ours, 2), "plain_seconds": round(plain, 2), "ratio": round(plain / ours, 2)}
    print(json.dumps(figures))
    return figures
