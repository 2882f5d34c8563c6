"""Decides which source partitions are idle, by the driver's clock; the decision is recorded in the epoch."""

from __future__ import annotations

from collections.abc import Sequence

from millpond.model.stream import Stream
from millpond.runtime.gather.lateness import ANY_PARTITION
from millpond.runtime.scheduling.committed_epoch import CommittedEpoch


class IdleWatch:
    """Tracks when each source partition of the ordered streams last had events in this run of the driver.

    All times are of a monotonic clock.
    """

    def __init__(self, streams: Sequence[Stream], now_us: int) -> None:
        self._orders = {stream.name: stream.order for stream in streams if stream.order is not None}
        self._began_us = now_us
        self._came_us: dict[str, int] = {}
        self._active_us: dict[tuple[str, str], int] = {}
        self._recorded: dict[str, frozenset[str]] = {}

    def begin(self, now_us: int) -> None:
        """Considers all partitions active now, because nothing was read recently, or at all."""
        self._began_us = now_us
        self._active_us.clear()

    def watch(self, streams: Sequence[Stream], now_us: int) -> None:
        """Adds streams that are not tracked yet; their partitions are considered active now."""
        for stream in streams:
            if stream.order is not None and stream.name not in self._orders:
                self._orders[stream.name] = stream.order
                self._came_us[stream.name] = now_us  # its partitions may only become known when they are read

    def expect(self, streams: Sequence[Stream], now_us: int) -> None:
        """Adds new source partitions of tracked streams, for which the watermark waits from now on."""
        for stream in streams:
            before = self._orders.get(stream.name)
            if before is None or stream.order is None or before.partitions == stream.order.partitions:
                continue
            if before.partitions:
                for name in {*stream.order.partitions} - {*before.partitions}:
                    self._active_us.setdefault((stream.name, name), now_us)
            self._orders[stream.name] = stream.order

    def idle(self, times_by_stream: dict[str, dict[str, int]], now_us: int) -> dict[str, frozenset[str]]:
        """The idle partitions per stream; `times_by_stream`: the largest time per partition in the log."""
        idle_partitions = {}
        for name, order in self._orders.items():
            partitions = {*times_by_stream.get(name, {}), *order.partitions} - {ANY_PARTITION}
            came_us = max(self._began_us, self._came_us.get(name, self._began_us))
            idle_partitions[name] = frozenset(
                partition
                for partition in partitions
                if now_us - self._active_us.get((name, partition), came_us) > order.idle_after_us
            )
        return idle_partitions

    def is_news(self, idle: dict[str, frozenset[str]]) -> bool:
        """Whether the decision differs from the one recorded last, so that an epoch is due without events."""
        return any(partitions != self._recorded.get(name, frozenset()) for name, partitions in idle.items())

    def committed(self, epoch: CommittedEpoch) -> None:
        """Records which partitions had events in a committed epoch."""
        self._recorded = {name: frozenset(partitions) for name, partitions in epoch.record.idle.items()}
        for name in self._orders:
            for partition in epoch.record.max_time.get(name, {}):
                self._active_us[name, partition] = epoch.at_us
