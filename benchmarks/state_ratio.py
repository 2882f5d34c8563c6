"""Bytes of state: ten windows by ten aggregates on one key, over those of the longest window alone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from engines import stream_of
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from millpond import Pond
from millpond.model.endpoints import Sink

WINDOWS = tuple((60 * (number + 1), 60) for number in range(10))


def _aggregates() -> list[Column]:
    amount = F.col("amount")
    made = [
        F.count("*"), F.count(amount), F.sum(amount), F.avg(amount), F.min(amount), F.max(amount),
        F.stddev(amount), F.stddev_pop(amount), F.variance(amount), F.var_pop(amount),
    ]  # fmt: skip
    return [column.alias(f"a{number}") for number, column in enumerate(made)]


def state_ratio(spark: SparkSession, source: Path, work: Path) -> float:
    """The ratio, from the live sections that the manifest names when all input has been taken."""
    shared = _kept(spark, source, work / "shared", WINDOWS)
    alone = _kept(spark, source, work / "alone", WINDOWS[-1:])
    print(f"state of 10 windows x 10 aggregates: {shared / 1e6:.1f} MB, of the longest alone: {alone / 1e6:.1f} MB")
    return shared / alone


def _kept(spark: SparkSession, source: Path, folder: Path, windows: Sequence[tuple[int, int]]) -> int:
    shutil.rmtree(folder, ignore_errors=True)
    with Pond(spark, folder) as pond:
        for number, (size, slide) in enumerate(windows):
            frame = stream_of(spark, source).groupBy(F.window("ts", f"{size} seconds", f"{slide} seconds"), "customer")
            pond.add(f"q{number}", frame.agg(*_aggregates()), sink=Sink("noop"))
        pond.run()
        live = pond.manifest().sections.values()
        return sum(section.size for section in live if section.kind in ("segment", "keys"))
