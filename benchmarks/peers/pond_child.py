"""Runs a pond under measurement: N queries over a folder of transactions, or any statements; see `meter.py`.

Its argument is a file of JSON: `passes`, each with `seconds` after which it is stopped, and either `source` (a folder),
`windows` and `out` (a folder for the rows, or null), or `text` (statements that declare streams) and `queries` (by
name: statement and options). All passes but the last are warm-up.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import here  # noqa: F401
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from engines import aggregation, stream_of
from pyspark.sql import SparkSession
from settings import CORES, EPOCH_FILES, HEAP

from millpond import Pond, spark_session
from millpond.model.endpoints import Sink
from millpond.spark.driver.epochs import Epoch


def main(path: Path) -> None:
    """Run all passes, and mark the last one."""
    spec = json.loads(path.read_text())
    spark = spark_session(f"local[{CORES}]", driver_memory=HEAP)
    for number, one in enumerate(spec["passes"]):
        folder = path.parent / f"pond{number}"
        run(spark, folder, one, number == len(spec["passes"]) - 1)
        shutil.rmtree(folder)


def run(spark: SparkSession, folder: Path, one: dict[str, Any], marked: bool) -> None:
    """One pass; it begins when the queries are known, and ends when the windows are closed and committed."""
    taken = rows = 0
    began = time.perf_counter()

    def committed(epoch: Epoch) -> None:
        nonlocal taken, rows
        counts = epoch.record.counts
        taken += counts["*"].get("events", 0)
        rows += sum(found.get("rows", 0) for found in counts.values())
        if time.perf_counter() - began > one["seconds"]:
            pond.stop()

    with Pond(spark, folder, on_epoch=committed) as pond:
        _ask(pond, one)
        pond.open()
        if marked:
            print('@{"mark": "begin"}', flush=True)
        began = time.perf_counter()
        pond.run()
        whole = time.perf_counter() - began <= one["seconds"]
        live = pond.manifest().sections.values()
        kept = sum(section.size for section in live if section.kind in ("segment", "keys"))
        if whole:
            pond.drain()
        end = {"events": taken, "rows": rows, "whole": whole, "state_bytes": kept}
        if marked:
            print("@" + json.dumps({"mark": "end", **end}), flush=True)
        for number in range(len(one["windows"]) if one.get("out") else 0):
            _write(pond.table(f"q{number}"), Path(one["out"]) / str(number))


def _ask(pond: Pond, one: dict[str, Any]) -> None:
    if "text" in one:
        pond.load(one["text"])
        for name, (statement, options) in one["queries"].items():
            pond.add(name, statement, sink=Sink("noop"), **options)
        return
    for number, (size, slide) in enumerate(one["windows"]):
        frame = aggregation(stream_of(pond.spark, Path(one["source"]), EPOCH_FILES), size, slide)
        pond.add(f"q{number}", frame, sink=Sink("memory" if one["out"] else "noop"))


def _write(rows: pa.Table, folder: Path) -> None:
    folder.mkdir(parents=True)
    end = pc.struct_field(rows.column("window"), "end").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    columns = {"customer": rows.column("customer"), "end": pc.divide(end, 1_000_000)}
    columns |= {name: rows.column(name) for name in ("n", "s", "m")}
    pq.write_table(pa.table(columns), folder / "rows.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
