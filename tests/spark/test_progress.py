"""Progress reports when Spark took the offsets of a batch, and how long it requested them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from kit.servers.servers import until
from millpond.clock import now_us
from millpond.spark.driver.checkpoint import read_taken
from millpond.spark.driver.spark_progress import offset_request_us, work_done
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
    progress = query.lastProgress
    assert progress is not None and offset_request_us(query) == progress["durationMs"]["latestOffset"] * MILLISECOND
    assert offset_request_us(None) == 0


def test_the_tasks_of_a_running_job_are_visible_progress(spark: SparkSession) -> None:
    until(lambda: work_done(spark) == (0,), "Spark has noted the end of earlier jobs, and nothing runs")
    slow = spark.range(0, 400, 1, 8)
    with ThreadPoolExecutor(1) as pool:
        counting, seen = pool.submit(lambda: slow.foreach(lambda _row: time.sleep(0.02))), set()
        while not counting.done():
            seen.add(work_done(spark))
            time.sleep(0.01)
        counting.result()
    completed = {work[2] for work in seen if work[0]}
    assert len(completed) >= 3, seen
    assert all(seen), "an epoch that runs is never mistaken for none"
