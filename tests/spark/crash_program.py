"""Ponds over folders of files, as a program to be killed, stopped and started again.

It reads a JSON object per pond, {"base": BASE}, so that ponds share a Java machine, and prints a JSON line per pond.
It joins the Java machine that the environment names (`kit.programs.shared_java`), or starts one, in which "workers"
requests a Spark context with other workers: {"master": MASTER, "reuse": "true" or "false", "faults": FAULTS}.
BASE/in holds the input, BASE/pond the pond, BASE/out/<query> the sinks, BASE/faults what was reached. A pond that is
elsewhere has its address in BASE/address.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kit.servers.servers import JAVA_FLAGS
from millpond import faults
from millpond.control.pond import lifetime
from millpond.control.pond.pond import Pond
from millpond.control.wiring.stores_and_followers import follow
from millpond.log.locations.address import Address, address_of
from millpond.model.endpoints import Sink
from millpond.runtime.scheduling import small_epochs
from millpond.spark.session.session import spark_session

SCHEMA = "ts timestamp, customer string, tag string, kind string, amount double, n bigint"
SHORT_LIVED = {
    "spark.driver.extraJavaOptions": " ".join(JAVA_FLAGS),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Of a Java machine that lives for seconds, compilers take most of the time: Java's own, and Spark's."""


def queries(spark: SparkSession, source: Path) -> dict[str, DataFrame]:
    """Windows by customer that share measures, windows by a long tag, whose deltas are files, and two steps in one."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    events = reader.parquet(str(source)).withWatermark("ts", "10 seconds")
    spend = (
        events.groupBy(F.window("ts", "120 seconds", "60 seconds"), "customer")
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
    peaks = (
        events.groupBy(F.window("ts", "30 seconds"), "customer")
        .agg(F.sum("n").alias("total"))
        .groupBy(F.window("window", "60 seconds"))
        .agg(F.max("total").alias("most"), F.count("*").alias("customers"))
        .select(F.col("window.start").alias("at"), "most", "customers")
    )
    return {"spend": spend, "web": web, "tags": tags, "peaks": peaks}


PRUNE_STEPS = [step for step in faults.FOLLOWER_STEPS if step.startswith("prune.")]
"""Steps of sweeps. How many sweeps have something to delete depends on how threads are scheduled; one always has."""

SINKS = {"spend": "json", "web": "parquet", "tags": "parquet", "peaks": "json"}
SERVED = "spend"
LATE = "web"
"""Its late events go to BASE/out/late."""
STEPS = "peaks"
"""It keeps state in two steps; none of the rows that its last step reads is late."""


def address_in(base: Path) -> Address:
    """The address of the pond of BASE."""
    elsewhere = base / "address"
    return address_of(elsewhere.read_text() if elsewhere.exists() else base / "pond")


def make_pond(spark: SparkSession, base: Path, **settings: Any) -> Pond:
    """The pond of BASE, opened; files that are not needed are deleted at once, so that pruning is tested too."""
    pond = Pond(spark, address_in(base), cache=base / "cache", instances=2, **settings)
    for name, frame in queries(spark, base / "in").items():
        late = Sink("parquet", str(base / "out" / "late")) if name == LATE else None
        pond.add(name, frame, sink=Sink(SINKS[name], str(base / "out" / name)), serve=name == SERVED, late=late)
    with mock.patch.object(lifetime, "follow", functools.partial(follow, grace_seconds=0.0)):
        pond.open()
    return pond


def answer(
    spark: SparkSession, base: str, fault: str = "", markers: str = "", drain: bool = True, repair: bool = False,
    two_stages: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Run the pond until its input is read; optionally `repair` it before, `drain` it afterwards; return the outcome.

    From the second epoch on, one task gathers and folds, unless every epoch has `two_stages` and so a shuffle.
    The `fault` is this process's own, for this pond, with the folder `markers`, which counts its steps.
    """
    faults._faults = faults.from_environment(planned(fault, markers) if markers else {})
    if address_in(Path(base)).path is None:  # workers read the keys of the bucket from their environment
        keys = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        spark.sparkContext.environment.update(keys)
    small_epochs.MEASURED = 2 * small_epochs.PEAK_EPOCHS if two_stages else 1
    small_epochs.MOST_WORK_US = small_epochs.MOST_PEAK_US = 10**9
    try:
        with make_pond(spark, Path(base)) as pond:
            if repair:
                pond.repair()
            pond.run(drain=drain)
            if markers:
                wait_for_pruning(Path(markers), fault)
            return {"ok": True, "error": ""}
    except Exception as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def planned(fault: str, markers: str) -> dict[str, str]:
    """The variables that plan a fault."""
    return {"MILLPOND_FAULT": fault, "MILLPOND_FAULT_DIR": markers}


def wait_for_pruning(reached: Path, fault: str) -> None:
    """Wait until a sweep reached the step of `fault`, or without one all its steps: it runs when its thread is due."""
    steps = [step for step in PRUNE_STEPS if not fault or fault.startswith(f"{step}:")]
    while not all((reached / step).exists() for step in steps):
        time.sleep(0.05)


def say(what: dict[str, Any]) -> None:
    """One line for whoever started this program."""
    print(json.dumps(what), flush=True)


def session(master: str = "local[2]", reuse: str = "true", faults: str = "", markers: str = "") -> SparkSession:
    """A session in the Java machine of this process, whose workers have these faults."""
    environment = {f"spark.executorEnv.{name}": value for name, value in planned(faults, markers).items() if markers}
    extra = SHORT_LIVED | {"spark.python.worker.reuse": reuse} | environment
    return spark_session(master, driver_memory="700m", extra=extra, mllib=False)


def main() -> None:
    """Answer the ponds that are named on the input."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from joined_session import joined_session  # in here, as tests import this file from another folder

        spark = joined_session()
    else:
        spark = session()
    now: dict[str, str] = {}
    for order in map(json.loads, sys.stdin):
        if (workers := order.pop("workers", {})) != now:
            spark.stop()
            spark, now = session(**workers), workers
        say(answer(spark, **order))


if __name__ == "__main__":
    main()
