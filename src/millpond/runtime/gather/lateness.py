"""Decides which events are late, from the event times before them in their source partition and in the stream.

For delay d an event is late iff its time is at or below

    max(largest time before it in its own source partition, W) - d

where W is the stream's watermark base when the epoch begins: the minimum, over its source partitions that are not
idle, of their largest times (for streams without an order see below). If Spark made several rows of one event, they
have the same offset and are compared with the times before the first of them. So an accepted event never belongs to a
closed window, and for a stream with an order the decision does not depend on how the input was cut into epochs.

A stream without an order (files, rate) counts as one partition whose largest time advances only between epochs. A
union of such streams has one partition for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask
from millpond.model.types import FARTHEST_US
from millpond.model.windows import NEVER_LATE_US, Sliced
from millpond.runtime.task.task_values import TimeLine, Watermark

ANY_PARTITION = "*"
"""Stands for the stream as a whole: the name under which its watermark base is recorded."""

_LONG_AGO = np.iinfo(np.int64).min


class Judged(NamedTuple):
    """What is known of the event times of a chunk.

    `timed`: which events have a time that is not too far in the future. `base_us`: the time that each event is compared
    with, before the delay is subtracted (see the module); INT64_MIN if no event precedes it. `newest_us`: the largest
    time of each source partition in this chunk.
    """

    timed: Mask
    base_us: Ints
    newest_us: dict[str, int]


class Judge:
    """Determines the `Judged` of the chunks of one source task, in order; keeps the largest times between chunks."""

    def __init__(self, line: TimeLine, latest_us: int | None) -> None:
        """`latest_us`: events with a later time are treated as events without a time, as their clock must be wrong."""
        self._line = line
        self._latest_us = latest_us
        self._newest = dict(line.partitions)
        self._last: dict[str, tuple[int, int]] = {}
        self._base = _LONG_AGO if line.mark.max_time_us is None else line.mark.max_time_us

    def judge(self, times_us: Ints, null: Mask, partitions: pa.Array | None, offsets: Ints | None) -> Judged:
        """Judge a chunk.

        `partitions`: the source partition of each event, as text, if the watermark waits for several partitions.
        `offsets`: given if events have an order within their partition.
        """
        timed = ~null & (times_us >= -FARTHEST_US) & (times_us <= FARTHEST_US)
        if self._latest_us is not None:
            timed = timed & (times_us <= self._latest_us)
        if partitions is None:
            newest = {ANY_PARTITION: int(times_us[timed].max())} if timed.any() else {}
            return Judged(timed, np.asarray(self._base), newest)
        if offsets is None:
            in_time = ((name, rows[timed[rows]]) for name, rows in _in_order(partitions, None))
            newest = {name: int(times_us[rows].max()) for name, rows in in_time if len(rows)}
            return Judged(timed, np.asarray(self._base), newest)
        base = np.full(len(times_us), self._base, np.int64)
        newest = {}
        for name, rows in _in_order(partitions, offsets):
            before = self._running(name, np.where(timed[rows], times_us[rows], _LONG_AGO), offsets[rows])
            base[rows] = np.maximum(before, self._base)
            if self._newest.get(name, _LONG_AGO) > _LONG_AGO and timed[rows].any():
                newest[name] = self._newest[name]
        return Judged(timed, base, newest)

    def _running(self, name: str, times_us: Ints, offsets: Ints) -> Ints:
        """The largest time before each event of a partition, in the order of the partition."""
        seen = np.maximum.accumulate(np.concatenate([[self._newest.get(name, _LONG_AGO)], times_us]))
        self._newest[name] = int(seen[-1])
        before: Ints = seen[:-1]
        if not len(offsets):
            return before
        first = np.concatenate([[True], np.diff(offsets) != 0])
        if not first.all():
            before = before[np.flatnonzero(first)][np.cumsum(first) - 1]
        last = self._last.get(name)
        if last is not None and last[0] == offsets[0]:  # the previous chunk ended between rows of one event
            before = np.where(offsets == last[0], last[1], before)
        self._last[name] = int(offsets[-1]), int(before[-1])
        return before


def _in_order(partitions: pa.Array, offsets: Ints | None) -> Iterable[tuple[str, Ints]]:
    """The rows of each source partition, in the order of their offsets if there are any."""
    encoded = partitions.dictionary_encode()
    codes = np.asarray(encoded.indices)
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == code)
        if offsets is not None and len(rows) > 1 and not bool((np.diff(offsets[rows]) >= 0).all()):
            rows = rows[np.argsort(offsets[rows], kind="stable")]
        yield str(name), rows


def late_classes(times_us: Ints, judged: Judged, floor_us: int | None, delays_us: tuple[int, ...]) -> Ints:
    """For each event, the number of delays for which it is late; if it is late for all delays, no query takes it."""
    late = np.zeros(len(times_us), np.int64)
    for delay in delays_us:
        limit = limit_us(judged.base_us, floor_us, delay)
        missed = (times_us <= limit) & judged.timed & (limit > _LONG_AGO)
        if not missed.any():
            break  # longer delays have lower limits
        late += missed
    return late


def late_on_join_side(
    late: Ints, times_us: Ints, lines: Mapping[str, TimeLine], beside: tuple[str, int] | msgspec.UnsetType
) -> Ints:
    """The lateness classes `late` for a side of joins that may also wait for another stream, with a delay: an event is
    late only if the watermark of that stream has passed it, too, when the epoch begins.
    """
    if isinstance(beside, msgspec.UnsetType):
        return late
    stream, delay_us = beside
    mark = lines.get(stream, TimeLine()).mark.at(delay_us)
    return np.zeros_like(late) if mark is None else np.where(times_us <= mark, late, 0)


def judged_times(times_us: Ints, window: Sliced | None) -> Ints:
    """The times by which events are late: their own or, with a window, the first end of a window that they are part of.

    The first window to close decides for all windows of an event. So a window that is emitted gets no more events, and
    its rows do not depend on the cut.
    """
    return times_us if window is None else window.ends.after(times_us)


def limit_us(base_us: Ints, floor_us: int | None, delay_us: int) -> Ints:
    """The watermark for a delay, which the time of each event must exceed; INT64_MIN where no event is late."""
    if delay_us >= NEVER_LATE_US:
        return np.full_like(base_us, _LONG_AGO)
    judgeable = base_us > _LONG_AGO
    limit: Ints = np.where(judgeable, base_us - np.where(judgeable, delay_us, 0), _LONG_AGO)
    return limit if floor_us is None else np.maximum(limit, floor_us)


def advanced(line: TimeLine, newest_us: Mapping[str, int]) -> Watermark:
    """The watermark after an epoch with the largest times `newest_us` per source partition; it never decreases."""
    if line.reaches_us is not None:
        return line.mark.advanced(line.reaches_us)
    if line.follows:
        return line.mark
    if not line.ordered:
        return line.mark.advanced(newest_us.get(ANY_PARTITION))
    times = dict(line.partitions)
    for name, time in newest_us.items():
        times[name] = max(time, times.get(name, time))
    awaited = {*times, *line.expected} - line.idle
    if not awaited or not awaited <= times.keys():
        return line.mark
    return line.mark.advanced(min(times[name] for name in awaited))


def marks_of(
    lines: Mapping[str, TimeLine], newest: Mapping[str, Mapping[str, int]], floors_us: Mapping[str, int]
) -> dict[str, tuple[Watermark, Watermark]]:
    """The watermark of each stream before and after an epoch.

    `newest`: the largest event times of the epoch, by stream and source partition. `floors_us`: the floors of a drain.
    """
    marks = {}
    for stream in {*lines, *newest, *floors_us}:
        line = lines.get(stream, TimeLine())
        after = advanced(line, newest.get(stream, {}))
        marks[stream] = line.mark, Watermark(after.max_time_us, floors_us[stream]) if stream in floors_us else after
    return marks
