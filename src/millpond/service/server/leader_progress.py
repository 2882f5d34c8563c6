"""Decides whether a leader makes progress, for the sign of life that standbys wait for.

A leader is healthy while it is idle and Spark answers, while it commits epochs, and while it waits before the next try
of something that failed. It has stalled when one step (an epoch, the opening of the pond, an answer of Spark) takes far
longer than such a step should. A wrong guess costs a take-over and never a row: the claim in the log decides.
"""

from __future__ import annotations

from millpond.clock import Clock, lap_us

IDLE_SECONDS = 60.0
"""Between two epochs Spark is asked once a second, and must answer within so long."""

EPOCH_SECONDS = 600.0
"""So long may an epoch take, or the opening of a pond."""


class Pulse:
    """The time by which something must have happened; fed by the thread that leads, read by any."""

    def __init__(self, clock: Clock = lap_us) -> None:
        self._clock = clock
        self._due: float | None = None
        self._busy = False
        self._factor = 1

    @property
    def stalled(self) -> bool:
        """Whether what is at hand takes too long."""
        return self._due is not None and self._clock() > self._due

    def rest(self) -> None:
        """Nothing is at hand."""
        self._due, self._busy = None, False

    def begin(self) -> None:
        """A long step begins, or one has ended and the next may follow at once."""
        self._busy = False
        self._expect(EPOCH_SECONDS * self._factor)

    def answered(self, busy: bool) -> None:
        """Spark has answered; `busy` while an epoch is at hand, which has its time from the first such answer on."""
        if not busy:
            self._expect(IDLE_SECONDS)
        elif not self._busy:
            self._expect(EPOCH_SECONDS * self._factor)
        self._busy = busy

    def overtaken(self) -> None:
        """Another process has taken over. If that was for an epoch of long, the next one may take twice as long: a
        large first epoch must not be given from one process to the other for ever.
        """
        if self.stalled:
            self._factor *= 2

    def _expect(self, seconds: float) -> None:
        self._due = self._clock() + seconds * 1e6
