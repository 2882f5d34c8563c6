"""Epochs in which no window is likely to close, nor in those beside them: a step of a move waits for one of those.

Epochs in which windows close are the longest, and a step made them longer still. What came while an epoch ran waits for
its end and for the next one, so steps keep away from the epochs beside those, too, and from each other. Which they are
is a guess: event time goes on as far as in that one of the last epochs in which it went farthest (of files, one epoch
reads one and the next two), and then as in all of them. So steps leave out six epochs in a row for that at most, and
one for each two that they took: where all epochs close windows, none is better than another.

What comes while an epoch with a step runs is read by the next one, which begins late, and so on, until an epoch begins
only when something comes. Steps wait for that, too, six epochs at most: then whatever comes next finds the one with
the step nearly at its end. An epoch that has waited begins a while after the one before, and others as soon as Spark
has planned them, which takes about as long each time. Where few have waited, or nearly all, all are alike.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from math import inf

from millpond.plan.plan import GroupPlan
from millpond.runtime.closing import may_close
from millpond.runtime.tasks import Watermark

_LAST = 4
_IN_A_ROW = 6
_TAKEN = 2
_REMEMBERED = 32
_FEW = 10
_LONGER = 1.3
"""An epoch that begins so many times as long after the one before as the shortest tenth of the last ones has waited for
what it reads, if a tenth of them has: a pause says nothing."""
_LATE_AT_MOST = 6


class Calm:
    """Looks at the watermarks before each epoch, and says whether a step should wait for the next.

    >>> Calm().waits([], {"clicks": Watermark(5)})
    False
    """

    def __init__(self) -> None:
        self._marks: dict[str, Watermark] = {}
        self._gained: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_LAST))
        self._may_wait, self._taken = float(_IN_A_ROW), False
        self._between, self._late = deque[float](maxlen=_REMEMBERED), 0

    def waits(self, groups: Iterable[GroupPlan], marks: Mapping[str, Watermark], between_s: float = inf) -> bool:
        """Whether a step should wait; `marks`: how far each stream has come, `between_s`: seconds since the end of the
        epoch before, to this one's begin. To be asked before each epoch.
        """
        late = self._is_late(between_s)
        before, self._marks = self._marks, dict(marks)
        for stream, mark in marks.items():
            came = before.get(stream, Watermark()).max_time_us
            if came is not None and mark.max_time_us is not None:
                self._gained[stream].append(mark.max_time_us - came)
        if self._taken:
            self._taken = False
            return True
        if late and self._late < _LATE_AT_MOST:
            self._late += 1
            return True
        if self._may_wait >= 1 and any(self._closes(group, before.get(group.stream)) for group in groups):
            self._may_wait -= 1
            return True
        self._may_wait, self._taken, self._late = min(self._may_wait + 1 / _TAKEN, _IN_A_ROW), True, 0
        return False

    def _is_late(self, between_s: float) -> bool:
        """Whether an epoch has begun as soon as it could, where others have waited."""
        self._between.append(between_s)
        ordered, few = sorted(self._between), len(self._between) // _FEW
        return few > 0 and between_s < _LONGER * ordered[few] <= ordered[-1 - few]

    def _closes(self, group: GroupPlan, before: Watermark | None) -> bool:
        """Whether a window of a group closed in the last epoch, or would in one of the next two."""
        mark = self._marks.get(group.stream, Watermark())
        gained = self._gained[group.stream]
        if mark.max_time_us is None or before is None or not gained:
            return False
        return may_close(group, before, mark.advanced(mark.max_time_us + max(gained) + sum(gained) // len(gained)))
