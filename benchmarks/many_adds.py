"""A thousand queries added one by one to a pond that has begun: milliseconds and bytes of each; `--small` adds fifty.

Each query differs from the others in a constant of WHERE, half of them in their window too. The last line is one JSON
object, kept in `results/`. `plan_*`: what is not Spark's: checked, priced, recorded (durably) and planned, in a pond
without Spark. `add_*`: `pond.add` of one that has, with analysis. `_first_ms`, `_last_ms`: medians of the
first and the last tenth; `_last_cpu_ms`: of this process, waiting left out. `log_bytes`: of the log, per query.
`epoch_s_one`, `epoch_s_all`: seconds of an epoch of the same few events before and after.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from results import FOLDER, keep

from kit.simulator.changing_pond import ChangingPond
from millpond import Pond, spark_session
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink, Source
from millpond.model.expressions import Column, call, literal
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.windows import Sliding
from millpond.reconfigure import validate
from millpond.reconfigure.change_price import price_of
from millpond.spark.driver.epochs import Epoch

FIELDS = (Field("ts", "timestamp"), Field("k", "bigint"), Field("v", "bigint"))
EVENTS = 20_000
MANY, FEW = 1000, 50
NOOP = Sink("noop")


def main(count: int = MANY, results: Path = FOLDER) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch:
        work = Path(scratch)
        figures = _local(work / "local", count) | _spark(work, count, spark_session("local[2]", driver_memory="2g"))
    keep("many_adds", {name: round(value, 3) for name, value in figures.items()}, results)
    return figures


def _events(number: int) -> pa.Table:
    dice = np.random.default_rng(number)
    times = np.sort(dice.integers(0, 10_000_000, EVENTS)) + (1_700_000_000 + 10 * number) * 1_000_000
    columns = {"ts": pa.array(times, pa.timestamp("us", "UTC")), "k": dice.integers(0, 500, EVENTS)}
    return pa.table(columns | {"v": dice.integers(0, 1000, EVENTS)})


def _size_s(number: int) -> int:
    return 60 + 10 * (number % 12 if number % 2 else 0)


def _local(folder: Path, count: int) -> dict[str, float]:
    stream = Stream("s", FIELDS)
    pond = ChangingPond(folder, [stream], [_query(0)], 2)
    pond.epoch({"s": [_events(0)]})

    def add(number: int) -> None:
        between = validate.KnownPond(pond.spec, pond.manifest)
        price_of(between, validate.add(between, _query(number)), pond.setting)
        pond.change(validate.add(between, _query(number)))

    return {f"plan_{name}": value for name, value in _timed(add, count).items()}


def _query(number: int) -> Query:
    where = call("gt", (Column("v", "bigint"), literal(number, "bigint")), "boolean")
    window = Sliding(_size_s(number) * 1_000_000, 10_000_000)
    return Query(
        f"q{number:04}", "s", "ts", 0, window, (Column("k", "bigint"),),
        (Aggregate("count", None, None, "bigint"), Aggregate("sum", Column("v", "bigint"), None, "bigint")),
        (Named("n", Column("agg:0", "bigint")), Named("t", Column("agg:1", "bigint"))), where, None, NOOP,
    )  # fmt: skip


def _spark(work: Path, count: int, spark: SparkSession) -> dict[str, float]:
    source, seconds = work / "source", list[float]()
    source.mkdir()

    def committed(epoch: Epoch) -> None:
        seconds.append(epoch.seconds)

    with Pond(spark, work / "pond", instances=2, on_epoch=committed) as pond:
        pond.stream(Stream("s", FIELDS, Source("parquet", (("path", str(source)), ("maxFilesPerTrigger", "1")))))
        pond.add("q0000", _text(0), sink=NOOP)
        _run(pond, source, 0)
        one, before = min(seconds[-2:]), _log_bytes(work)
        found = _timed(lambda number: pond.add(f"q{number:04}", _text(number), sink=NOOP), count)
        after = _log_bytes(work)
        _run(pond, source, 3)
        return {f"add_{name}": value for name, value in found.items()} | {
            "log_bytes": (after - before) / (count - 1), "epoch_s_one": one, "epoch_s_all": min(seconds[-2:]),
        }  # fmt: skip


def _run(pond: Pond, source: Path, first: int) -> None:
    for number in range(first, first + 3):
        pq.write_table(_events(number), source / f"{number}.parquet")
    pond.run()


def _text(number: int) -> str:
    return f"""
        SELECT k, window(ts, '{_size_s(number)} seconds', '10 seconds') AS w, count(*) AS n, sum(v) AS t
        FROM STREAM s WATERMARK ts DELAY OF INTERVAL 0 SECONDS WHERE v > {number} GROUP BY ALL
    """


def _timed(add: Callable[[int], object], count: int) -> dict[str, float]:
    took, cpu = [], []
    for number in range(1, count):
        began, busy = perf_counter(), process_time()
        add(number)
        took.append((perf_counter() - began) * 1e3)
        cpu.append((process_time() - busy) * 1e3)
    tenth = max(1, len(took) // 10)
    found = {
        "first_ms": median(took[:tenth]), "last_ms": median(took[-tenth:]), "last_cpu_ms": median(cpu[-tenth:]),
        "mean_ms": sum(took) / len(took),
    }  # fmt: skip
    print({name: round(value, 2) for name, value in found.items()}, flush=True)
    return found


def _log_bytes(work: Path) -> int:
    return sum(file.stat().st_size for file in (work / "pond" / "log").rglob("*") if file.is_file())


if __name__ == "__main__":
    if "--small" in sys.argv[1:]:
        with tempfile.TemporaryDirectory(prefix="millpond-bench-") as nowhere:
            main(FEW, Path(nowhere))
    else:
        main()
