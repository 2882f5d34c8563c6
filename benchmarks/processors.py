"""A processor with state per key beside `transformWithStateInPandas` of plain Spark, in one run.

No flags. 400,000 transactions of 20,000 customers in eight epochs: number and total of the payments of each customer, a
row at every tenth payment. Plain Spark keeps the same two values in one value state, in RocksDB, and handles the rows
of a key with NumPy. The rows of both are compared first. The ratio is of throughput over whole passes, the better of
two each; the last line is one JSON object.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
from engines import INSTANCES, STATE, stream_of
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from results import beside_plain
from workload import SCHEMA, Size, transactions

from millpond import Pond, spark_session
from millpond.model.endpoints import Sink

EVENTS = Size(400_000, 8, 20_000)
TEXT = (
    "SELECT customer, inline(every_tenth(amount)) FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS "
    "GROUP BY customer"
)
Rows = set[tuple[str, int]]


class Tenths(StatefulProcessor):
    """The same in plain Spark."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("payments", "n bigint, total double")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n, total = self._state.get() if self._state.exists() else (0, 0.0)
        for part in rows:
            numbers, totals = n + 1 + np.arange(len(part)), total + part["amount"].to_numpy().cumsum()
            at = np.flatnonzero(numbers % 10 == 0)
            if len(at):
                yield pd.DataFrame({"customer": key[0], "n": numbers[at], "total": totals[at]})
            n, total = int(numbers[-1]), float(totals[-1])
        self._state.update((n, total))

    def close(self) -> None:
        pass


def pond(spark: SparkSession, source: Path, folder: Path) -> tuple[float, Rows]:
    """Seconds of a pond, and its rows."""
    shutil.rmtree(folder, ignore_errors=True)
    with Pond(spark, folder) as running:
        running.load(f"CREATE TABLE tx ({SCHEMA}) USING parquet OPTIONS (path '{source}', maxFilesPerTrigger 1)")
        running.function(
            "every_tenth", "every_tenth:EveryTenth", kind="stateful", takes={"amount": "double"},
            returns={"n": "bigint", "total": "double"}, state={"n": "bigint", "total": "double"}, deadline="60 seconds",
        )  # fmt: skip
        running.add("q", TEXT, sink=Sink("memory"))
        running.open()
        began = perf_counter()
        running.run(once=True, drain=True)
        seconds = perf_counter() - began
        return seconds, {(row["customer"], row["n"]) for row in running.table("q").to_pylist()}


def plain(spark: SparkSession, source: Path, folder: Path) -> tuple[float, Rows]:
    """Seconds of one streaming query of plain Spark, and its rows."""
    shutil.rmtree(folder, ignore_errors=True)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE["rocksdb"])
    keyed = stream_of(spark, source).select("customer", "amount").groupBy("customer")
    rows = keyed.transformWithStateInPandas(Tenths(), "customer string, n bigint, total double", "Append", "None")
    began = perf_counter()
    written = rows.writeStream.format("memory").queryName("tenths").outputMode("append")
    written.option("checkpointLocation", str(folder)).trigger(availableNow=True).start().awaitTermination()
    seconds = perf_counter() - began
    return seconds, {(row.customer, row.n) for row in spark.table("tenths").collect()}


def main(size: Size = EVENTS) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    spark = spark_session(f"local[{INSTANCES}]", driver_memory="2g")
    spark.sparkContext.addPyFile(str(Path(__file__).with_name("every_tenth.py")))
    source = transactions(size)
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch:
        ours = [pond(spark, source, Path(scratch) / "pond") for _ in range(2)]
        theirs = [plain(spark, source, Path(scratch) / "plain") for _ in range(2)]
    assert all(rows == ours[0][1] for _, rows in (*ours, *theirs))
    print(f"{len(ours[0][1])} rows equal those of plain Spark", flush=True)
    mine, other = (min(seconds for seconds, _ in passes) for passes in (ours, theirs))
    return beside_plain(size.events, mine, other)


if __name__ == "__main__":
    main()
