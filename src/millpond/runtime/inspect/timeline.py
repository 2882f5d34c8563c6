"""Timelines of epochs: the spans of driver, Spark, tasks and followers, as a trace for Perfetto or Chrome.

A trace has the Trace Event Format of Chrome
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMCN1p-5ZCeFGOHYXgk). Times are µs since 1970 UTC.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from millpond.spans import Span

KEPT = 64
"""How many epochs a driver keeps; about 10 kB each."""

DRIVER, WAITING = "driver", "wait for the epoch"
_TASK = re.compile(r"^(gather|fold) \d+$")
EPOCH = "epoch"


class EpochTimeline(NamedTuple):
    """The spans of one committed epoch, in wall-clock time.

    `n`: its record. `batch`: Spark's number of the batch, None for an epoch without input. `events`: events read.
    `start_us`, `end_us`: when the driver had it. `spans`: those of the driver and of the tasks.
    """

    n: int
    batch: int | None
    events: int
    start_us: int
    end_us: int
    spans: tuple[Span, ...]


class SparkBatch(NamedTuple):
    """What Spark reports of a batch: its start, and the durations of its steps in µs, by Spark's names."""

    start_us: int
    steps: Mapping[str, int]


class TraceEvent(msgspec.Struct, omit_defaults=True):
    """One event of a trace: `ph` is "X" for a span of `dur` µs from `ts` on, and "M" for the name of a track."""

    name: str
    ph: str
    pid: int
    tid: int
    ts: int = 0
    dur: int | msgspec.UnsetType = msgspec.UNSET
    args: dict[str, int | str] = {}


class Trace(msgspec.Struct, rename="camel"):
    """A trace file, as Perfetto (https://ui.perfetto.dev) and chrome://tracing open it."""

    trace_events: list[TraceEvent]
    display_time_unit: str = "ms"

    @property
    def tracks(self) -> dict[int, str]:
        """The names of the tracks, by the `tid` of their events."""
        return {event.tid: str(event.args["name"]) for event in self.trace_events if event.ph == "M"}


class Timelines:
    """The timelines of a driver's newest epochs; thread-safe."""

    def __init__(self, most: int = KEPT) -> None:
        self._kept: deque[EpochTimeline] = deque(maxlen=most)

    def add(self, epoch: EpochTimeline) -> None:
        """Add a committed epoch; the oldest one is forgotten."""
        self._kept.append(epoch)

    def newest(self, count: int) -> list[EpochTimeline]:
        """At most `count` epochs, the oldest first."""
        return list(self._kept)[-count:] if count > 0 else []


_BEFORE = {
    "latestOffset": "request offsets",
    "walCommit": "write offsets",
    "getBatch": "get batch",
    "queryPlanning": "plan batch",
}
_AFTER = {"commitOffsets": "write commit"}
_WHOLE, _CALLBACK = "triggerExecution", "addBatch"


def with_spark(epoch: EpochTimeline, batch: SparkBatch | None, stages: Iterable[Span] = ()) -> EpochTimeline:
    """The epoch with Spark's steps around those of the driver, and with the stages and tasks of its job.

    Spark reports durations without times: the steps before the callback follow the start of the batch one after the
    other, and the step after it ends the batch. Stages are cut to the span of the job.
    """
    spans = [*epoch.spans]
    job = next((span for span in spans if span.track == DRIVER and span.name == "job"), None)
    if job is not None:
        at = job.start_us
        for span in sorted(stages, key=lambda span: span.start_us):
            if span.end_us >= job.start_us and span.start_us <= job.end_us:
                if span.track == DRIVER:  # of stages that run at the same time, the first one counts
                    span = _cut(span, at, job.end_us)
                    at = max(at, span.end_us)
                spans.append(span)
    if batch is None:
        return epoch._replace(spans=tuple(spans))
    start = min(batch.start_us, epoch.start_us)
    end = max(batch.start_us + batch.steps.get(_WHOLE, 0), epoch.end_us)
    at = start
    for step, name in _BEFORE.items():
        until = min(at + batch.steps.get(step, 0), epoch.start_us)
        spans.append(Span(DRIVER, name, at, until))
        at = until
    last = end
    for step, name in _AFTER.items():
        first = max(last - batch.steps.get(step, 0), epoch.end_us)
        spans.append(Span(DRIVER, name, first, last))
        last = first
    before = max(at, min(epoch.start_us, last - batch.steps.get(_CALLBACK, 0)))
    spans.append(Span(DRIVER, "callback", before, last))
    return epoch._replace(start_us=start, end_us=end, spans=tuple(one for one in spans if one.end_us > one.start_us))


def _cut(span: Span, start_us: int, end_us: int) -> Span:
    start = min(max(span.start_us, start_us), end_us)
    return span._replace(start_us=start, end_us=max(start, min(span.end_us, end_us)))


def trace_of(epochs: Sequence[EpochTimeline], followers: Iterable[tuple[int, Span]] = ()) -> Trace:
    """A trace of epochs in the order of the log, and of the times at which followers applied their records.

    Each track has a line of its own. On the driver's line, the span of an epoch has all its other spans within it, and
    the time between two epochs is a span too.
    """
    tids: dict[str, int] = {}
    events: list[TraceEvent] = []

    def add(span: Span, args: dict[str, int | str]) -> None:
        tid = tids.setdefault(span.track, len(tids) + 1)
        events.append(TraceEvent(span.name, "X", 1, tid, span.start_us, span.end_us - span.start_us, args))

    ended: int | None = None
    for epoch in epochs:
        if ended is not None and ended < epoch.start_us:
            add(Span(DRIVER, WAITING, ended, epoch.start_us), {"record": epoch.n})
        begun = epoch.start_us if ended is None else max(ended, epoch.start_us)
        ended = max(epoch.end_us, begun)
        add(Span(DRIVER, EPOCH, begun, ended), {"record": epoch.n, "events": epoch.events})
        for span in epoch.spans:
            add(_cut(span, begun, ended) if span.track == DRIVER else span, {"record": epoch.n})
    shown = {epoch.n for epoch in epochs}
    for n, span in followers:
        if n in shown:
            add(span, {"record": n})
    # of spans that begin together, viewers expect the longer one first
    events.sort(key=lambda event: (event.tid, event.ts, -(event.dur or 0)))
    names = [TraceEvent("thread_name", "M", 1, tid, args={"name": track}) for track, tid in tids.items()]
    return Trace([*names, *events])


class TimelineStep(NamedTuple):
    """A step of epochs: the median of its own time in µs, without the steps within it, and how many epochs have it."""

    track: str
    name: str
    median_us: int
    epochs: int


def pieces(trace: Trace) -> list[TimelineStep]:
    """The steps of the epochs of a trace, those of the driver first, in the order in which they begin.

    The times of the driver's steps add up to the whole time of each epoch. Of the tasks of one kind, such as all folds,
    the longest time counts.
    """
    own: dict[tuple[str, str], dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    lines: dict[int, list[TraceEvent]] = defaultdict(list)
    for event in trace.trace_events:
        if event.ph == "X":
            lines[event.tid].append(event)
    for tid, track in trace.tracks.items():
        spans = lines[tid]
        kind = _TASK.sub(r"\1", track)
        own.update({(kind, event.name): own[kind, event.name] for event in spans})  # in the order of their beginnings
        for event, us in _own_times(spans):
            own[kind, event.name][int(event.args["record"])][tid] += us
    found = [
        TimelineStep(track, name, round(statistics.median(max(of.values()) for of in epochs.values())), len(epochs))
        for (track, name), epochs in own.items()
    ]
    return sorted(found, key=lambda piece: piece.track != DRIVER)


def _own_times(spans: Sequence[TraceEvent]) -> Iterator[tuple[TraceEvent, int]]:
    """Each span of one track with its duration without that of the spans within it."""
    open_spans: list[tuple[TraceEvent, int, int]] = []  # span, end, own time
    for span in spans:
        dur = span.dur or 0
        while open_spans and open_spans[-1][1] <= span.ts:
            yield open_spans[-1][0], open_spans.pop()[2]
        if open_spans:
            outer, end, us = open_spans[-1]
            open_spans[-1] = outer, end, us - dur
        open_spans.append((span, span.ts + dur, dur))
    while open_spans:
        yield open_spans[-1][0], open_spans.pop()[2]
