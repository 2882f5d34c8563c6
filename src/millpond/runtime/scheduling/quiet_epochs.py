"""Predicts quiet epochs, in which background work (migration steps and merges) can run.

An epoch in which windows close is the longest, and a migration step would make it longer. New input waits for that
epoch and for the next one, so steps also avoid the epochs before and after it. The prediction is a guess from the last
epochs: event time advances by the largest recent advance in the next epoch, because an epoch may read one file and the
next one two, and by the average in the epoch after it. Steps skip at most six epochs in a row for this, and one for
each two steps taken. If every epoch closes windows, no epoch is better than another.

Steps also wait, at most four seconds, for an epoch that begins without a backlog, so that the next input finds the
step nearly done. Merges wait at most one second. A pond that always has a backlog must still do both, and its epochs
are long, so that a step adds little.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.task.task_values import Watermark
from millpond.runtime.windows.closing import may_close

_OBSERVED_EPOCHS = 4
_MAX_SKIPS_IN_A_ROW = 6
_STEPS_PER_SKIP = 2
_STEP_WAITS_US = 4_000_000
_MERGES_WAIT_US = 1_000_000


class Waits(NamedTuple):
    """The work that waits for a later epoch: a migration step, and merges of state that are not urgent."""

    step: bool = False
    merges: bool = False


def is_behind(ended_us: int, request_us: Callable[[], int], taken_us: int, began_us: int) -> bool:
    """Whether an epoch reads a backlog, that is, input that existed when the previous epoch ended at `ended_us`.

    Spark requests offsets from the sources, which takes `request_us()`, fixes these at `taken_us`, and plans the read
    until the epoch begins at `began_us`. A wait for input before `taken_us` that is shorter than the planning is
    ignored.

    >>> is_behind(0, lambda: 20_000, 30_000, 55_000), is_behind(0, lambda: 20_000, 120_000, 145_000)
    (True, False)
    """
    waited_us, planned_us = taken_us - ended_us, began_us - taken_us
    return waited_us < planned_us or waited_us - request_us() < planned_us


class QuietEpochs:
    """Observes the watermarks before each epoch, and decides what should wait for a later epoch.

    >>> QuietEpochs().decide_next([], {"clicks": Watermark(5)})
    Waits(step=False, merges=False)
    """

    def __init__(self) -> None:
        self._marks: dict[str, Watermark] = {}
        self._gained: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_OBSERVED_EPOCHS))
        self._skips_left, self._stepped = float(_MAX_SKIPS_IN_A_ROW), False
        self._stepped_us = self._merged_us = 0

    def decide_next(
        self, groups: Iterable[GroupPlan], marks: Mapping[str, Watermark], behind: bool = False, now_us: int = 0
    ) -> Waits:
        """Decides what should wait; must be called before each epoch that reads something.

        `marks`: the watermark of each stream. `behind`: see `is_behind`. `now_us`: the time of a monotonic clock.
        """
        before, self._marks = self._marks, dict(marks)
        for stream, mark in marks.items():
            previous_us = before.get(stream, Watermark()).max_time_us
            if previous_us is not None and mark.max_time_us is not None:
                self._gained[stream].append(mark.max_time_us - previous_us)
        step = self._step_waits(groups, before, behind and now_us - self._stepped_us < _STEP_WAITS_US)
        merges = behind and now_us - self._merged_us < _MERGES_WAIT_US
        self._stepped_us, self._merged_us = self._stepped_us if step else now_us, self._merged_us if merges else now_us
        return Waits(step, merges)

    def _step_waits(self, groups: Iterable[GroupPlan], before: Mapping[str, Watermark], behind: bool) -> bool:
        if self._stepped:
            self._stepped = False
            return True
        if behind:
            return True
        if self._skips_left >= 1 and any(self._closes(group, before.get(group.stream)) for group in groups):
            self._skips_left -= 1
            return True
        self._skips_left, self._stepped = min(self._skips_left + 1 / _STEPS_PER_SKIP, _MAX_SKIPS_IN_A_ROW), True
        return False

    def _closes(self, group: GroupPlan, before: Watermark | None) -> bool:
        """Whether a window of a group closed in the last epoch, or is predicted to close in one of the next two."""
        mark = self._marks.get(group.stream, Watermark())
        gained = self._gained[group.stream]
        if mark.max_time_us is None or before is None or not gained:
            return False
        return may_close(group, before, mark.advanced(mark.max_time_us + max(gained) + sum(gained) // len(gained)))
