"""The canonical workload: bank transactions of 100,000 customers with text keys, and N sliding windows over them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "ts timestamp, customer string, merchant string, card string, country string, kind string, amount double"
PRUNED = ("ts", "customer", "amount")
WINDOWS = ((60, 10), (120, 10), (300, 30), (30, 30), (60, 30), (20, 10), (90, 10), (180, 60))
"""Size and slide in seconds of the first eight queries."""


class Size(NamedTuple):
    """How much: events in all, files (one per epoch), customers."""

    events: int
    files: int
    customers: int


LARGE = Size(4_000_000, 8, 100_000)
SMALL = Size(40_000, 4, 1_000)


def windows(count: int) -> list[tuple[int, int]]:
    """Sizes and slides of `count` queries, all different, their edges on multiples of ten seconds."""
    more = ((10 * size, 10 * slide) for size in range(1, 31) for slide in (1, 2, 3, 5, 6) if slide <= size)
    distinct = dict.fromkeys([*WINDOWS, *more])
    return list(distinct)[:count]


def transactions(size: Size) -> Path:
    """A folder of Parquet files, written once per machine: 600 s of event time, in order."""
    folder = Path(tempfile.gettempdir()) / f"millpond-payments-{size.events}-{size.files}-{size.customers}"
    if not (folder / "_DONE").exists():
        folder.mkdir(exist_ok=True)
        for number, table in enumerate(_tables(size)):
            # two row groups per core, so that Spark can read a file with all of them
            part = folder / f"part-{number:04d}.parquet"
            pq.write_table(table, part, row_group_size=max(1, len(table) // 8))
            os.utime(part, (1_700_000_000 + number,) * 2)  # Spark takes files in the order of their times
        (folder / "_DONE").touch()
    return folder


def _tables(size: Size) -> Iterator[pa.Table]:
    rng = np.random.default_rng(1)
    names = pa.array([f"customer-{i:06d}" for i in range(size.customers)])
    per = size.events // size.files
    for number in range(size.files):
        position = np.arange(per) + number * per
        times = 1_700_000_000_000_000 + position * 600_000_000 // size.events
        yield pa.table(
            {
                "ts": pa.array(times, pa.timestamp("us", "UTC")),
                "customer": names.take(pa.array(rng.integers(0, size.customers, per))),
                "merchant": pa.array(np.char.add("merchant-", (rng.zipf(1.2, per) % 5000).astype("U6"))),
                "card": pa.array(np.array(["visa", "mc", "amex"])[rng.integers(0, 3, per)]),
                "country": pa.array(np.array(["gr", "de", "fr", "es"])[rng.integers(0, 4, per)]),
                "kind": pa.array(np.array(["pos", "web", "atm", "transfer"])[rng.integers(0, 4, per)]),
                "amount": pa.array(np.round(rng.lognormal(3, 1, per), 2)),
            }
        )


def prefix(source: Path, files: int, target: Path) -> Path:
    """A folder with the first files only."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.parquet"))[:files]:
        (target / path.name).symlink_to(path)
    return target
