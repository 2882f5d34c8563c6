"""Chooses how many records an epoch reads, so that it takes about its target time.

An epoch takes `a + b·n` seconds for n records. Epochs of several sizes determine both; if all had one size, the whole
time counts as `b`. An epoch that is too long from overhead alone is not cut down: at least half of its time is spent
on records.

Measurements go out of date: the first epochs of a process are slow, and a size that was too slow is not tried again.
So measurements older than thirty epochs are dropped. While a backlog lasts, two to eight times as many records are
tried, as if half of an epoch were overhead, and the measurements of other sizes are dropped: first after two epochs,
and then after four times as many each time.

During a backlog users wait for the backlog, not for the epoch, and longer epochs have less overhead. So while it
lasts, an epoch may take four times its target. (A pond held to one second fell behind a load that it could have
handled.) Epochs that stay below their target get no limit: it would only create a backlog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millpond.runtime.gather.dead_letters import records_between
from millpond.runtime.scheduling.committed_epoch import CommittedEpoch

FIRST = 100_000
"""The number of records that all streams together read in an epoch before anything was measured."""

LEAST = 1_000
_SIZES = 4
_NEWER = 0.5  # the weight of the newest epoch
_WORTH = 1.5  # the least factor by which a limit changes, as a change restarts the read
_STEP = 8.0  # the largest factor by which a limit changes
_CLEAR = 0.1
_FULL = 0.9  # the part of a limit that counts as reached; Spark divides a limit among partitions and rounds down
_ROOM = 4.0  # more records are tried if the target time exceeds the duration by more than this factor
_TRIED = 2.0, _STEP  # the least and the largest factor by which more records are tried
_PATIENCE = 2  # the number of epochs with a backlog until more records are tried
_RARER = 4  # the factor by which that number grows after each try
_OLD = 30
_LASTING = 2  # the number of consecutive epochs at their limit that count as a backlog
_LONGEST = 4.0  # the factor by which an epoch may exceed its target time during a backlog


class Pace:
    """The limits of streams, by name, which follow the measured durations of epochs."""

    def __init__(self) -> None:
        self._target = 1.0
        # records, seconds and number of the last epoch, by size (within a factor of two); the newest last
        self._observed: dict[int, tuple[float, float, int]] = {}
        self._epochs = 0
        self._warm = False
        self._full, self._patience = 0, _PATIENCE
        self._total = FIRST
        self._shares: dict[str, float] = {}
        self._changed = False

    @property
    def limits(self) -> dict[str, int]:
        """The number of records of each stream that an epoch may read."""
        return {name: max(1, round(self._total * share)) for name, share in self._shares.items()}

    @property
    def has_changed(self) -> bool:
        """Whether the limits differ from those with which the current read began."""
        return self._changed

    def begun(self, streams: Mapping[str, float]) -> dict[str, int]:
        """The limits with which a read begins; the duration of its first epoch is ignored, as it is not typical.

        `streams`: the target time of an epoch in seconds for each stream that has limits; the smallest one applies.
        """
        self._warm = self._changed = False
        self._target = min(streams.values(), default=1.0)
        if self._shares.keys() != streams.keys():
            self._shares = dict.fromkeys(streams, 1 / max(len(streams), 1))
        return self.limits

    def committed(self, epoch: CommittedEpoch) -> None:
        """Observes how many records of each stream an epoch read, and how long it took."""
        record = epoch.record
        counts = {name: records_between(record.start, record.end, name) for name in self._shares}
        self._changed = self.observe(counts, epoch.seconds, epoch.between)

    def observe(self, counts: Mapping[str, int], seconds: float, between: float = 0.0) -> bool:
        """Observes an epoch that read `counts` records of each stream; returns whether limits have changed.

        `between`: seconds between the previous epoch and this one; they count as part of its duration if the previous
        epoch reached its limit. As a change restarts the read, limits change only if an epoch took much too long, or if
        it reached its limit although it might have read much more.
        """
        read = sum(counts.get(name, 0) for name in self._shares)
        if not self._warm or not read:
            self._warm = True
            return False
        seconds += between if self._full else 0.0
        self._remember(read, seconds)
        limits = self.limits
        full = any(counts.get(name, 0) >= _FULL * limit for name, limit in limits.items())
        self._full = self._full + 1 if full else 0
        target = self._target * (_LONGEST if self._full >= _LASTING else 1.0)
        total, most = self._records_for(target), self._records_for(self._target * _LONGEST)
        room = target / max(seconds, 1e-3)
        tried = self._total * min(max(_TRIED[0] * room, _TRIED[0]), _TRIED[1])
        if self._full >= self._patience and (room > _ROOM or len(self._observed) == 1) and total < tried:
            total, self._patience = tried, self._patience * _RARER
            self._observed = {size: observed for size, observed in self._observed.items() if size == read.bit_length()}
        if most * _WORTH < min(read, self._total):
            total = most
        elif not full or total < self._total * _WORTH:
            return False
        self._full = 0
        self._total = max(LEAST, round(min(max(total, self._total / _STEP), self._total * _STEP)))
        even = 0.2 / len(self._shares)
        self._shares = {name: even + 0.8 * counts.get(name, 0) / read for name in self._shares}
        return self.limits != limits

    def _remember(self, read: int, seconds: float) -> None:
        self._epochs += 1
        size = read.bit_length()
        old_read, old_seconds, _ = self._observed.pop(size, (float(read), seconds, 0))
        new = old_read + _NEWER * (read - old_read), old_seconds + _NEWER * (seconds - old_seconds), self._epochs
        recent = [(key, one) for key, one in self._observed.items() if one[-1] > self._epochs - _OLD]
        self._observed = dict([*recent, (size, new)][-_SIZES:])

    def _records_for(self, target: float) -> float:
        """The number of records with which an epoch takes `target` seconds, or half of it is overhead."""
        fixed, each = fitted([(read, seconds) for read, seconds, _ in self._observed.values()])
        return max(target - fixed, fixed) / max(each, 1e-12)


def fitted(epochs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fits overhead and seconds per record to epochs (records, seconds) by least squares; both are at least 0.

    >>> fitted([(100, 1.0), (300, 2.0)])
    (0.5, 0.005)
    >>> fitted([(100, 1.0)])
    (0.0, 0.01)
    """
    count = len(epochs)
    mean_n, mean_s = sum(n for n, _ in epochs) / count, sum(seconds for _, seconds in epochs) / count
    spread = sum((n - mean_n) ** 2 for n, _ in epochs)
    if not spread:
        return 0.0, mean_s / mean_n
    slope = sum((n - mean_n) * (seconds - mean_s) for n, seconds in epochs) / spread
    # if the number of records hardly matters, the slope is noise; the lower bound still lets more records be tried
    slope = min(max(slope, _CLEAR * mean_s / mean_n), mean_s / mean_n)
    return mean_s - slope * mean_n, slope
