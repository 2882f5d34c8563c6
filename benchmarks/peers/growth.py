"""How a pond grows: throughput and time of an epoch against keys, window length, state and skew, one at a time.

    python benchmarks/peers/growth.py [--curves keys,length,state,skew] [--small]

One query: count, sum and maximum of the amount per customer over a sliding window, rows to nowhere. Where a curve does
not vary them: 100,000 customers drawn evenly, a minute that slides by ten seconds, 500,000 events an epoch, an epoch of
75 seconds of event time.

* `keys`: 10³ to 10⁷ customers. Beyond the number of events in the sample (4 M) more customers only means that fewer
  come twice.
* `length`: windows of ten seconds to seven days, all sliding by ten seconds, over 200 customers. A first epoch spreads
  its events over the whole length, so that every later window has all of its slices; it is not counted.
* `state`: 10³ to 10⁶ customers and 60 slices each (a window of ten minutes), so that live cells are 60 per customer.
* `skew`: customers by Zipf's law with an exponent of 0 to 1.5.

An epoch's time is the median without the first two; `rows` are those it answers. A curve grows faster than it should
if its time per unit of work does: the work is events and rows, both known. `kept` are bytes of live state.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import here  # noqa: F401
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from compared import leave
from engines import INSTANCES
from picture import Panel, draw
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from results import FOLDER

import millpond
from millpond import Pond, spark_session
from millpond.model.endpoints import Sink
from millpond.spark.driver.epochs import Epoch

SLIDE = 10
BASE_S = 1_700_000_000
NAMES = "ts TIMESTAMP, customer STRING, amount DOUBLE"


class Size(NamedTuple):
    """Events of an epoch, epochs, the greatest power of ten of the customers, the longest windows (seconds)."""

    events: int
    epochs: int
    power: int
    lengths: tuple[int, ...]


DAY = 86_400
LARGE = Size(500_000, 8, 7, (10, 60, 600, 3600, 21_600, DAY, 7 * DAY))
SMALL = Size(5_000, 4, 4, (10, 60, 3600))


class Point(NamedTuple):
    """What is measured at one place of a curve: seconds of an epoch and its steps, events and rows of one."""

    x: float
    epoch_s: float
    gather_s: float
    fold_s: float
    commit_s: float
    events: float
    rows: float
    kept_mb: float


class Shape(NamedTuple):
    """Events: how many customers, how skewed, seconds of event time of an epoch, and of the first, which is coarse."""

    customers: int
    zipf: float = 0.0
    seconds: int = 75
    ramp: int = 0


def main(argv: Sequence[str] | None = None, results: Path = FOLDER) -> dict[str, float]:
    """Run the curves and print them; returns the figures of the last line."""
    parser = argparse.ArgumentParser(description="How a pond grows.")
    parser.add_argument("--curves", type=lambda text: text.split(","), default=list(CURVES))
    parser.add_argument("--small", action="store_true", help="5,000 events an epoch, to see that it works")
    options = parser.parse_args(argv)
    size = SMALL if options.small else LARGE
    spark = spark_session(f"local[{INSTANCES}]", driver_memory="4g")
    found: dict[str, list[Point]] = {}
    with tempfile.TemporaryDirectory(prefix="millpond-growth-") as scratch:
        work = Path(scratch)
        measure(spark, Shape(1_000), 60, size, work, 0)  # warms the JVM and the workers
        for curve in options.curves:
            found[curve] = []
            for x, shape, length in CURVES[curve](size):
                found[curve].append(measure(spark, shape, length, size, work, x))
                print(_line(curve, found[curve][-1]), flush=True)
    named = figures(found)
    if not options.small:
        draw(results / "growth.svg", "One query, one thing varied", panels(found))
    leave("growth", named, None if options.small else results)
    return named


Place = tuple[float, Shape, int]


def _keys(size: Size) -> Iterator[Place]:
    for power in range(3, size.power + 1):
        yield 10**power, Shape(10**power), 60


def _lengths(size: Size) -> Iterator[Place]:
    for length in size.lengths:
        yield length, Shape(200, ramp=length), length


def _states(size: Size) -> Iterator[Place]:
    for power in range(3, min(size.power, 6) + 1):
        yield 60 * 10**power, Shape(10**power, ramp=600), 600


def _skews(size: Size) -> Iterator[Place]:
    for skew in (0.0, 0.5, 1.0, 1.25, 1.5):
        yield skew, Shape(min(100_000, 10**size.power), zipf=skew), 60


CURVES: dict[str, Callable[[Size], Iterator[Place]]] = {
    "keys": _keys, "length": _lengths, "state": _states, "skew": _skews,
}  # fmt: skip


def customers(shape: Shape, count: int, dice: np.random.Generator) -> npt.NDArray[np.int64]:
    """Customers of `count` events: evenly drawn, or by Zipf's law over all of them."""
    if shape.zipf == 0:
        return dice.integers(0, shape.customers, count)
    weights = np.arange(1, shape.customers + 1, dtype=np.float64) ** -shape.zipf
    shares = np.cumsum(weights)
    places = np.searchsorted(shares, dice.random(count) * shares[-1])
    # the most frequent customers are not neighbours
    return places * 7_919 % shape.customers


def sample(shape: Shape, size: Size, folder: Path) -> None:
    """Files of events in order of time, one for each epoch, and one before them for the ramp if there is one."""
    folder.mkdir()
    dice = np.random.default_rng(1)
    for number in range(-1 if shape.ramp else 0, size.epochs):
        length, start = (shape.ramp, 0) if number < 0 else (shape.seconds, shape.ramp + number * shape.seconds)
        times = (BASE_S + start) * 1_000_000 + np.arange(size.events) * (length * 1_000_000 // size.events)
        names = pc.cast(pa.array(customers(shape, size.events, dice)), pa.string())
        columns = {"ts": pa.array(times, pa.timestamp("us", "UTC")), "customer": pc.utf8_lpad(names, 15, "0")}
        columns["amount"] = pa.array(np.round(dice.lognormal(3, 1, size.events), 2))
        rows = max(1, size.events // 8)
        pq.write_table(pa.table(columns), folder / f"part-{number + 1:04d}.parquet", row_group_size=rows)


def measure(spark: SparkSession, shape: Shape, length: int, size: Size, work: Path, x: float) -> Point:
    """One place of a curve."""
    source, folder = work / "events", work / "pond"
    for path in (source, folder):
        shutil.rmtree(path, ignore_errors=True)
    sample(shape, size, source)
    epochs: list[Epoch] = []
    with Pond(spark, folder, on_epoch=epochs.append) as pond:
        reader = spark.readStream.schema(NAMES).option("maxFilesPerTrigger", 1)
        stream = reader.parquet(str(source)).withWatermark("ts", "0 seconds")
        window = millpond.window("ts", f"{length} seconds", f"{min(SLIDE, length)} seconds")
        frame = stream.groupBy(window, "customer").agg(F.count("*").alias("n"), F.sum("amount"), F.max("amount"))
        pond.add("grown", frame, sink=Sink("noop"))
        pond.run()
        live = pond.manifest().sections.values()
        kept = sum(section.size for section in live if section.kind in ("segment", "keys"))
    return point(x, epochs[2:], kept)


def point(x: float, epochs: Sequence[Epoch], kept: int) -> Point:
    """Medians over epochs; seconds in Python are those of an instance."""

    def median(value: Callable[[Epoch], float]) -> float:
        return float(statistics.median(map(value, epochs)))

    def spent(step: str) -> float:
        return median(lambda epoch: epoch.record.counts["*"].get(f"{step}_us", 0) / 1e6 / INSTANCES)

    return Point(
        x, median(lambda epoch: epoch.seconds), spent("gather"), spent("fold"),
        median(lambda epoch: epoch.seconds - epoch.job_seconds),
        median(lambda epoch: epoch.record.counts["*"].get("events", 0)),
        median(lambda epoch: sum(found.get("rows", 0) for found in epoch.record.counts.values())), kept / 1e6,
    )  # fmt: skip


def _line(curve: str, at: Point) -> str:
    return (
        f"{curve:7} {at.x:>12,.10g}: {at.events / at.epoch_s / 1e3:8.1f} k events/s, epoch {at.epoch_s:7.3f} s (gather"
        f" {at.gather_s:.3f}, fold {at.fold_s:.3f}, commit {at.commit_s:.3f}), {at.rows:>11,.0f} rows,"
        f" {at.fold_s * INSTANCES / max(1.0, at.rows) * 1e9:8.0f} ns of fold a row, state {at.kept_mb:8.2f} MB"
    )


def panels(found: dict[str, list[Point]]) -> list[Panel]:
    """A chart for each curve: seconds of an epoch and of its steps."""
    steps = ("epoch_s", "gather_s", "fold_s", "commit_s")
    return [
        Panel(f"seconds of an epoch by {curve}", [at.x for at in points], {
            step.removesuffix("_s"): [getattr(at, step) for at in points] for step in steps
        }, log=True)
        for curve, points in found.items()
    ]  # fmt: skip


def figures(found: dict[str, list[Point]]) -> dict[str, float]:
    """Events/s, seconds of an epoch and bytes of state at each place."""
    named: dict[str, float] = {}
    for curve, points in found.items():
        for at in points:
            name = f"{curve}_{at.x:.10g}"
            named[f"{name}_events_s"] = round(at.events / at.epoch_s)
            named[f"{name}_epoch_s"] = round(at.epoch_s, 3)
            named[f"{name}_kept_mb"] = round(at.kept_mb, 3)
    return named


if __name__ == "__main__":
    main()
