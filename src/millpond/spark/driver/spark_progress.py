"""Reads what Spark reports about a streaming query: its timings, and the progress of its tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

Alive: TypeAlias = Callable[[tuple[int, ...] | None], None]
"""Takes what the running epoch has done so far, as `work_done` returns it, or None between epochs."""


def asking_us(query: StreamingQuery | None) -> int:
    """How long Spark took to request the newest offsets from a query's sources for its last batch, in µs; 0 before
    that.

    PySpark's own `lastProgress` copies every field with one call to Java each; this function needs three calls.
    """
    java: Any = getattr(query, "_jsq", None)
    progress = None if java is None else java.lastProgress()
    return 0 if progress is None else (progress.durationMs().get("latestOffset") or 0) * 1000


def work_done(spark: SparkSession) -> tuple[int, ...]:
    """Numbers that change when a task of a running stage ends, or reports that it has read or written more records.

    Tasks report their records with the heartbeats of their executors, every ten seconds.
    """
    stages: Any = spark.sparkContext._jsc.sc().statusStore().activeStages()
    done = [stages.size()]
    for place in range(stages.size()):
        stage = stages.apply(place)
        done += [stage.stageId(), stage.numCompleteTasks(), stage.inputRecords(), stage.outputRecords()]
        done += [stage.shuffleReadRecords(), stage.shuffleWriteRecords()]
    return tuple(done)
