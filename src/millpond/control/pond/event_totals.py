"""Counts the fate of events since a pond was opened, per query and source partition."""

from __future__ import annotations

import threading
from typing import NamedTuple

from millpond.log.records import EpochRecord, Fates
from millpond.runtime.packets.event_counts import OTHERS, bounded
from millpond.runtime.task.counters import FATES, WHOLE_POND
from millpond.state.ports.requests import Requests


class EventCounts(NamedTuple):
    """Numbers of events by fate; `read` is the sum of the others."""

    read: int = 0
    applied: int = 0
    late: int = 0
    dead: int = 0
    filtered: int = 0


class QueryCounts(NamedTuple):
    """The fate of the events that a query read; `partitions` is empty for a stream without an order.

    In `partitions`, `*` stands for all partitions that are not listed; see `runtime.packets.event_counts.bounded`.
    """

    whole: EventCounts
    partitions: dict[str, EventCounts]


class EventTotals:
    """Adds up the counts of epochs; thread-safe. `lookups`: by the owners of keys in the newest epoch with any."""

    def __init__(self) -> None:
        self.lookups = Requests()
        self._whole: dict[str, list[int]] = {}
        self._fates: Fates = {}
        self._lock = threading.Lock()

    def add(self, record: EpochRecord) -> None:
        """Add the counts of a committed epoch."""
        of_pond = record.counts.get(WHOLE_POND, {})
        with self._lock:
            if requests := of_pond.get("requests"):
                self.lookups = Requests(requests, of_pond.get("local_requests", 0))
            for query, counts in record.counts.items():
                if "read" in counts:
                    _add(self._whole, query, [counts.get(fate, 0) for fate in FATES])
            for query, partitions in record.fates.items():
                mine = self._fates.setdefault(query, {})
                for partition, numbers in partitions.items():
                    _add(mine, partition, numbers)
            self._fates = bounded(self._fates)

    def counts(self) -> dict[str, QueryCounts]:
        """The fate of all events until now, by query."""
        with self._lock:
            return {
                query: QueryCounts(
                    EventCounts(*whole),
                    {name: EventCounts(*numbers) for name, numbers in self._fates.get(query, {}).items()},
                )
                for query, whole in self._whole.items()
            }

    def losses_line(self) -> str:
        """One line with the numbers of all late and dead events and where most of them are; empty if there are none."""
        found = self.counts()
        late, dead = (sum(getattr(counts.whole, fate) for counts in found.values()) for fate in ("late", "dead"))
        if not late + dead:
            return ""
        query, worst = max(found.items(), key=lambda item: _lost(item[1].whole))
        listed = {name: counts for name, counts in worst.partitions.items() if name != OTHERS}
        text = f"late {late:,}  dead {dead:,}  most of {query}"
        if listed:
            text += f" in partition {max(listed, key=lambda name: _lost(listed[name]))}"
        return text


def _lost(counts: EventCounts) -> int:
    return counts.late + counts.dead


def _add(totals: dict[str, list[int]], name: str, numbers: list[int]) -> None:
    totals[name] = [a + b for a, b in zip(totals.get(name, [0] * len(FATES)), numbers, strict=True)]
