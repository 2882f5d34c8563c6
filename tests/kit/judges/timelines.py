"""Checks of a trace that need no knowledge of its steps: spans nest, and they cover their epoch, each time once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from millpond.runtime.inspect.timeline import DRIVER, EPOCH, WAITING, Trace, TraceEvent


def spans_of(trace: Trace, track: str = DRIVER) -> list[TraceEvent]:
    """The spans of one track, in the order of the trace."""
    tid = next(one.tid for one in trace.trace_events if one.ph == "M" and one.args == {"name": track})
    return [one for one in trace.trace_events if one.tid == tid and one.ph == "X"]


def check_nested(spans: Sequence[TraceEvent]) -> None:
    """Two spans of a track are apart, or the later one is within the earlier one."""
    for place, one in enumerate(spans):
        for other in spans[place + 1 :]:
            assert one.ts <= other.ts and (other.ts >= _end(one) or _end(other) <= _end(one)), (one, other)


def check_covered(trace: Trace) -> None:
    """The own times of the driver's spans add up to the time of each epoch and the wait for it."""
    driver = spans_of(trace)
    own: dict[int, int] = defaultdict(int)
    whole: dict[int, int] = defaultdict(int)
    for place, one in enumerate(driver):
        record = int(one.args["record"])
        own[record] += (one.dur or 0) - _covered(driver[place + 1 :], one)
        whole[record] += (one.dur or 0) if one.name in (EPOCH, WAITING) else 0
    assert own == whole


def _covered(later: Sequence[TraceEvent], outer: TraceEvent) -> int:
    """How much of a span the spans within it cover."""
    edges, covered = outer.ts, 0
    for one in later:
        start, end = max(one.ts, edges), min(_end(one), _end(outer))
        covered += max(0, end - start)
        edges = max(edges, end)
    return covered


def _end(span: TraceEvent) -> int:
    return span.ts + (span.dur or 0)
