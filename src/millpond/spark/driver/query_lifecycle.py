"""The phases of a driver's streaming query, as a table of transitions.

    IDLE --start--> WAITING --begin--> EPOCH --end--> WAITING --finish--> IDLE
                       ^                 |--reread--> REREADING --start--> WAITING
                       |                 '--fail----> FAILED ----finish--> IDLE

The main thread starts queries and waits until they end; Spark's callback thread runs the epochs. A successor that takes
over from a query continues in the same phases: its epochs begin after the last epoch of the other query has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from enum import Enum, auto

from millpond.errors import MillpondError


class Phase(Enum):
    """What the streaming query does."""

    IDLE = auto()
    """No streaming query runs."""
    WAITING = auto()
    """A streaming query runs, and no epoch."""
    EPOCH = auto()
    """The callback of the streaming query runs an epoch."""
    REREADING = auto()
    """The query ends without committing its batch; another query that reads other input is to run that batch."""
    FAILED = auto()
    """The query ends with a failure."""


class Step(Enum):
    """What changes the phase."""

    START = auto()
    BEGIN = auto()
    END = auto()
    REREAD = auto()
    FAIL = auto()
    FINISH = auto()


TRANSITIONS: Mapping[tuple[Phase, Step], Phase] = {
    (Phase.IDLE, Step.START): Phase.WAITING,
    (Phase.REREADING, Step.START): Phase.WAITING,
    (Phase.WAITING, Step.BEGIN): Phase.EPOCH,
    (Phase.EPOCH, Step.END): Phase.WAITING,
    (Phase.EPOCH, Step.REREAD): Phase.REREADING,
    (Phase.EPOCH, Step.FAIL): Phase.FAILED,
    # The callback ends after it has said why.
    (Phase.REREADING, Step.END): Phase.REREADING,
    (Phase.FAILED, Step.END): Phase.FAILED,
    # A run can end before its callback, if the JVM has ended or the main thread was interrupted.
    (Phase.IDLE, Step.REREAD): Phase.IDLE,
    (Phase.IDLE, Step.FAIL): Phase.IDLE,
    (Phase.IDLE, Step.END): Phase.IDLE,
    (Phase.WAITING, Step.REREAD): Phase.REREADING,
    (Phase.WAITING, Step.FAIL): Phase.FAILED,
    (Phase.WAITING, Step.END): Phase.WAITING,
    **{(phase, Step.FINISH): Phase.IDLE for phase in Phase},
}
"""The phase after a step; a pair that is missing cannot happen."""


class QueryLifecycle:
    """The phase of a driver's streaming query, a requested stop, and the failure that ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase, self._callback, self._stop = Phase.IDLE, 0, False
        self._failure: MillpondError | None = None

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self._phase

    @property
    def failure(self) -> MillpondError | None:
        """What failed in an epoch since the last `start` from IDLE."""
        return self._failure

    @property
    def in_callback(self) -> bool:
        """Whether the calling thread is the one that runs the epoch."""
        return self._callback == threading.get_ident()

    @property
    def stop_requested(self) -> bool:
        """Whether `request_stop` was called during this run."""
        return self._stop

    def request_stop(self) -> None:
        """Request that no further epoch begins; this only sets a flag, so a signal handler may call it."""
        self._stop = True

    @property
    def may_stop(self) -> bool:
        """Whether a stop was requested and no epoch runs; none can begin then."""
        with self._lock:
            return self._stop and self._phase is not Phase.EPOCH

    def start(self) -> None:
        """A streaming query is about to start."""
        if self._phase is Phase.IDLE:
            self._failure = None
        self._take(Step.START)

    def begin(self) -> bool:
        """Begin an epoch in the calling thread; return False if none may begin: a stop was requested, or the run ended.
        """
        with self._lock:
            if self._stop or self._phase is Phase.IDLE:
                return False
            self._phase, self._callback = TRANSITIONS[self._phase, Step.BEGIN], threading.get_ident()
            return True

    def reread(self) -> None:
        """Leave the epoch's batch to a query that reads other input."""
        self._take(Step.REREAD)

    def fail(self, failure: MillpondError) -> None:
        """The epoch failed."""
        self._failure = failure
        self._take(Step.FAIL)

    def end(self) -> None:
        """The callback returns."""
        self._callback = 0
        self._take(Step.END)

    def finish(self) -> bool:
        """The run has ended; return whether a stop was requested during it."""
        self._take(Step.FINISH)
        stopped, self._stop = self._stop, False
        return stopped

    def _take(self, step: Step) -> None:
        with self._lock:
            self._phase = TRANSITIONS[self._phase, step]
