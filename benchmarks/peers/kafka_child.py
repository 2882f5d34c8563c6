"""Answers queries between two topics with a pond or with plain Spark; see `over_kafka.py` and `meter.py`.

Its argument is a file of JSON: `engine`, `servers`, `workload`, `queries`, `seconds`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any

import here  # noqa: F401
from epoch_steps import cpu_seconds
from feeder import COLUMNS, PARTITIONS
from over_kafka import REAL_TIME, WINDOWED, pond_queries
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from settings import CORES, HEAP, SPARK, SPARK_STATE

from millpond import Pond, spark_session
from millpond.runtime.inspect.timeline import EPOCH, KEPT
from millpond.service.terminal.text import trace_lines
from millpond.spark.session.jars import connector

_BATCH = "10 seconds"
"""How long a batch of Spark's real-time mode lasts; it writes its checkpoint at the end of one."""

_REAL_TIME = {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}

_APART = 16
"""After how many epochs CPU time is measured again. A measurement takes 10 ms of an epoch."""


def main(path: Path) -> None:
    """Run until the time is over."""
    request = json.loads(path.read_text())
    found = (_pond if request["engine"] == "millpond" else _spark)(request, path.parent)
    print("@" + json.dumps({"mark": "end", **found}), flush=True)


def _pond(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the steps of the newest epochs, how often one begins, and its milliseconds of CPU time by process."""
    known = folder / "connections.json"
    known.write_text(json.dumps({"local": {"servers": request["servers"]}}))
    os.environ["MILLPOND_CONNECTIONS"] = str(known)
    spark = spark_session(f"local[{CORES}]", driver_memory=HEAP)
    marks: deque[dict[str, float]] = deque(maxlen=KEPT // _APART + 1)
    epochs = count()

    def committed(_epoch: object) -> None:
        if next(epochs) % _APART == 0:
            marks.append(cpu_seconds())

    with Pond(spark, folder / "pond", on_epoch=committed) as pond:
        tables = [
            f"CREATE STREAMING TABLE answer{place} USING kafka TBLPROPERTIES ('topic' = 'answers', 'emit' = '{emit}')"
            f" AS {select};"
            for place, (select, emit) in enumerate(pond_queries(request["workload"], request["queries"]))
        ]
        pond.load(
            f"CREATE TABLE visits ({COLUMNS}) USING kafka"
            " OPTIONS (subscribe 'visits', format 'csv', startingOffsets 'earliest');\n" + "\n".join(tables)
        )
        pond.start()
        pond.await_ready()
        threading.Timer(request["seconds"], pond.stop).start()
        print('@{"mark": "begin"}', flush=True)
        pond.await_termination()
        trace = pond.trace()
    begins = [event.ts for event in trace.trace_events if event.name == EPOCH]
    every_ms = (begins[-1] - begins[0]) / max(1, len(begins) - 1) / 1000
    apart = _APART * max(1, len(marks) - 1)
    cpu = {name: (marks[-1][name] - marks[0].get(name, 0.0)) / apart * 1e3 for name in marks[-1]}
    return {"steps": list(trace_lines(trace)), "every_ms": every_ms, "cpu": cpu}


def _spark(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    real_time = request["engine"] == REAL_TIME
    # in real-time mode the tasks of all stages run at once, each in a slot of its own
    slots = (PARTITIONS + CORES) * request["queries"] if real_time else CORES
    builder = SparkSession.builder.master(f"local[{slots}]").config("spark.driver.memory", HEAP)
    settings = {**SPARK, **(SPARK_STATE["rocksdb"] | _REAL_TIME if real_time else SPARK_STATE["memory"])}
    for name, value in {**settings, "spark.jars": ",".join(map(str, connector()))}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    options = {"kafka.bootstrap.servers": request["servers"], "subscribe": "visits", "startingOffsets": "earliest"}
    lines = spark.readStream.format("kafka").options(**options).load()
    visits = lines.select(F.from_csv(F.col("value").cast("string"), COLUMNS).alias("v")).select("v.*")
    answers = _answers(visits.withWatermark("ts", "0 seconds"), request["workload"], request["queries"])
    print('@{"mark": "begin"}', flush=True)
    began, running = time.monotonic(), []
    for place, (rows, mode) in enumerate(answers):
        writer = rows.select(F.to_json(F.struct("*")).alias("value")).writeStream.format("kafka")
        writer = writer.outputMode("update").trigger(realTime=_BATCH) if real_time else writer.outputMode(mode)
        writer = writer.option("kafka.bootstrap.servers", request["servers"]).option("topic", "answers")
        running.append(writer.option("checkpointLocation", str(folder / f"checkpoint{place}")).start())
    for query in running:
        query.awaitTermination(max(1, round(request["seconds"] - (time.monotonic() - began))))
        query.stop()
    return {}


def _answers(visits: DataFrame, workload: str, queries: int) -> list[tuple[DataFrame, str]]:
    if queries == 1 and workload != "updates":
        return [_answer(visits, workload)]
    newest, window = F.max("made").alias("made"), F.window("ts", "10 seconds")
    mode = "update" if workload == "updates" else "append"
    return [
        (visits.where(condition).groupBy(window, key).agg(F.expr(value).alias("v"), newest), mode)
        for key, value, condition in WINDOWED[:queries]
    ]


def _answer(visits: DataFrame, workload: str) -> tuple[DataFrame, str]:
    if workload == "identity":
        return visits, "append"
    if workload == "repartition":
        return visits.repartition(CORES), "append"
    counts = [F.count("*").alias("n"), F.max("made").alias("made")]
    if workload == "wordcount":
        return visits.groupBy("ip").agg(*counts), "update"
    return visits.groupBy(F.window("ts", "10 seconds"), "ip").agg(*counts), "append"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
