"""A pond over a folder of files, as a program to be killed, stopped and started again: `run BASE` or `serve`.

BASE/in holds the input, BASE/pond the pond, BASE/out/<query> the sinks. `run` answers one pond; `serve` reads one
JSON line per pond from its input, so that successors share a Java machine. Each prints one JSON line per pond.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond.control.pond as control
from millpond.control.wiring import follow
from millpond.model.endpoints import Sink
from millpond.spark.session import spark_session

SCHEMA = "ts timestamp, customer string, tag string, kind string, amount double, n bigint"
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def queries(spark: SparkSession, source: Path) -> dict[str, DataFrame]:
    """Two groups: windows by customer that share measures, and windows by a long tag, whose deltas are files."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    events = reader.parquet(str(source)).withWatermark("ts", "10 seconds")
    spend = (
        events.groupBy(F.window("ts", "60 seconds", "20 seconds"), "customer")
        .agg(F.count("*").alias("events"), F.sum("amount").alias("total"), F.avg("amount").alias("mean"))
        .select(F.col("window.end").alias("at"), "customer", "events", "total", "mean")
    )
    web = (
        events.where("kind = 'web'")
        .groupBy("customer", F.window("ts", "30 seconds"))
        .agg(F.sum("n").alias("total"), F.max("amount").alias("most"))
        .where("total > 50")
        .select(F.col("window.start").alias("at"), "customer", "total", "most")
    )
    tags = (
        events.groupBy(F.window("ts", "20 seconds"), "tag")
        .agg(F.count("*").alias("events"), F.sum("n").alias("total"))
        .select(F.col("window.start").alias("at"), "tag", "events", "total")
    )
    return {"spend": spend, "web": web, "tags": tags}


SINKS = {"spend": "json", "web": "parquet", "tags": "parquet"}
SERVED = "spend"


def make_pond(spark: SparkSession, base: Path, **settings: Any) -> control.Pond:
    """The pond of BASE, with its queries; what is not needed is deleted at once, so that pruning is tested too."""
    control.follow = functools.partial(follow, grace_seconds=0.0)
    pond = control.Pond(spark, base / "pond", cache=base / "cache", instances=2, **settings)
    for name, frame in queries(spark, base / "in").items():
        pond.add(name, frame, sink=Sink(SINKS[name], str(base / "out" / name)), serve=name == SERVED)
    return pond


def answer(spark: SparkSession, base: Path, customers: list[str], **asked: Any) -> dict[str, Any]:
    """Run the pond to its end, and tell what it says then."""
    settle = asked.pop("settle", 60.0)
    pond = make_pond(spark, base, **asked)
    try:
        if settle != 60.0:
            pond.settle = functools.partial(pond.settle, settle)  # type: ignore[method-assign]
        pond.run(drain=True)
        manifest = pond.manifest()
        served = {name: pond.lookup(SERVED, name).document for name in customers}
        return {"ok": True, "n": manifest.n, "writer": manifest.writer, "served": served}
    except Exception as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}
    finally:
        pond.close()


def start(master: str, reuse: str = "true") -> SparkSession:
    """A small session that starts fast."""
    extra = {"spark.driver.extraJavaOptions": OPTIONS, "spark.python.worker.reuse": reuse}
    return spark_session(master, driver_memory="700m", extra=extra)


def say(what: dict[str, Any]) -> None:
    """One line for whoever started this program."""
    print(json.dumps(what), flush=True)


def main(mode: str, *rest: str) -> None:
    """Run as told by the command line: `run BASE [MASTER [REUSE]]` or `serve [MASTER]`."""
    if mode == "run":
        base, master, reuse = [*rest, "local[2]", "true"][:3] if len(rest) < 2 else [*rest, "true"][:3]
        spark = start(master, reuse)
        say({"started": base})
        say(answer(spark, Path(base), []))
        return
    spark = start(*rest)
    say({"started": ""})
    for line in sys.stdin:
        asked = json.loads(line)
        say(answer(spark, Path(asked.pop("base")), asked.pop("customers"), **asked))


if __name__ == "__main__":
    main(*sys.argv[1:])
