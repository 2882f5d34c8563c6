"""Reads what Spark reports about a streaming query and its jobs: their times, and the progress of tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import Any, TypeAlias

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millpond.runtime.inspect.timeline import DRIVER, SparkBatch
from millpond.spans import Span

MOST_BATCHES = 200
"""The most batches whose times are kept."""

MOST_TASKS = 256
"""The most tasks of a stage in a timeline."""

Alive: TypeAlias = Callable[[tuple[int, ...] | None], None]
"""Takes the work that the running epoch has done, as `work_done` returns it, or None between epochs."""


def offset_request_us(query: StreamingQuery | None) -> int:
    """How long Spark took to request the newest offsets from a query's sources for its last batch, in µs; 0 before
    that.

    PySpark's own `lastProgress` copies every field with one call to Java each; this function needs three calls.
    """
    java: Any = getattr(query, "_jsq", None)
    progress = None if java is None else java.lastProgress()
    return 0 if progress is None else (progress.durationMs().get("latestOffset") or 0) * 1000


def waits_for_offsets(query: StreamingQuery) -> bool:
    """Whether Spark requests the newest offsets from a query's sources now, and has no answer yet."""
    java: Any = getattr(query, "_jsq", None)
    return java is not None and str(java.status().message()).startswith("Getting offsets from")


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


class _Progress(msgspec.Struct, rename="camel"):
    batch_id: int
    timestamp: datetime
    duration_ms: dict[str, int]


class _Task(msgspec.Struct, rename="camel"):
    index: int
    launch_time: int
    duration: int | None = None


class SparkTimes:
    """What Spark reports of the newest batches and stages of a driver. What is known is not read again, because each
    value of Java costs a call. Thread-safe.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._lock = spark, threading.Lock()
        self._batches: dict[int, SparkBatch] = {}
        self._stages: dict[tuple[int, int], list[Span]] = {}

    def batches(self, query: StreamingQuery | None) -> dict[int, SparkBatch]:
        """The times of the latest batches that had input, by their numbers, also of earlier queries.

        Spark keeps a hundred batches of a query. If the JVM has ended, the last ones are missing.
        """
        java: Any = getattr(query, "_jsq", None)
        with self._lock, suppress(Py4JError, ConnectionError):
            recent = () if java is None else java.recentProgress()
            for place in range(len(recent) - 1, -1, -1):
                if recent[place].batchId() in self._batches:
                    break
                progress = msgspec.json.decode(recent[place].json(), type=_Progress)
                if "addBatch" in progress.duration_ms:
                    steps = {name: ms * 1000 for name, ms in progress.duration_ms.items()}
                    started_us = round(progress.timestamp.timestamp() * 1e6)
                    self._batches[progress.batch_id] = SparkBatch(started_us, steps)
            self._batches = dict(sorted(self._batches.items())[-MOST_BATCHES:])
            return dict(self._batches)
        return dict(self._batches)

    def stages(self, since_us: int) -> list[Span]:
        """The completed stages that were submitted since then, as spans of the driver, and their tasks.

        The tasks of a stage that has another stage before it in its job fold, the others gather; this is how their
        tracks are named. Spark keeps stages for a while.
        """
        store: Any = self._spark.sparkContext._jsc.sc().statusStore()
        none = self._jvm.java.util.ArrayList()
        stages = store.stageList(none, False, False, getattr(store, "stageList$default$4")(), none)
        spans_by_stage: dict[tuple[int, int], list[Span]] = {}
        with self._lock:
            for place in range(stages.size()):  # the newest is the first
                stage = stages.apply(place)
                key = stage.stageId(), stage.attemptId()
                known = self._stages.get(key)
                span = known[0] if known else _span_of(stage)
                if span is None:
                    continue
                if span.start_us < since_us:
                    break
                spans_by_stage[key] = known or [span, *self._tasks_of(stage, store)]
            self._stages = spans_by_stage
        return [span for spans in spans_by_stage.values() for span in spans]


    def _tasks_of(self, stage: Any, store: Any) -> Iterator[Span]:
        name, tasks = _name_of(stage), store.taskList(stage.stageId(), stage.attemptId(), MOST_TASKS)
        for task in msgspec.json.decode(self._mapper.writeValueAsString(tasks), type=list[_Task]):
            began_us = task.launch_time * 1000
            yield Span(f"{name} {task.index}", "task", began_us, began_us + (task.duration or 0) * 1000)

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm

    @cached_property
    def _mapper(self) -> Any:
        """Writes values of Java and Scala as JSON."""
        mapper = self._jvm.com.fasterxml.jackson.databind.ObjectMapper()
        mapper.registerModule(self._jvm.com.fasterxml.jackson.module.scala.DefaultScalaModule())
        return mapper


def _name_of(stage: Any) -> str:
    return "fold" if stage.shuffleReadBytes() else "gather"


def _span_of(stage: Any) -> Span | None:
    """A stage without its tasks; None if it is not completed."""
    submitted, completed = stage.submissionTime(), stage.completionTime()
    if submitted.isEmpty() or completed.isEmpty():
        return None
    start_us, end_us = submitted.get().getTime() * 1000, completed.get().getTime() * 1000
    return Span(DRIVER, f"stage {_name_of(stage)}", start_us, end_us)
