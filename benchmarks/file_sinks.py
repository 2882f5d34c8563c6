"""Rows of a record into one file: by Arrow, as folder sinks write them, and through the JVM's rows, as Spark's do.

    python benchmarks/file_sinks.py [--rows 1000 100000 1000000]

Both write the same table to the same disk, in turn, in one run; the fastest of some rounds counts. Spark is handed the
rows as Arrow, has its session warmed up, and writes one file, as a sink that keeps an epoch together must.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from results import keep

from millpond.followers.sinks.file_formats import format_of
from millpond.model.endpoints import Sink
from millpond.spark.session.session import spark_session


def table(rows: int) -> pa.Table:
    """Rows as a windowed query makes them: a window, a key, a count and a sum."""
    dice = np.random.default_rng(1)
    starts = pa.array(1_767_225_600_000_000 + np.arange(rows) // 100 * 60_000_000, pa.timestamp("us", "UTC"))
    ends = pa.array(starts.cast(pa.int64()).to_numpy() + 60_000_000, pa.timestamp("us", "UTC"))
    keys = pa.array([f"customer-{number:06d}" for number in dice.integers(0, 100_000, rows)])
    window = pa.StructArray.from_arrays([starts, ends], ["start", "end"])
    return pa.table({"w": window, "customer": keys, "n": dice.integers(1, 99, rows), "total": dice.random(rows)})


def by_arrow(rows: pa.Table, form: str, path: Path) -> None:
    """What a folder sink does."""
    with path.open("wb") as file:
        format_of(Sink(form, str(path))).write(rows, file)


def by_jvm(session: Any, rows: pa.Table, form: str, path: Path) -> None:
    """What Spark's own writer does with the same rows."""
    session.createDataFrame(rows).coalesce(1).write.format(form).save(str(path))


def fastest(write: Callable[[Path], None], folder: Path, name: str, rounds: int) -> float:
    """Seconds of the fastest of some rounds."""
    took = []
    for number in range(rounds):
        began = time.perf_counter()
        write(folder / f"{name}-{number}")
        took.append(time.perf_counter() - began)
    return min(took)


def main() -> None:
    """Measure, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    session = spark_session("local[2]", app_name="file-sinks", driver_memory="2g")
    session.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        for form in ("parquet", "json"):
            by_jvm(session, table(10), form, Path(place) / f"warm-{form}")
            for count in options.rows:
                rows, name = table(count), f"{form}-{count}"
                arrow = fastest(lambda path: by_arrow(rows, form, path), Path(place), f"a-{name}", options.rounds)  # noqa: B023
                jvm = fastest(lambda path: by_jvm(session, rows, form, path), Path(place), f"j-{name}", options.rounds)  # noqa: B023
                figures |= {f"{name}_arrow_ms": round(arrow * 1e3, 2), f"{name}_jvm_ms": round(jvm * 1e3, 2)}
                figures[f"{name}_ratio"] = round(jvm / arrow, 2)
                took = f"Arrow {arrow * 1e3:9.1f} ms, JVM {jvm * 1e3:9.1f} ms, x{jvm / arrow:.1f}"
                print(f"{form:8} {count:>9,} rows: {took}")
    session.stop()
    keep("file_sinks", figures)


if __name__ == "__main__":
    main()
