"""Logs the epochs of a service as text: their events, and the rows of each query."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from millpond.clock import Clock, lap_us
from millpond.control.pond.problems import LOGGER
from millpond.model.selection import query_name
from millpond.plan.explain.amounts import count_of
from millpond.runtime.task.counters import WHOLE_POND
from millpond.spark.driver.epochs import Epoch

_LINE_EVERY_US = 10_000_000
_MOST_NAMES = 6
_log = logging.getLogger(LOGGER)


class EpochLines:
    """Logs epochs as text: the first one at once, then at most one line in ten seconds for all since the previous line.

    Epochs without events and rows are left out. As JSON, each epoch has its line; see `log_epoch`. Threads may share an
    object.
    """

    def __init__(self, clock: Clock = lap_us) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._due, self._numbers, self._events, self._seconds = 0, list[int](), 0, 0.0
        self._rows = Counter[str]()

    def add(self, epoch: Epoch) -> None:
        """Count a committed epoch, and log what was counted if a line is due."""
        counts = epoch.record.counts
        events = counts.get(WHOLE_POND, {}).get("events", 0)
        rows = {query_name(name): found["rows"] for name, found in counts.items() if found.get("rows")}
        with self._lock:
            if events or rows:
                self._numbers.append(epoch.record.n)
                self._events, self._seconds = self._events + events, self._seconds + epoch.seconds
                self._rows.update(rows)
        self.log_due()

    def log_due(self) -> None:
        """Log what was counted if a line is due; to be called about once a second, also when no epoch is committed."""
        with self._lock:
            if self._clock() >= self._due:
                self._log()

    def log_remaining(self) -> None:
        """Log what was counted, because the service stops."""
        with self._lock:
            self._log()

    def _log(self) -> None:
        if self._numbers:
            _log.info("%s", self._line())
            self._due, self._numbers = self._clock() + _LINE_EVERY_US, []
            self._events, self._seconds = 0, 0.0
            self._rows.clear()

    def _line(self) -> str:
        first, last = self._numbers[0], self._numbers[-1]
        which = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        shown = [f"{name} {number:,}" for name, number in self._rows.most_common(_MOST_NAMES)]
        if len(self._rows) > _MOST_NAMES:
            shown.append(f"and of {count_of(len(self._rows) - _MOST_NAMES, 'other query')}")
        rows = f"; rows: {', '.join(shown)}" if shown else ""
        return f"{which}: {self._events:,} events in {self._seconds:.1f} s{rows}"
