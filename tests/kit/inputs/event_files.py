"""Writes and cuts the events of tests: JSON files for a source of files, and random epochs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_json(folder: Path, number: int, events: Sequence[dict[str, Any]]) -> None:
    """Write a file of JSON lines; a source of files that lists the folder sees it only when it is complete."""
    folder.mkdir(exist_ok=True)
    (folder / f".{number}").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / f".{number}").rename(folder / f"{number}.json")


def not_local(spark: Any, folder: Path) -> str:
    """The address of a local folder in a file system of Hadoop that its readers do not take for the local one."""
    name = folder.name.lower().replace("_", "-")
    spark.sparkContext._jsc.hadoopConfiguration().set(f"fs.viewfs.mounttable.{name}.link./of", folder.as_uri())
    return f"viewfs://{name}/of"


def cut(rows: Sequence[Any], dice: random.Random, most: int = 20) -> list[list[Any]]:
    """The rows in epochs of random sizes, from none to `most` rows each."""
    epochs, at = [], 0
    while at < len(rows):
        more = dice.randint(0, most)
        epochs.append(list(rows[at : at + more]))
        at += more
    return epochs
