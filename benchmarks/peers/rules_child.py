"""Answers many rules, or many windows, in one pond under measurement; see `rules.py` and `meter.py`."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

import here  # noqa: F401
import numpy as np
from engines import stream_of
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from rules import rules
from settings import CORES, HEAP

from millpond import Pond, spark_session
from millpond.model.endpoints import Sink
from millpond.spark.driver.epochs import Epoch

NOOP = Sink("noop")


def main(path: Path) -> None:
    """Run one cell."""
    request = json.loads(path.read_text())
    spark = spark_session(f"local[{CORES}]", driver_memory=HEAP)
    marks: list[float] = []
    events: list[int] = []
    rows: list[int] = []
    added = threading.Event()

    def committed(epoch: Epoch) -> None:
        counts = epoch.record.counts
        marks.append(perf_counter())
        events.append(counts["*"].get("events", 0))
        rows.append(sum(found.get("rows", 0) for found in counts.values()))
        if request.get("files") and sum(1 for count in events if count) == 2:
            added.set()

    began = perf_counter()
    with Pond(spark, path.parent / "pond", on_epoch=committed) as pond:
        stream = stream_of(spark, Path(request["source"]))
        for name, frame in _queries_of(stream, request).items():
            pond.add(name, frame, sink=NOOP, emit=request.get("emit", "final"))
        pond.open()
        plan_s = perf_counter() - began
        print('@{"mark": "begin"}', flush=True)
        began = perf_counter()
        figures: dict[str, Any] = {"plan_s": plan_s}
        adding = threading.Thread(target=_add_one, args=(pond, stream, added, figures)) if "rules" in request else None
        if adding is not None:
            adding.start()
        pond.run()
        if adding is not None:
            added.set()  # in a run of few epochs it is added behind them
            adding.join()
        took = np.diff([began, *marks]).tolist()
        figures |= {"events_s": sum(events) / (marks[-1] - began), "rows": sum(rows), "epochs": took}
        print("@" + json.dumps({"mark": "end", **figures}), flush=True)


def _queries_of(stream: DataFrame, request: dict[str, Any]) -> dict[str, DataFrame]:
    if "windows" in request:
        least = min(request["windows"])
        return {
            f"last{size}": stream.groupBy(F.window("ts", f"{size} seconds", f"{least} seconds"), "customer").count()
            for size in request["windows"]
        }
    return {f"rule{number}": _rule(stream, condition) for number, condition in enumerate(rules(request["rules"]))}


def _rule(stream: DataFrame, condition: str) -> DataFrame:
    return stream.where(condition).groupBy(F.window("ts", "60 seconds"), "customer").agg(
        F.count("*").alias("n"), F.sum("amount").alias("s")
    )  # fmt: skip


def _add_one(pond: Pond, stream: DataFrame, now: threading.Event, figures: dict[str, Any]) -> None:
    """Add one rule while the pond runs, in its third epoch; `add` returns when the change is in the log."""
    now.wait()
    began = perf_counter()
    pond.add("one_more", _rule(stream, "amount > 777"), sink=NOOP)
    figures["add_s"] = perf_counter() - began


if __name__ == "__main__":
    main(Path(sys.argv[1]))
