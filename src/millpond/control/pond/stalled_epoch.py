"""Ends the JVM if an epoch makes no progress while a query is on probation, so that the query can be quarantined.

Spark cannot interrupt a task inside an expression, such as a pattern from a column that takes n^k steps. The queries
whose first events are in that epoch are responsible (`reconfigure.probation`). Without such a query nothing is ended,
and a warning names the queries that Spark evaluates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from millpond.clock import Clock, lap_us
from millpond.errors import SetupError, StalledError
from millpond.spark.driver.spark_progress import Alive
from millpond.spark.session.session import own_gateway

_log = logging.getLogger("millpond.pond")


class StalledEpoch:
    """Watches the progress of epochs; called each second in which Spark responds (see `Driver`).

    `suspects` returns the queries on probation, and `evaluated` all queries of which Spark evaluates a part. `on_alive`
    is called too. `error` is the reason for which the JVM was ended.
    """

    def __init__(
        self, seconds: float, suspects: Callable[[], Sequence[str]], evaluated: Callable[[], Sequence[str]],
        on_alive: Alive | None, clock: Clock = lap_us,
    ) -> None:  # fmt: skip
        self._seconds, self._suspects, self._evaluated = seconds, suspects, evaluated
        self._on_alive, self._clock = on_alive, clock
        self._work: tuple[int, ...] | None = None
        self._since = clock()
        self._warned = False
        self.error: StalledError | None = None

    def __call__(self, work: tuple[int, ...] | None) -> None:
        """Note the work that the running epoch has done; None between epochs."""
        if self._on_alive is not None:
            self._on_alive(work)
        if work is None or work != self._work:
            self._work, self._since, self._warned = work, self._clock(), False
        elif self._clock() - self._since > self._seconds * 1e6 and self.error is None and not self._warned:
            self._warned = True
            self._end_or_warn()

    def _end_or_warn(self) -> None:
        stall = f"An epoch has made no progress for {self._seconds:g} s"
        if not self._suspects():
            names = ", ".join(self._evaluated()) or "none"
            _log.warning("%s. Queries of which Spark evaluates a part: %s.", stall, names)
            return
        self.error = StalledError(f"{stall}.", "Committed results are not affected; start the pond again.")
        try:
            own_gateway().process.kill()
        except SetupError:  # the JVM belongs to the user's program
            _log.warning("%s. Queries on probation: %s.", stall, ", ".join(self._suspects()))
