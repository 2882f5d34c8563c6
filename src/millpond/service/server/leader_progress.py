"""Decides whether a leader makes progress; its sign of life to the standbys depends on this.

A leader is healthy while it is idle and Spark responds, while it commits epochs, and while it waits before it retries
something that failed. It has stalled when one step (an epoch, the opening of the pond, a response of Spark) takes far
longer than such a step should. A wrong guess costs a take-over, but never a row, because the claim in the log decides.
"""

from __future__ import annotations

from millpond.clock import Clock, lap_us

IDLE_SECONDS = 60.0
"""Between two epochs Spark is pinged once a second, and must respond within this time."""

EPOCH_SECONDS = 600.0
"""The longest time that an epoch, or the opening of a pond, may take."""


class Pulse:
    """The deadline of the current step; set by the thread that leads, read by any thread."""

    def __init__(self, clock: Clock = lap_us) -> None:
        self._clock = clock
        self._due: float | None = None
        self._busy = False
        self._factor = 1

    @property
    def stalled(self) -> bool:
        """Whether the current step takes too long."""
        return self._due is not None and self._clock() > self._due

    def rest(self) -> None:
        """Clear the deadline, because no step is running."""
        self._due, self._busy = None, False

    def begin(self) -> None:
        """Set the deadline of a long step that begins, or that may follow at once on one that ended."""
        self._busy = False
        self._expect(EPOCH_SECONDS * self._factor)

    def answered(self, busy: bool) -> None:
        """Note a response of Spark; `busy`: an epoch is running, whose time counts from the first such response on."""
        if not busy:
            self._expect(IDLE_SECONDS)
        elif not self._busy:
            self._expect(EPOCH_SECONDS * self._factor)
        self._busy = busy

    def overtaken(self) -> None:
        """Note that another process has taken over.

        If the reason was a long epoch, the next one may take twice as long; otherwise two processes could hand a large
        first epoch back and forth without end.
        """
        if self.stalled:
            self._factor *= 2

    def _expect(self, seconds: float) -> None:
        self._due = self._clock() + seconds * 1e6
