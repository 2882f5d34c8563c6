"""Collects metrics of a leader since it leads: epochs, events and rows, updated by each committed epoch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from copy import copy
from typing import NamedTuple

from prometheus_client import Histogram
from prometheus_client.metrics_core import Metric

from millpond.clock import Clock, lap_us
from millpond.log.records import EpochRecord
from millpond.model.selection import query_name
from millpond.plan.explain.amounts import RemainingTime
from millpond.runtime.inspect.timeline import pieces, trace_of
from millpond.runtime.task.counters import FATES, WHOLE_POND, Counters, Counts, in_receipt
from millpond.spark.driver.epochs import Epoch

_EPOCHS_OF_RATE = 16
_EPOCHS_OF_TAIL = 512
_RATE_US = 10_000_000
"""Events that were committed longer ago are left out of the rate, unless the last epoch took longer."""

SECONDS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper limits of the histogram of epochs, in seconds."""

STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
"""The upper limits of the histograms of their steps, in seconds."""


class Measured(NamedTuple):
    """Totals, events per second over the last epochs and seconds, and the seconds of an epoch."""

    epochs: int = 0
    events: int = 0
    events_per_s: float = 0.0
    epoch_s: float = 0.0
    epoch_p99_s: float = 0.0
    since_epoch_s: float | None = None


class InstanceTotals(NamedTuple):
    """What an instance did: microseconds in which it folded, and the bytes of its deltas."""

    fold_us: int = 0
    delta_bytes: int = 0


class _Recent(NamedTuple):
    """An epoch: when it began and was committed (µs), and its events."""

    begun: int
    at: int
    events: int


class Gauges:
    """The metrics; pass `epoch` to the pond. Thread-safe."""

    def __init__(self, clock: Clock = lap_us) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._epochs = 0
        self._recent: deque[_Recent] = deque(maxlen=_EPOCHS_OF_RATE)
        self._seconds: deque[float] = deque(maxlen=_EPOCHS_OF_TAIL)
        self._totals = Counters()
        self._instances: dict[int, InstanceTotals] = {}
        self._hosts: Mapping[int, str] = {}
        self._migration = RemainingTime(clock)
        self._durations = Histogram(
            "millpond_epoch_duration_seconds", "From the request for the first event of an epoch to its commit.",
            registry=None, buckets=SECONDS,
        )  # fmt: skip
        self._steps = Histogram(
            "millpond_epoch_step_duration_seconds",
            "The own time of a step of an epoch, by who does it; of parallel tasks, the slowest counts.",
            ("track", "step"), registry=None, buckets=STEP_SECONDS,
        )  # fmt: skip

    def epoch(self, epoch: Epoch) -> None:
        """Add a committed epoch."""
        record, now = epoch.record, self._clock()
        events = record.counts.get(WHOLE_POND, {}).get("events", 0)
        self._durations.observe(epoch.seconds)
        for piece in () if epoch.timeline is None else pieces(trace_of([epoch.timeline])):
            self._steps.labels(piece.track, piece.name).observe(piece.median_us / 1e6)
        with self._lock:
            begun = max(now - round(epoch.seconds * 1e6), self._recent[-1].at if self._recent else 0)
            self._recent.append(_Recent(begun, now, events))
            self._epochs += 1
            self._seconds.append(epoch.seconds)
            self._add(record)
            self._hosts = epoch.hosts

    def _add(self, record: EpochRecord) -> None:
        for name, stored in record.counts.items():
            counts = Counts(**stored)
            rows, counts.rows = counts.rows, 0
            self._totals.of(name).add(counts)
            self._totals.of(query_name(name)).rows += rows  # rows of all versions are the query's
        for receipt in record.receipts:
            mine = self._instances.get(receipt.instance, InstanceTotals())
            took_us = receipt.counts.get(in_receipt("fold_us"), 0)
            totals = InstanceTotals(mine.fold_us + took_us, mine.delta_bytes + receipt.size)
            self._instances[receipt.instance] = totals

    def counts(self, query: str) -> dict[str, int]:
        """The rows that all versions of a query emitted, and the fate of the events that the current version read."""
        totals = self.totals(query)
        found = {name: getattr(totals, name) for name in ("rows", *FATES)}
        return {name: count for name, count in found.items() if count or (totals.read and name in FATES)}

    def totals(self, name: str = WHOLE_POND) -> Counts:
        """All that was counted under a name; see `Counts` for the names."""
        with self._lock:
            return copy(self._totals.get(name, Counts()))

    def instances(self) -> dict[int, InstanceTotals]:
        """What each instance did."""
        with self._lock:
            return dict(self._instances)

    def hosts(self) -> Mapping[int, str]:
        """The host on which each instance was folded in the newest epoch."""
        with self._lock:
            return self._hosts

    def arrival_s(self, moving: int) -> float | None:
        """In how many seconds the state of `moving` buckets will have migrated, at the rate since they began to.

        None: none migrate, or none has arrived since the first call.
        """
        with self._lock:
            return self._migration.update(moving)

    def durations(self) -> Iterator[Metric]:
        """The histograms of the durations of epochs, and of their steps."""
        yield from self._durations.collect()
        yield from self._steps.collect()

    def measured(self) -> Measured:
        """The current values of the metrics of all epochs."""
        with self._lock:
            if not self._recent:
                return Measured()
            now, recent = self._clock(), [*self._recent]
            seconds = sorted(self._seconds)
            since = now - max(_RATE_US, round(2e6 * self._seconds[-1]))
            counted = [one for one in recent if one.at > since]
            begun = counted[0].begun if counted else now
            return Measured(
                self._epochs, self._totals.pond.events,
                sum(one.events for one in counted) / max((now - begun) / 1e6, 1e-3),
                self._seconds[-1], seconds[len(seconds) * 99 // 100], (now - recent[-1].at) / 1e6,
            )  # fmt: skip
