"""Where a benchmark leaves what it found: `results/NAME.json` and `results/NAME.svg` beside this file."""

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
