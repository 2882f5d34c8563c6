"""A pond on Spark with user functions: results, a failure, and a changed function."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from kit.judges.interpreted import interpreted_table
from millpond import Pond
from millpond.errors import ForeignPondError
from millpond.testing.compare import Tolerance, assert_same_rows

MODULE = """
import numpy as np
import pyarrow as pa

def middle(values):
    return float(np.median(values.to_numpy())){more}

def touchy(values):
    if values[0].as_py() < 0:
        raise ValueError("no debts, please")
    return 1

def dot(table):
    return np.bincount(table["key"].to_numpy(), table["value"].to_numpy() * table["value_2"].to_numpy())

class Total:
    def create(self, count):
        return pa.table({{"sum": np.zeros(count)}})

    def update(self, state, keys, batch):
        more = np.bincount(keys.to_numpy(), batch["value"].to_numpy(), state.num_rows)
        return self.merge(state, pa.table({{"sum": more}}))

    def merge(self, left, right):
        return pa.table({{"sum": left["sum"].to_numpy() + right["sum"].to_numpy()}})

    def finish(self, state):
        return state["sum"]
"""
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.string()), ("amount", pa.float64()), ("n", pa.int32())])
MARK = "FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS"
HOPS = "window(ts, '60 seconds', '20 seconds')"
SELECT = (
    "SELECT window.start, k, {middle} AS m, {heavy} AS h, {dot} AS d, {total} AS t, count(*) AS n {source} "
    f"GROUP BY k, {HOPS}"
)
OURS = SELECT.format(
    middle="middle(amount)", heavy="middle(amount) FILTER (WHERE n > 3)", dot="dot(amount, n)",
    total="total(amount)", source=MARK,
)  # fmt: skip
THEIRS = SELECT.format(
    middle="median(amount)", heavy="median(amount) FILTER (WHERE n > 3)", dot="sum(amount * n)",
    total="sum(amount)", source="FROM tx",
)  # fmt: skip
TOUCHY = f"SELECT window.start, k, touchy(amount) AS t {MARK} GROUP BY k, {HOPS}"


def write(folder: Path) -> None:
    dice = random.Random(4)
    for i in range(3):
        rows = [
            {
                "ts": datetime.fromtimestamp(i * 100 + dice.randrange(100), timezone.utc),
                "k": dice.choice("abcd"), "amount": dice.randrange(1, 400) / 8, "n": dice.randrange(7),
            }
            for _ in range(400)
        ]  # fmt: skip
        if i == 2:
            rows += [{"ts": rows[0]["ts"], "k": "broke", "amount": -1.0, "n": 1}]
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), folder / f"{i}.parquet")


def opened(spark: SparkSession, folder: Path, name: str) -> Pond:
    pond = Pond(spark, folder / "pond")
    columns = "(ts TIMESTAMP, k STRING, amount DOUBLE, n INT)"
    pond.load(f"CREATE TABLE tx {columns} USING parquet OPTIONS (path '{folder / 'in'}')")
    for function, kind, takes, returns in (
        ("middle", "holistic", ["double"], "double"), ("touchy", "holistic", ["double"], "int"),
        ("dot", "grouped", ["double", "double"], "double"),
    ):  # fmt: skip
        pond.function(function, f"{name}:{function}", kind=kind, takes=takes, returns=returns)
    pond.function("total", f"{name}:Total", kind="mergeable", takes=["double"], returns="double", deadline="20 seconds")
    pond.add("ours", OURS)
    pond.add("touchy", TOUCHY)
    return pond


@pytest.mark.timeout(300)
def test_a_pond_with_functions(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in")
    name = "rates_of_a_test"
    module = tmp_path / f"{name}.py"
    module.write_text(MODULE.format(more=""), encoding="utf-8")
    spark.sparkContext.addPyFile(str(module))  # into workers, and where the driver imports from
    with opened(spark, tmp_path, name) as pond:
        pond.run(drain=True)
        found, reason = pond.table("ours"), pond.manifest().quarantined
    assert list(reason) == ["touchy"]
    assert reason["touchy"] == (
        f"[MP-FUNCTION] The function touchy@1 raised ValueError: no debts, please at {name}.py:10, "
        'for the key ["broke"]. Mend it and register it under a new version.'
    )
    batch = spark.newSession()
    batch.read.parquet(str(tmp_path / "in")).createOrReplaceTempView("tx")
    expected = interpreted_table(batch.sql(THEIRS))
    rough = {"d": Tolerance(relative=1e-9), "t": Tolerance(relative=1e-9)}
    assert_same_rows(expected, found, tolerances=rough)
    assert len(expected) > 50
    Path(SparkFiles.get(module.name)).write_text(MODULE.format(more=" + 1"), encoding="utf-8")
    changed = r"other functions \(dot@1, middle@1"
    with opened(spark, tmp_path, name) as pond, pytest.raises(ForeignPondError, match=changed):
        pond.open()
