"""Chooses how many records an epoch reads, so that it takes about its target time.

An epoch takes `a + b·n` seconds for n records. Both are estimated from the latest epochs, of which newer ones count
more. Before they have had several sizes, the whole time counts as `b·n`. If more than half of the target time is
overhead, an epoch reads about as many records as take as long as the overhead. Both are estimates: in the model of the
unit tests, records then take a fifth to three quarters of the time.

During a backlog users wait for the backlog, not for the epoch, and longer epochs have less overhead. So the longer a
backlog lasts, the longer its epochs may be, up to four times the target. (A pond held to one second fell behind a load
that it could have handled.) Epochs that do not reach their limit leave it as it is, unless they were too long.
"""

from __future__ import annotations

from collections.abc import Mapping

from millpond.runtime.gather.dead_letters import records_between
from millpond.runtime.scheduling.committed_epoch import CommittedEpoch

FIRST = 100_000
"""The number of records that all streams together read in an epoch before anything was measured."""

LEAST = 1_000
_KEPT = 0.75  # the factor by which the weight of earlier epochs decreases with each epoch
_ONE_SIZE = 0.6  # if numbers of records deviate by less than this part of their mean, epochs say little of overhead
_CLEAR = 0.1
_OUTLIER = 1.5  # the factor by which a single epoch may deviate from the expected time
_STEP = 8.0  # the largest factor by which a limit changes
_AHEAD = 2.0  # a limit grows at most to this many times the size that would take the target time without overhead
_SLOW = 1.25  # the factor by which it may grow after an epoch that already took its target time
_FULL = 0.9  # the part of a limit that counts as reached; Spark divides a limit among partitions and rounds down
_LASTING = 2  # the number of consecutive epochs at their limit that count as a backlog
_PATIENCE = 1.5  # the factor by which epochs may be longer with each further epoch of a backlog
_LONGEST = 4.0  # the factor by which an epoch may exceed its target time during a backlog
_SPARE = 1.5  # a limit is not reduced to less than this many times the records of an epoch that left no backlog


class Pace:
    """The limits of streams, by name, which follow the measured durations of epochs."""

    def __init__(self) -> None:
        self._target, self._allowed = 1.0, 1.0
        self._epochs = _Epochs()
        self._warm, self._full = False, 0
        self._total = FIRST
        self._shares: dict[str, float] = {}

    @property
    def limits(self) -> dict[str, int]:
        """The number of records of each stream that an epoch may read."""
        return {name: max(1, round(self._total * share)) for name, share in self._shares.items()}

    def begun(self, streams: Mapping[str, float]) -> dict[str, int]:
        """The limits with which a read begins; the duration of its first epoch is ignored, as it is not typical.

        `streams`: the target time of an epoch in seconds for each stream that has limits; the smallest one applies.
        """
        self._warm = False
        self._target = min(streams.values(), default=1.0)
        if self._shares.keys() != streams.keys():
            self._shares = dict.fromkeys(streams, 1 / max(len(streams), 1))
        return self.limits

    def committed(self, epoch: CommittedEpoch) -> None:
        """Observes how many records of each stream an epoch read, and how long it took."""
        record = epoch.record
        counts = {name: records_between(record.start, record.end, name) for name in self._shares}
        self.observe(counts, epoch.seconds, epoch.between)

    def observe(self, counts: Mapping[str, int], seconds: float, between: float = 0.0) -> None:
        """Observes an epoch that read `counts` records of each stream, and sets the limits of the next one.

        `between`: seconds between the previous epoch and this one; they count as part of its duration if the previous
        epoch reached its limit.
        """
        read = sum(counts.get(name, 0) for name in self._shares)
        if not self._warm or not read:
            self._warm = self._warm or read > 0
            return
        seconds += between if self._full else 0.0
        self._epochs.add(read, seconds)
        full = any(counts.get(name, 0) >= _FULL * limit for name, limit in self.limits.items())
        self._full = self._full + 1 if full else 0
        if self._full >= _LASTING:
            self._allowed = min(self._allowed * _PATIENCE, _LONGEST)
        elif not full:
            self._allowed = max(self._allowed / _PATIENCE, 1.0)
        target = self._target * self._allowed
        total = self._epochs.records_in(target)
        if full:
            total = min(total, self._total * max(_AHEAD * target / max(seconds, 1e-3), _SLOW))
            even = 0.2 / len(self._shares)
            self._shares = {name: even + 0.8 * counts.get(name, 0) / read for name in self._shares}
        elif seconds > target:
            spare = min(_SPARE * read, self._epochs.records_in(self._target * _LONGEST))
            total = min(max(total, spare), self._total)
        else:
            return
        self._total = max(LEAST, round(min(max(total, self._total / _STEP), self._total * _STEP)))


class _Epochs:
    """Weighted sums of epochs' records and seconds, of the squares of records, and of their products.

    The ratio `a / b`, the records that take as long as the overhead, is remembered: it stays the same if everything
    becomes slower, and epochs of one size do not show it.
    """

    def __init__(self) -> None:
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._ratio = self._fixed = self._each = 0.0
        self._unusual = False

    def add(self, records: float, seconds: float) -> None:
        """Adds an epoch.

        If it took much longer or shorter than expected, it counts in part. If the previous one did so too, the machine
        has become slower or faster, and earlier epochs are dropped.
        """
        weight_of_old, expected = _KEPT, self._fixed + self._each * records
        if self._sums[0]:  # an epoch of another size may also take as long as before
            same = self._sums[2] / self._sums[0]
            usual = min(max(seconds, min(expected, same) / _OUTLIER), max(expected, same) * _OUTLIER)
        else:
            usual = seconds
        if usual != seconds and self._unusual:
            weight_of_old, self._unusual = 0.0, False
        else:
            seconds, self._unusual = usual, usual != seconds
        new = 1.0, records, seconds, records * records, records * seconds
        weight, n, s, squares, products = (weight_of_old * old + one for old, one in zip(self._sums, new, strict=True))
        self._sums = weight, n, s, squares, products
        records, seconds = n / weight, s / weight
        whole, ridge = seconds / records, (_ONE_SIZE * records) ** 2
        expected = seconds / (records + self._ratio)
        slope = (products / weight - records * seconds + ridge * expected) / (squares / weight - records**2 + ridge)
        # if the number of records hardly matters, the slope is noise; the lower bound still lets more records be tried
        self._each = max(min(max(slope, _CLEAR * whole), whole), 1e-12)
        self._fixed = seconds - self._each * records
        self._ratio = self._fixed / self._each

    def records_in(self, target: float) -> float:
        """The number of records with which an epoch takes `target` seconds, or half of it is overhead."""
        return max(target - self._fixed, self._fixed) / self._each
