"""Partitions of a frame prefer hosts; real hosts are in `test_hosts.py`."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from millpond.spark.driver_classes.loading import load_class
from millpond.spark.session.arrow_rows import ArrowRows
from millpond.spark.session.task_hosts import COALESCER, TaskHosts

pytestmark = pytest.mark.spark


def test_each_partition_prefers_its_host_and_has_the_same_rows(spark: SparkSession) -> None:
    assert load_class(spark, COALESCER)
    moved = ArrowRows.of(spark.range(0, 60, 1, 4).selectExpr("cast(id % 3 AS int) AS instance", "id")).shuffled(3)
    placed = moved.on(["a", "", "b"]).frame()
    assert placed.columns == ["instance", "id"]
    rdd, context = placed._jdf.queryExecution().toRdd(), spark.sparkContext._jsc.sc()
    preferred = [str(context.getPreferredLocs(rdd, number).mkString(",")) for number in range(3)]
    assert preferred == ["a", "", "b"]
    rows = placed.selectExpr("spark_partition_id() AS at", "id", "instance").collect()
    assert sorted(row["id"] for row in rows) == list(range(60))
    assert all(row["at"] == row["instance"] for row in rows)


def test_on_one_host_nothing_is_preferred(spark: SparkSession) -> None:
    rows = ArrowRows.numbers(spark, 3, 1)
    assert rows.on(()) is rows
    hosts = TaskHosts(spark)
    assert hosts.choose((0, 1), 2, ()) == () and hosts.chosen([0, 1]) == ()
