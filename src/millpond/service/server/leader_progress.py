"""Decides whether a leader makes progress; its sign of life to the standbys depends on this.

A leader is healthy while it is idle and Spark responds, while it commits epochs, while the tasks of an epoch end or
count records, and while it waits before it retries something that failed. It has stalled when one step takes far longer
than it should: an epoch without visible progress, the preparation, opening or closing of the pond, or a response of
Spark. A wrong guess costs a take-over or a restart, but never a row, because the claim in the log decides.
"""

from __future__ import annotations

from millpond.clock import Clock, lap_us
from millpond.control.stall_limits import STALLED_SECONDS, TAKE_OVER_SECONDS

IDLE_SECONDS = 60.0
"""Between two epochs Spark is pinged once a second, and must respond within this time."""

EPOCH_SECONDS = STALLED_SECONDS + TAKE_OVER_SECONDS
"""The longest time that an epoch may take without visible progress, and that a pond may take to begin or to end."""

EPOCH = "An epoch"
_DOUBLINGS = 6


class StepDeadline:
    """The deadline of the current step; set by the thread that leads, read by any thread.

    Each of the `restarts` without an epoch doubles the time of every step, so that a slow step succeeds in the end.
    `epoch_seconds`: see `EPOCH_SECONDS`. `step` names the current step.
    """

    def __init__(self, clock: Clock = lap_us, restarts: int = 0, epoch_seconds: float = EPOCH_SECONDS) -> None:
        self._clock, self._epoch_seconds = clock, epoch_seconds
        self.step = ""
        self._due: float | None = None
        self._work: tuple[int, ...] | None = None
        self._factor = 1 << min(restarts, _DOUBLINGS)

    @property
    def stalled(self) -> bool:
        """Whether the current step takes too long."""
        return self._due is not None and self._clock() > self._due

    def clear(self) -> None:
        """Clear the deadline, because no step is running."""
        self._due, self._work = None, None

    def begin(self, step: str = EPOCH) -> None:
        """Set the deadline of a long step that begins, or that may follow at once on one that ended."""
        self._work, self.step = None, step
        self._expect(self._epoch_seconds)

    def note_response(self, work: tuple[int, ...] | None) -> None:
        """Note a response of Spark.

        `work`: the work that the running epoch has done, in numbers that change with its progress; None between epochs.
        The time of an epoch counts from the last change.
        """
        if work is None:
            self._expect(IDLE_SECONDS)
        elif work != self._work:
            self._expect(self._epoch_seconds)
        self._work = work

    def overtaken(self) -> None:
        """Note that another process has taken over.

        If the reason was a long epoch, the next one may take twice as long; otherwise two processes could hand a large
        first epoch back and forth without end.
        """
        if self.stalled:
            self._factor *= 2

    def _expect(self, seconds: float) -> None:
        self._due = self._clock() + self._factor * seconds * 1e6
