"""When Spark took the offsets of a batch, and how long it asked for them, is what people are told of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from millpond.clock import now_us
from millpond.spark.driver.checkpoint import read_taken
from millpond.spark.driver.progress import asking_us
from millpond.spark.session.session import reading_session

MILLISECOND = 1000


def test_offsets_are_taken_after_the_batch_before_and_before_their_own(spark: SparkSession, tmp_path: Path) -> None:
    for _ in range(3):
        spark.range(5).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    times = [now_us()]

    def batch(rows: DataFrame, number: int) -> None:
        times.extend((read_taken(tmp_path / "c", number).at_us, now_us()))
        rows.count()
        times.append(now_us())

    reader = reading_session(spark).readStream.schema("id long").format("parquet").name("numbers")
    rows = reader.option("maxFilesPerTrigger", 1).load(str(tmp_path / "in"))
    writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert len(times) == 10 and all(a < b + MILLISECOND for a, b in pairwise(times))
    told = query.lastProgress
    assert told is not None and asking_us(query) == told["durationMs"]["latestOffset"] * MILLISECOND
    assert asking_us(None) == 0
