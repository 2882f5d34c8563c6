"""Collects metrics of a leader since it leads: epochs, events and rows, updated by each committed epoch."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from millpond.clock import Clock, lap_us
from millpond.reconfigure.catalog import query_name
from millpond.runtime.task.counters import WHOLE_POND
from millpond.spark.driver.epochs import Epoch

_EPOCHS_OF_RATE = 16
_EPOCHS_OF_TAIL = 512
_COUNTS = ("rows", "read", "applied", "late", "dead", "filtered")


class Measured(NamedTuple):
    """Totals, events per second over the last epochs and the time since, and the seconds of an epoch."""

    epochs: int = 0
    events: int = 0
    events_per_s: float = 0.0
    epoch_s: float = 0.0
    epoch_p99_s: float = 0.0
    since_epoch_s: float | None = None


class Gauges:
    """The metrics; pass `epoch` to the pond. Thread-safe."""

    def __init__(self, clock: Clock = lap_us) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._epochs = self._events = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=_EPOCHS_OF_RATE)
        self._seconds: deque[float] = deque(maxlen=_EPOCHS_OF_TAIL)
        self._counts: dict[str, dict[str, int]] = {}

    def epoch(self, epoch: Epoch) -> None:
        """Add a committed epoch."""
        record, now = epoch.record, self._clock()
        events = record.counts.get(WHOLE_POND, {}).get("events", 0)
        with self._lock:
            if not self._recent:
                self._recent.append((now - round(epoch.seconds * 1e6), 0))
            self._recent.append((now, events))
            self._epochs, self._events = self._epochs + 1, self._events + events
            self._seconds.append(epoch.seconds)
            for query, counts in record.counts.items():
                for name in _COUNTS:
                    if name in counts:  # rows of all versions are the query's; events are read by each version
                        mine = self._counts.setdefault(query_name(query) if name == "rows" else query, {})
                        mine[name] = mine.get(name, 0) + counts[name]

    def counts(self, query: str) -> dict[str, int]:
        """The rows that all versions of a query emitted, and the fate of the events that the current version read."""
        with self._lock:
            return dict(self._counts.get(query, {}))

    def measured(self) -> Measured:
        """The current values of all metrics."""
        with self._lock:
            if not self._recent:
                return Measured()
            now, recent = self._clock(), [*self._recent]
            seconds = sorted(self._seconds)
            return Measured(
                self._epochs, self._events,
                sum(events for _, events in recent[1:]) / max((now - recent[0][0]) / 1e6, 1e-3),
                self._seconds[-1], seconds[len(seconds) * 99 // 100], (now - recent[-1][0]) / 1e6,
            )  # fmt: skip
