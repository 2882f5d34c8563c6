"""Timelines: spans nest, and the steps of the driver cover the whole time of each epoch."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kit.judges.timelines import check_covered, check_nested, spans_of
from millpond.runtime.inspect.timeline import (
    DRIVER,
    EPOCH,
    WAITING,
    EpochTimeline,
    SparkBatch,
    Timelines,
    TimelineStep,
    pieces,
    trace_of,
    with_spark,
)
from millpond.spans import MOST_SPANS, Span, Spans


def epoch(n: int, start: int, end: int, *spans: Span) -> EpochTimeline:
    return EpochTimeline(n, n + 10, 100, start, end, spans)


def test_the_steps_of_an_epoch_and_of_spark_follow_each_other() -> None:
    job = Span(DRIVER, "job", 130, 170)
    stages = [Span(DRIVER, "stage gather", 120, 140), Span("gather 0", "task", 135, 139), Span(DRIVER, "old", 0, 9)]
    batch = SparkBatch(100, {"triggerExecution": 100, "latestOffset": 5, "queryPlanning": 7, "commitOffsets": 8})
    found = with_spark(epoch(1, 120, 180, job, Span("fold 0", "fold", 150, 160)), batch, stages)
    assert (found.start_us, found.end_us) == (100, 200)
    assert {(one.name, one.start_us, one.end_us) for one in found.spans if one.track == DRIVER} == {
        ("request offsets", 100, 105), ("plan batch", 105, 112), ("job", 130, 170), ("stage gather", 130, 140),
        ("callback", 120, 192), ("write commit", 192, 200),
    }  # fmt: skip
    trace = trace_of([found, epoch(2, 230, 250)], [(2, Span("sink q", "apply", 240, 260)), (9, Span("x", "y", 0, 1))])
    check_nested(spans_of(trace))
    check_covered(trace)
    assert [one.name for one in spans_of(trace)][:2] == [EPOCH, "request offsets"]
    assert [(one.ts, one.dur) for one in spans_of(trace) if one.name == WAITING] == [(200, 30)]
    assert [one.args for one in spans_of(trace, "sink q")] == [{"record": 2}]
    steps = pieces(trace)
    assert TimelineStep("fold", "fold", 10, 1) in steps and TimelineStep(DRIVER, "stage gather", 10, 1) in steps
    assert TimelineStep(DRIVER, "job", 30, 1) in steps and TimelineStep(DRIVER, "callback", 32, 1) in steps
    raw = msgspec.json.decode(msgspec.json.encode(trace))
    assert set(raw) == {"traceEvents", "displayTimeUnit"} and raw["traceEvents"][-1].keys() >= {"ts", "dur", "tid"}


TIMES = st.lists(st.integers(0, 300), min_size=8, max_size=8)


@given(TIMES, st.lists(st.integers(0, 120), min_size=6, max_size=6))
def test_whatever_spark_reports_spans_nest_and_cover_their_epoch(times: list[int], steps: list[int]) -> None:
    names = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")
    spark = SparkBatch(times[0], dict(zip(names, steps, strict=True)) | {"triggerExecution": sum(steps)})
    start, first, second, end = sorted(times[1:5])
    job, stage = Span(DRIVER, "job", first, second), Span(DRIVER, "stage gather", *sorted(times[5:7]))
    stages = [stage, Span(DRIVER, "stage fold", *sorted(times[6:8]))]
    epochs = [with_spark(epoch(1, start, end, job), spark, stages), epoch(2, end + times[7], end + times[7] + 50)]
    trace = trace_of(epochs)
    check_nested(spans_of(trace))
    check_covered(trace)


def test_memory_is_bounded() -> None:
    ticks = iter(range(10**6))
    spans, timelines = Spans("gather 0", lambda: next(ticks)), Timelines(3)
    with spans.during("outer"):
        assert list(spans.timed("wait", range(3))) == [0, 1, 2]
    assert [(one.name, one.start_us, one.end_us) for one in spans.take()][-1] == ("outer", 0, 9)
    for _ in range(2 * MOST_SPANS):
        spans.add("more", 0)
    assert len(spans.take()) == MOST_SPANS - 5 and not spans.take()
    for n in range(5):
        timelines.add(epoch(n, n, n + 1))
    assert [one.n for one in timelines.newest(9)] == [2, 3, 4]
    assert [one.n for one in timelines.newest(2)] == [3, 4] and not timelines.newest(0)
