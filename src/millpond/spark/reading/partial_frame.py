"""Removes the partitions of some sources from an epoch's DataFrame, as gather tasks read their files themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from millpond.spark.session.batch_rows import BatchRows

_SAME_PARTITIONS = ("SQLExecutionRDD", "MapPartitionsRDD")
"""Kinds of RDD of which partition i is computed from partition i of its parent."""


def without_sources(rows: BatchRows, sources: Sequence[str], left_out: Collection[str]) -> DataFrame | None:
    """The rows of an epoch that come from other sources than those `left_out`.

    `sources`: all sources with new input, in the order of the frame, which is their union. Spark's plan of an epoch
    does not contain sources without new input. Returns None if the plan has another form.
    """
    frame = rows.without(sources, left_out)
    if frame is not None:
        return frame
    frame, spark = rows.frame, rows.session
    assert spark._jvm is not None
    plan = frame._jdf.queryExecution().analyzed()
    if _kind(plan) != "LogicalRDD":
        return None
    rdd = union = plan.rdd()
    while _kind(union) in _SAME_PARTITIONS:
        union = union.dependencies().head().rdd()
    if _kind(union) != "UnionRDD" or union.rdds().size() != len(sources):
        return None
    ends = [0]
    for place in range(len(sources)):
        ends.append(ends[-1] + int(union.rdds().apply(place).getNumPartitions()))
    if ends[-1] != rdd.getNumPartitions():
        return None
    kept = [
        number for place, name in enumerate(sources) if name not in left_out
        for number in range(ends[place], ends[place + 1])
    ]  # fmt: skip
    chosen = spark._jvm.PythonUtils.toSeq(kept).toSet()
    pruned = spark._jvm.org.apache.spark.rdd.PartitionPruningRDD.create(rdd, chosen)
    return ClassicFrame(spark._jsparkSession.internalCreateDataFrame(pruned, frame._jdf.schema(), False), spark)


def _kind(of: Any) -> str:
    return str(of.getClass().getSimpleName())
