"""Epochs in which no window is likely to close, nor in those beside them: a step of a move waits for one of those.

Epochs in which windows close are the longest, and a step made them longer still. What came while an epoch ran waits for
its end and for the next one, so steps keep away from the epochs beside those, too, and from each other. Which they are
is a guess: event time goes on as far as in that one of the last epochs in which it went farthest (of files, one epoch
reads one and the next two), and then as in all of them. So steps leave out six epochs in a row for that at most, and
one for each two that they took: where all epochs close windows, none is better than another.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from millpond.plan.plan import GroupPlan
from millpond.runtime.closing import may_close
from millpond.runtime.tasks import Watermark

_LAST = 4
_IN_A_ROW = 6
_TAKEN = 2


class Calm:
    """Looks at the watermarks before each epoch, and says whether a step should wait for the next.

    >>> Calm().waits([], {"clicks": Watermark(5)})
    False
    """

    def __init__(self) -> None:
        self._marks: dict[str, Watermark] = {}
        self._gained: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_LAST))
        self._may_wait, self._taken = float(_IN_A_ROW), False

    def waits(self, groups: Iterable[GroupPlan], marks: Mapping[str, Watermark]) -> bool:
        """Whether a step should wait; `marks`: how far each stream has come. To be asked before each epoch."""
        before, self._marks = self._marks, dict(marks)
        for stream, mark in marks.items():
            came = before.get(stream, Watermark()).max_time_us
            if came is not None and mark.max_time_us is not None:
                self._gained[stream].append(mark.max_time_us - came)
        if self._taken:
            self._taken = False
            return True
        if self._may_wait >= 1 and any(self._closes(group, before.get(group.stream)) for group in groups):
            self._may_wait -= 1
            return True
        self._may_wait, self._taken = min(self._may_wait + 1 / _TAKEN, _IN_A_ROW), True
        return False

    def _closes(self, group: GroupPlan, before: Watermark | None) -> bool:
        """Whether a window of a group closed in the last epoch, or would in one of the next two."""
        mark = self._marks.get(group.stream, Watermark())
        gained = self._gained[group.stream]
        if mark.max_time_us is None or before is None or not gained:
            return False
        return may_close(group, before, mark.advanced(mark.max_time_us + max(gained) + sum(gained) // len(gained)))
