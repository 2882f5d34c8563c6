"""A query that exceeds its budget is quarantined while the pond runs, and the others continue."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.errors import ChangeRefused
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream
from millpond.reconfigure.changes import Halt
from millpond.runtime.inspect.costs import summed

TEXT = """
    SELECT {key}, window(ts, '10 seconds') AS w, count(*) AS n FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS
    GROUP BY ALL
"""
FIELDS = (Field("ts", "timestamp"), Field("k", "bigint"), Field("c", "string"))


def test_a_query_over_its_budget_is_quarantined_at_a_record(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(4):
        times = pa.array([(1_700_000_000 + 10 * number) * 1_000_000 + i for i in range(60)], pa.timestamp("us", "UTC"))
        columns = {"ts": times, "k": pa.array(range(60)), "c": pa.array(["a", "b", "c"] * 20)}
        pq.write_table(pa.table(columns), source / f"{number}.parquet")
        os.utime(source / f"{number}.parquet", (1_700_000_000 + number,) * 2)  # the order in which they are read
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        pond.stream(Stream("tx", FIELDS, Source("parquet", (("maxFilesPerTrigger", "1"), ("path", str(source))))))
        pond.load(
            f"CREATE STREAMING TABLE greedy USING noop TBLPROPERTIES ('budget' = 'keys 50') AS {TEXT.format(key='k')};"
        )
        pond.add("modest", TEXT.format(key="c"), budget="keys 50, state 1 GB, time 100 s")
        pond.run(drain=True)
        [found] = pond.history()
        assert isinstance(found.change, Halt) and found.change.name == "greedy"
        assert "[MP-BUDGET] greedy has 60 keys, more than its 50" in found.change.why
        assert sum(pond.table("modest")["n"].to_pylist()) == 240
        assert pond.why("greedy").causes[0].code == "quarantined"
        costs = pond.costs()
        assert {*costs} == {"modest"} and costs["modest"].time_us > 0 and costs["modest"].shared_bytes == 0
        assert summed(costs.values()) == costs["modest"]
        with pytest.raises(ChangeRefused, match="greedy' is quarantined"):
            pond.pause("greedy")
        pond.drop("greedy")
        pond.add("greedy", TEXT.format(key="k"), budget="keys 500")
        assert [type(one.change).__name__ for one in pond.history()] == ["Add", "Drop", "Halt"]
